"""Log-probabilities, penalties and ends: what `model.generate` says of the same tokens."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from transformers import GenerationConfig, PreTrainedModel

from engine import ContinuousBatchingConfig, FinishReason, GenerationOutput
from tests.engine.parity.comparison import reference_tokens
from tests.engine.parity.families import make_family
from tests.engine.parity.grid import MAX_NEW_TOKENS, NUM_PARALLEL, make_prompts
from tests.engine.parity.subject import Subject

TOLERANCE = 1e-5
CONFIG = ContinuousBatchingConfig(
    page_size=4, num_blocks=600, max_batch_tokens=64, max_requests_per_batch=NUM_PARALLEL
)


@pytest.fixture(scope="module")
def llama() -> Subject:
    """A model with logits up to 4.

    There a float32 forward, torch's and ours alike, is within 5e-6 of the model in float64, and two
    of them within 1e-5 of each other.
    """
    model: Any = make_family("llama")
    with torch.no_grad():
        model.lm_head.weight.mul_(0.2)
    return Subject(model, make_prompts(), MAX_NEW_TOKENS, spare_tokens=0)


def generate_with_scores(
    model: PreTrainedModel, prompt: Sequence[int], **options: Any
) -> tuple[list[int], torch.Tensor, torch.Tensor]:
    """Return generate's tokens, the raw logits and the processed scores: [n, V] each."""
    ids = torch.tensor([prompt])
    oracle: Any = model
    output = oracle.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=MAX_NEW_TOKENS,
        do_sample=False,
        return_dict_in_generate=True,
        output_logits=True,
        output_scores=True,
        **options,
    )
    tokens = output.sequences[0, len(prompt) :].tolist()
    return tokens, torch.cat(output.logits), torch.cat(output.scores)


def run(subject: Subject, generation_config: GenerationConfig | None = None, **options: Any):
    config = options.pop("config", CONFIG)
    outputs = subject.paged.generate_batch(
        subject.prompts, generation_config, config, max_new_tokens=MAX_NEW_TOKENS, **options
    )
    return list(outputs.values())


def test_top_logprobs_are_the_models_own_distribution(llama):
    for prompt, output in zip(llama.prompts, run(llama, top_logprobs=5), strict=True):
        tokens, logits, _ = generate_with_scores(llama.hf_model, prompt)
        expected = logits.log_softmax(-1)
        assert output.generated_tokens == tokens
        for position, entry in enumerate(output.token_logprobs):
            assert entry.token_id == tokens[position]
            assert entry.logprob == pytest.approx(
                float(expected[position, entry.token_id]), abs=TOLERANCE
            )
            top = expected[position].topk(5)
            assert [token for token, _ in entry.top] == top.indices.tolist()
            assert [value for _, value in entry.top] == pytest.approx(
                top.values.tolist(), abs=TOLERANCE
            )


@pytest.mark.parametrize("penalty", [None, 1.3])
def test_return_logprobs_are_of_the_processed_distribution(llama, penalty):
    config = ContinuousBatchingConfig(page_size=16, num_blocks=200, return_logprobs=True)
    settings = GenerationConfig(repetition_penalty=penalty)
    for prompt, output in zip(llama.prompts, run(llama, settings, config=config), strict=True):
        tokens, _, scores = generate_with_scores(
            llama.hf_model, prompt, repetition_penalty=penalty or 1.0
        )
        assert output.generated_tokens == tokens
        expected = scores.log_softmax(-1)[range(len(tokens)), tokens]
        assert output.logprobs == pytest.approx(expected.tolist(), abs=TOLERANCE)


@pytest.mark.parametrize("penalty", [1.1, 1.5, 0.8])
def test_a_repetition_penalty_of_the_generation_config_counts(llama, penalty):
    settings = GenerationConfig(repetition_penalty=penalty)
    expected = reference_tokens(
        llama.hf_model, llama.prompts, MAX_NEW_TOKENS, repetition_penalty=penalty
    )
    assert [output.generated_tokens for output in run(llama, settings)] == expected
    assert expected != llama.references


def test_a_request_may_have_its_own_penalty_beside_others(llama):
    """Rows with and without one meet in a batch."""
    penalties = [(1.0, 1.4)[index % 2] for index in range(len(llama.prompts))]
    with llama.paged.continuous_batching_context_manager(
        continuous_batching_config=CONFIG
    ) as manager:
        ids = [
            manager.add_request(prompt, max_new_tokens=MAX_NEW_TOKENS, repetition_penalty=penalty)
            for prompt, penalty in zip(llama.prompts, penalties, strict=True)
        ]
        outputs = [manager.get_result(request_id) for request_id in ids]
    for prompt, penalty, output in zip(llama.prompts, penalties, outputs, strict=True):
        expected = reference_tokens(
            llama.hf_model, [prompt], MAX_NEW_TOKENS, repetition_penalty=penalty
        )
        assert output is not None
        assert output.generated_tokens == expected[0]


def test_an_end_token_ends_the_answer_where_generate_ends_it(llama):
    """Several are in use, since a model's configuration may list several."""
    ends = [llama.references[0][3], llama.references[1][7]]
    settings = GenerationConfig(eos_token_id=ends, pad_token_id=0)
    expected = reference_tokens(llama.hf_model, llama.prompts, MAX_NEW_TOKENS, eos_token_id=ends)
    outputs: list[GenerationOutput] = run(llama, settings)
    assert [output.generated_tokens for output in outputs] == expected
    for output, answer in zip(outputs, expected, strict=True):
        ended = answer[-1] in ends
        assert output.finish_reason is (FinishReason.STOP if ended else FinishReason.LENGTH)
    assert {len(answer) for answer in expected} >= {4, MAX_NEW_TOKENS}


def test_logprobs_survive_a_preemption(llama):
    """They are kept with the tokens while a request waits to be computed again."""
    small = ContinuousBatchingConfig(
        page_size=4, num_blocks=36, safety_margin=0.0, max_batch_tokens=64, return_logprobs=True
    )
    outputs = run(llama, config=small, top_logprobs=0)
    assert sum(output.num_preemptions for output in outputs) > 0
    for prompt, output in zip(llama.prompts, outputs, strict=True):
        tokens, logits, _ = generate_with_scores(llama.hf_model, prompt)
        expected = logits.log_softmax(-1)[range(len(tokens)), tokens].tolist()
        assert output.logprobs == pytest.approx(expected, abs=TOLERANCE)
        assert [entry.logprob for entry in output.token_logprobs] == pytest.approx(
            expected, abs=TOLERANCE
        )


SAMPLED: dict[str, dict[str, Any]] = {
    "as the model says": {"do_sample": True, "top_k": 0},
    "colder": {"do_sample": True, "top_k": 0, "temperature": 0.6},
    "of the best 20": {"do_sample": True, "top_k": 20, "temperature": 1.3},
    "of nine tenths": {"do_sample": True, "top_k": 0, "top_p": 0.9},
    "everything": {
        "do_sample": True, "temperature": 1.2, "top_k": 40, "top_p": 0.95, "min_p": 0.01,
        "repetition_penalty": 1.3, "no_repeat_ngram_size": 3,
    },
}  # fmt: skip


@pytest.mark.parametrize("name", SAMPLED)
def test_logprobs_of_sampled_tokens_are_those_of_generates_scores(llama, name):
    """Generate draws others; its scores after our tokens say how likely each of ours was."""
    options = SAMPLED[name]
    config = ContinuousBatchingConfig(page_size=16, num_blocks=200, return_logprobs=True, seed=5)
    outputs = run(llama, GenerationConfig(**options), config=config)
    oracle: Any = llama.hf_model
    assert {tuple(o.generated_tokens) for o in outputs} != {tuple(r) for r in llama.references}
    for prompt, output in list(zip(llama.prompts, outputs, strict=True))[::4]:
        tokens = output.generated_tokens
        for position, token in enumerate(tokens):
            ids = torch.tensor([[*prompt, *tokens[:position]]])
            scores = oracle.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=1,
                return_dict_in_generate=True,
                output_scores=True,
                **options,
            ).scores[0][0]
            expected = float(scores.log_softmax(-1)[token])
            # Logits are divided by the temperature, and so is what they differ by.
            tolerance = TOLERANCE / options.get("temperature", 1.0)
            assert output.logprobs[position] == pytest.approx(expected, abs=tolerance)
