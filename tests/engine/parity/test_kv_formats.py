"""A cache of rounded keys and values: what the model says of keys and values rounded like that.

The oracle is the model itself, with an attention that rounds what it is given to the rows of a
format and back. Preempted requests are swapped out and in, equal prefixes share blocks, and a
second turn finds the first one's: whatever becomes of a row, it stays what it was.
"""

import pytest
import torch
from transformers import PreTrainedModel

import engine
from benchmarks.rounded_cache import round_keys_and_values
from engine import ContinuousBatchingConfig, GenerationOutput
from tests.engine.parity.families import make_family
from tests.engine.parity.grid import LONGEST_PROMPT, NUM_PARALLEL, make_prompts

MAX_NEW_TOKENS = 12
PAGE_SIZE = 8
FORMATS = ("bf16", "fp16", "int8")
# Grouped heads, a window, a soft cap, sinks.
CASES = [
    ("llama", True), ("llama", False), ("gemma2", True), ("mistral", True), ("gpt_oss", True),
    ("gpt_oss", False),
]  # fmt: skip


def make_config(name: str) -> ContinuousBatchingConfig:
    """Return a configuration whose cache is too small for all, with room to swap to."""
    longest = LONGEST_PROMPT + MAX_NEW_TOKENS
    return ContinuousBatchingConfig(
        page_size=PAGE_SIZE,
        num_blocks=-(-longest // PAGE_SIZE) + 12,
        max_batch_tokens=64,
        max_requests_per_batch=NUM_PARALLEL,
        safety_margin=0.0,
        cpu_offload_space=0.05,
        return_logprobs=True,
        kv_cache_dtype=name,
    )


def ask_twice(model: engine.PagedModel, name: str) -> list[GenerationOutput]:
    outputs: list[GenerationOutput | None] = []
    with model.continuous_batching_context_manager(
        continuous_batching_config=make_config(name)
    ) as manager:
        for _ in range(2):
            ids = manager.add_requests(make_prompts(), max_new_tokens=MAX_NEW_TOKENS)
            outputs += [manager.get_result(request_id) for request_id in ids]
        statistics = manager.statistics()
        assert statistics.num_swapped_out > 0
        assert statistics.num_swapped_in > 0
    done = [output for output in outputs if output is not None and output.error is None]
    assert len(done) == 2 * NUM_PARALLEL
    assert sum(output.num_cached_tokens for output in done) > 0
    return done


@torch.inference_mode()
def log_probabilities(model: PreTrainedModel, output: GenerationOutput) -> torch.Tensor:
    """Return what a model says of an answer's tokens after those before them."""
    tokens = output.generated_tokens
    ids = torch.tensor([[*output.prompt_ids, *tokens]])
    logits = model(input_ids=ids, use_cache=False).logits[0, len(output.prompt_ids) - 1 : -1]
    return logits.float().log_softmax(-1).gather(1, torch.tensor(tokens)[:, None])[:, 0]


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(("family", "use_kernels"), CASES)
def test_answers_are_those_over_rounded_keys_and_values(family, use_kernels, name):
    outputs = ask_twice(engine.wrap(make_family(family), use_kernels=use_kernels), name)
    plain = make_family(family)
    rounded = make_family(family)
    round_keys_and_values(rounded, name)
    found = torch.cat([torch.tensor(output.logprobs) for output in outputs])
    to_rounded, to_plain = (
        (found - torch.cat([log_probabilities(oracle, output) for output in outputs])).abs()
        for oracle in (rounded, plain)
    )
    # A number that lies between two codes may go to the other one, and takes a few others along.
    assert to_rounded.mean() < 0.05 * to_plain.mean()
