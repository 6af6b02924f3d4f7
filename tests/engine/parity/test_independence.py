"""A request's answer does not depend on its neighbours, nor the model's on the engine."""

import random
from collections.abc import Callable

import pytest
import torch

import engine
from engine import ContinuousBatchingConfig, ContinuousBatchingManager, GenerationOutput
from tests.engine.parity.comparison import compare
from tests.engine.parity.families import VOCAB_SIZE, make_family
from tests.engine.parity.grid import NUM_PARALLEL
from tests.engine.parity.subject import Subject

IDS = torch.tensor([[5, 6, 7, 8]])
NUM_NEEDLE_TOKENS = 30


@pytest.fixture(scope="module")
def gemma(subjects: Callable[[str], Subject]) -> Subject:
    return subjects("gemma3")


@pytest.fixture(scope="module")
def llama(subjects: Callable[[str], Subject]) -> Subject:
    return subjects("llama")


def random_prompt(source: random.Random, longest: int) -> list[int]:
    return [source.randrange(VOCAB_SIZE) for _ in range(source.randint(1, longest))]


def answer_all(
    manager: ContinuousBatchingManager, prompts: list[list[int]], lengths: list[int]
) -> list[GenerationOutput]:
    ids = [
        manager.add_request(prompt, max_new_tokens=length)
        for prompt, length in zip(prompts, lengths, strict=True)
    ]
    outputs = [manager.get_result(request_id) for request_id in ids]
    return [output for output in outputs if output is not None]


@pytest.mark.parametrize("sharing", [True, False])
@pytest.mark.parametrize("family", ["llama", "gemma3", "mixtral", "gpt_oss"])
def test_a_needle_among_ragged_neighbours_is_answered_as_alone(family, sharing, subjects, judge):
    """Its slot, its neighbours and their lengths change from round to round."""
    model = subjects(family)
    source = random.Random(7)
    needle = random_prompt(source, 60)
    config = ContinuousBatchingConfig(
        page_size=4, num_blocks=1000, max_batch_tokens=24, allow_block_sharing=sharing
    )
    with model.paged.continuous_batching_context_manager(
        continuous_batching_config=config
    ) as manager:
        alone = answer_all(manager, [needle], [NUM_NEEDLE_TOKENS])[0].generated_tokens
        for _ in range(3):
            prompts = [random_prompt(source, 90) for _ in range(NUM_PARALLEL - 1)]
            # One of them begins like the needle, so that they share blocks where that is allowed.
            prompts[0] = needle[: len(needle) // 2] + prompts[0]
            lengths = [source.randint(1, 40) for _ in prompts]
            slot = source.randrange(NUM_PARALLEL)
            prompts.insert(slot, needle)
            lengths.insert(slot, NUM_NEEDLE_TOKENS)
            output = answer_all(manager, prompts, lengths)[slot]
            judge(compare(model.hf_model, [needle], [alone], [output]))


def test_the_model_is_an_ordinary_one_before_after_and_between_steps(llama):
    def forward() -> torch.Tensor:
        with torch.inference_mode():
            logits: torch.Tensor = llama.hf_model(input_ids=IDS).logits
        return logits

    before = forward()
    implementation = llama.hf_model.config._attn_implementation
    with llama.paged.continuous_batching_context_manager() as manager:
        request_id = manager.add_request([1, 2, 3], max_new_tokens=100, streaming=True)
        for _ in range(3):
            assert manager.get_result(request_id) is not None
            with manager.pause():
                assert llama.hf_model.config._attn_implementation == implementation
                assert torch.equal(forward(), before)
    assert llama.hf_model.config._attn_implementation == implementation
    assert torch.equal(forward(), before)
    for module in llama.hf_model.modules():
        assert not [name for name in vars(module) if "slipstream" in name or name == "forward"]


def test_two_engines_over_different_models_do_not_meet(llama, gemma, judge):
    """Their threads run at the same time; the way to the cache must not be ambient."""
    config = ContinuousBatchingConfig(page_size=4, num_blocks=600, max_batch_tokens=32)
    subjects = (llama, gemma)
    managers = [
        subject.paged.init_continuous_batching(continuous_batching_config=config)
        for subject in subjects
    ]
    try:
        for manager in managers:
            manager.start()
        ids = [
            manager.add_requests(subject.prompts, max_new_tokens=subject.max_new_tokens)
            for subject, manager in zip(subjects, managers, strict=True)
        ]
        for subject, manager, request_ids in zip(subjects, managers, ids, strict=True):
            outputs = [manager.get_result(request_id) for request_id in request_ids]
            judge(subject.compare([output for output in outputs if output is not None]))
    finally:
        for manager in managers:
            manager.destroy()


def test_managers_of_one_model_follow_one_another(llama, judge):
    for page_size in (4, 16):
        config = ContinuousBatchingConfig(page_size=page_size, num_blocks=600)
        with llama.paged.continuous_batching_context_manager(
            continuous_batching_config=config
        ) as manager:
            judge(llama.compare(llama.generate(manager)))


def test_a_kept_manager_answers_the_same_in_its_next_session(judge):
    model = make_family("qwen3")
    prompts = [[1, 2, 3, 4, 5, 6, 7, 8, 9], [9, 8, 7]]
    subject = Subject(model, prompts, 10, spare_tokens=0)
    config = ContinuousBatchingConfig(page_size=4, num_blocks=100)
    for is_second in (False, True):
        with subject.paged.continuous_batching_context_manager(
            continuous_batching_config=None if is_second else config, persistent_manager=True
        ) as manager:
            outputs = subject.generate(manager)
        judge(subject.compare(outputs))
        assert (outputs[0].num_cached_tokens > 0) == is_second
    subject.paged.destroy_cached_continuous_batching_manager()


def test_a_model_taken_over_twice_is_served_by_both(llama, judge):
    """The second wrap must find the model as it was."""
    again = engine.wrap(llama.hf_model)
    outputs = again.generate_batch(llama.prompts, max_new_tokens=llama.max_new_tokens)
    judge(llama.compare(list(outputs.values())))
