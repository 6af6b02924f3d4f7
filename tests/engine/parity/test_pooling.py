"""A prompt as a vector: what the model's own forward makes of its last hidden states."""

import asyncio

import pytest
import torch

from engine import ContinuousBatchingConfig, InvalidRequestError
from tests.engine.parity.families import make_family
from tests.engine.parity.grid import make_prompts
from tests.engine.parity.subject import Subject

CONFIG = ContinuousBatchingConfig(page_size=4, num_blocks=600, max_batch_tokens=24)
KINDS = ("mean", "last")


@pytest.fixture(scope="module", params=["llama", "gpt2"])
def subject(request) -> Subject:
    return Subject(make_family(request.param), make_prompts(), 1, spare_tokens=0)


def expected(subject: Subject, prompt: list[int], kind: str) -> torch.Tensor:
    with torch.inference_mode():
        hidden = subject.hf_model.base_model(input_ids=torch.tensor([prompt]))[0][0]
    return hidden.mean(dim=0) if kind == "mean" else hidden[-1]


def check(subject: Subject, prompts, outputs, kind: str) -> None:
    for prompt, output in zip(prompts, outputs, strict=True):
        vector = torch.tensor(output.pooled)
        reference = expected(subject, prompt, kind)
        torch.testing.assert_close(vector, reference, rtol=1e-4, atol=1e-4)


def run(subject: Subject, config=CONFIG, **options):
    outputs = subject.paged.generate_batch(
        subject.prompts, continuous_batching_config=config, max_new_tokens=1, **options
    )
    return list(outputs.values())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("chunk", [3, 512])
def test_it_equals_the_models_own(subject, chunk, kind):
    config = ContinuousBatchingConfig(page_size=4, num_blocks=600, max_batch_tokens=chunk)
    check(subject, subject.prompts, run(subject, config, pooling=kind), kind)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_cached_changes_nothing(subject, kind):
    with subject.paged.continuous_batching_context_manager(
        continuous_batching_config=CONFIG
    ) as manager:
        for _ in range(2):
            ids = manager.add_requests(subject.prompts, max_new_tokens=1, pooling=kind)
            outputs = [manager.get_result(name) for name in ids]
            check(subject, subject.prompts, outputs, kind)
        cached = sum(output.num_cached_tokens for output in outputs)
        assert (cached > 0) == (kind == "last")


@pytest.mark.parametrize("kind", KINDS)
def test_a_preempted_prompt_is_counted_once(subject, kind):
    small = ContinuousBatchingConfig(
        page_size=4, num_blocks=30, safety_margin=0.0, max_batch_tokens=5
    )
    with subject.paged.continuous_batching_context_manager(
        continuous_batching_config=small
    ) as manager:
        writers = manager.add_requests(
            [prompt[:4] for prompt in subject.prompts], max_new_tokens=30, eos_token_id=-1
        )
        ids = manager.add_requests(subject.prompts, max_new_tokens=1, pooling=kind)
        check(subject, subject.prompts, [manager.get_result(name) for name in ids], kind)
        assert all(manager.get_result(name).pooled is None for name in writers)
        assert manager.statistics().num_preemptions > 0


def test_requests_without_pooling_compute_what_they_always_do(subject):
    alone = [output.generated_tokens for output in run(subject)]
    assert [output.generated_tokens for output in run(subject, pooling="mean")] == alone


@pytest.mark.parametrize("value", ["max", 1, True, ["mean"]])
def test_another_kind_is_refused_by_name(subject, value):
    with pytest.raises(InvalidRequestError) as refusal:
        run(subject, pooling=value)
    assert refusal.value.param == "pooling"


async def test_the_event_loop_gets_it_with_the_terminal_output(subject):
    with subject.paged.continuous_batching_context_manager(
        continuous_batching_config=CONFIG
    ) as manager:
        prompt = subject.prompts[0]
        name = manager.add_request(prompt, max_new_tokens=1, pooling="last")
        async with asyncio.timeout(30):
            outputs = [output async for output in manager.stream(name)]
    check(subject, [prompt], outputs[-1:], "last")
