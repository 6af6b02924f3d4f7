"""Log-probabilities of prompt tokens: what the model's own forward says of them."""

import pytest
import torch

from engine import ContinuousBatchingConfig, InvalidRequestError
from tests.engine.parity.families import make_family
from tests.engine.parity.grid import make_prompts
from tests.engine.parity.subject import Subject

TOLERANCE = 1e-5
NUM_TOKENS = 6
CONFIG = ContinuousBatchingConfig(page_size=4, num_blocks=600, max_batch_tokens=24)


@pytest.fixture(scope="module")
def llama() -> Subject:
    """A model with logits of the size that real ones have, so that rounding stays below 1e-5."""
    model = make_family("llama")
    with torch.no_grad():
        model.lm_head.weight.mul_(0.3)
    return Subject(model, make_prompts(), NUM_TOKENS, spare_tokens=0)


def check(subject: Subject, prompt, entries, num_top: int) -> None:
    """Hold the entries of one prompt to the model's forward."""
    with torch.inference_mode():
        logits = subject.hf_model(input_ids=torch.tensor([prompt]), use_cache=False).logits[0]
    expected = logits.float().log_softmax(-1)
    assert len(entries) == len(prompt)
    assert entries[0] is None
    for position, entry in enumerate(entries[1:], start=1):
        row = expected[position - 1]
        assert entry.token_id == prompt[position]
        assert entry.logprob == pytest.approx(float(row[prompt[position]]), abs=TOLERANCE)
        top = row.topk(num_top)
        assert [token for token, _ in entry.top] == top.indices.tolist()
        assert [value for _, value in entry.top] == pytest.approx(
            top.values.tolist(), abs=TOLERANCE
        )


def run(subject: Subject, config=CONFIG, prompts=None, **options):
    return list(
        subject.paged.generate_batch(
            prompts or subject.prompts,
            continuous_batching_config=config,
            max_new_tokens=NUM_TOKENS,
            **options,
        ).values()
    )


@pytest.mark.parametrize("num_top", [0, 3])
@pytest.mark.parametrize("chunk", [3, 24, 512])
def test_they_equal_the_models_own(llama, chunk, num_top):
    config = ContinuousBatchingConfig(page_size=4, num_blocks=600, max_batch_tokens=chunk)
    outputs = run(llama, config, prompt_logprobs=num_top)
    for prompt, output, tokens in zip(llama.prompts, outputs, llama.references, strict=True):
        check(llama, prompt, output.prompt_logprobs, num_top)
        assert output.generated_tokens == tokens
        assert output.num_cached_tokens == 0


def test_they_are_computed_even_if_the_prompt_is_cached(llama):
    with llama.paged.continuous_batching_context_manager(
        continuous_batching_config=CONFIG
    ) as manager:
        prompt = llama.prompts[-1]
        manager.add_request(prompt, "a", max_new_tokens=2)
        assert manager.get_result("a").prompt_logprobs is None
        manager.add_request(prompt, "b", max_new_tokens=2, prompt_logprobs=1)
        check(llama, prompt, manager.get_result("b").prompt_logprobs, 1)
        manager.add_request(prompt, "c", max_new_tokens=2)
        assert manager.get_result("c").num_cached_tokens == len(prompt) - 1


def test_rows_with_and_without_them_meet_in_a_batch(llama):
    with llama.paged.continuous_batching_context_manager(
        continuous_batching_config=CONFIG
    ) as manager:
        wanted = [None if n % 2 else 2 for n in range(len(llama.prompts))]
        ids = [
            manager.add_request(prompt, max_new_tokens=NUM_TOKENS, prompt_logprobs=count)
            for prompt, count in zip(llama.prompts, wanted, strict=True)
        ]
        outputs = [manager.get_result(request_id) for request_id in ids]
    for prompt, count, output, tokens in zip(
        llama.prompts, wanted, outputs, llama.references, strict=True
    ):
        assert output.generated_tokens == tokens
        if count is None:
            assert output.prompt_logprobs is None
        else:
            check(llama, prompt, output.prompt_logprobs, count)


def test_they_survive_a_preemption(llama):
    small = ContinuousBatchingConfig(
        page_size=4, num_blocks=30, safety_margin=0.0, max_batch_tokens=24
    )
    outputs = run(llama, small, prompt_logprobs=2)
    assert sum(output.num_preemptions for output in outputs) > 0
    for prompt, output in zip(llama.prompts, outputs, strict=True):
        check(llama, prompt, output.prompt_logprobs, 2)


def test_every_answer_to_a_prompt_has_them(llama):
    prompts = llama.prompts[:4]
    outputs = run(llama, prompts=prompts, prompt_logprobs=1, num_return_sequences=3)
    for index, output in enumerate(outputs):
        check(llama, prompts[index // 3], output.prompt_logprobs, 1)


def test_a_stream_has_them_from_its_first_token_on(llama):
    prompt = llama.prompts[0]
    with llama.paged.continuous_batching_context_manager(
        continuous_batching_config=CONFIG
    ) as manager:
        name = manager.add_request(prompt, max_new_tokens=3, streaming=True, prompt_logprobs=0)
        outputs = list(manager.request_id_iter(name))
    assert len(outputs) == 3
    for output in outputs:
        check(llama, prompt, output.prompt_logprobs, 0)


@pytest.mark.parametrize("value", [-1, 101, 1.5, True])
def test_a_bad_number_is_refused(llama, value):
    with pytest.raises(InvalidRequestError, match="prompt_logprobs") as caught:
        run(llama, prompt_logprobs=value)
    assert caught.value.param == "prompt_logprobs"
