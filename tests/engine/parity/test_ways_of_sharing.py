"""Swapped, forked and out of turn: the tokens are those that `model.generate` gives alone."""

import random
from typing import Any

import pytest

from engine import ContinuousBatchingConfig, GenerationOutput, PagedModel
from engine.request_ids import family_ids
from tests.engine.parity.comparison import Parity, compare
from tests.engine.parity.subject import Subject

PAGE_SIZE = 4
NUM_ANSWERS = 3
# Name -> (fields of the configuration, whether the cache is small, priorities, answers).
WAYS: dict[str, tuple[dict[str, Any], bool, bool, int]] = {
    "swapped": ({"cpu_offload_space": 0.5}, True, False, 1),
    "by priority": ({"scheduler_type": "priority"}, False, True, 1),
    "forked": ({}, False, False, NUM_ANSWERS),
    "forked without sharing": ({"allow_block_sharing": False}, False, False, NUM_ANSWERS),
    "forked and swapped": ({"cpu_offload_space": 0.5}, True, False, NUM_ANSWERS),
    "all at once": (
        {"cpu_offload_space": 0.5, "scheduler_type": "priority"}, True, True, NUM_ANSWERS,
    ),
}  # fmt: skip


def run(model: PagedModel, subject: Subject, way: str, chunk: int) -> Parity:
    """Run all prompts together in one way; compare every answer with the oracle's."""
    fields, is_small, has_priorities, num_answers = WAYS[way]
    longest = max(len(prompt) for prompt in subject.prompts) + subject.max_new_tokens
    num_blocks = -(-longest // PAGE_SIZE)
    config = ContinuousBatchingConfig(
        page_size=PAGE_SIZE,
        num_blocks=num_blocks + (12 if is_small else 40 * num_blocks),
        max_batch_tokens=chunk,
        max_requests_per_batch=min(chunk, 24),
        safety_margin=0.0 if is_small else None,
        **fields,
    )
    source = random.Random(3)

    def options() -> dict[str, Any]:
        return {"priority": source.randint(-1, 2)} if has_priorities else {}

    with model.continuous_batching_context_manager(continuous_batching_config=config) as manager:
        parents = [
            manager.add_request(
                prompt,
                max_new_tokens=subject.max_new_tokens,
                num_return_sequences=num_answers,
                **options(),
            )
            for prompt in subject.prompts
        ]
        parity = Parity()
        families = [[manager.get_result(n) for n in family_ids(p, num_answers)] for p in parents]
        statistics = manager.statistics()
        assert statistics.num_free_blocks == statistics.num_blocks
        assert (statistics.num_swapped_in > 0) == (is_small and "cpu_offload_space" in fields)
    for answers in zip(*families, strict=True):
        outputs: list[GenerationOutput] = [output for output in answers if output is not None]
        parity.merge(compare(subject.hf_model, subject.prompts, subject.references, outputs))
    return parity


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_tokens_equal_generate(family, way, subjects, judge):
    subject = subjects(family)
    judge(run(subject.paged, subject, way, chunk=32))


@pytest.mark.long
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("family", ["qwen3", "mixtral", "gpt_oss", "gemma2", "gpt_neox", "phi3"])
def test_tokens_of_more_families_equal_generate(family, way, subjects, judge):
    subject = subjects(family)
    judge(run(subject.paged, subject, way, chunk=24))


@pytest.fixture(scope="module")
def default_subject(default_model) -> Subject:
    return default_model.subject([5, 33, 16, 48], 8, spare_tokens=0)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("way", ["all at once"])
def test_tokens_of_the_default_model_equal_generate(way, default_subject, judge):
    judge(run(default_subject.paged, default_subject, way, chunk=64))


@pytest.mark.long
@pytest.mark.parametrize("way", WAYS)
def test_tokens_of_the_default_model_equal_generate_in_every_way(way, default_subject, judge):
    judge(run(default_subject.paged, default_subject, way, chunk=64))
