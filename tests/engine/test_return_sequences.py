"""Several answers to one prompt: what each draws, what they share, and what they cost the queue."""

import pytest
from transformers import GenerationConfig

from engine import (
    ContinuousBatchingConfig,
    DuplicateRequestError,
    FinishReason,
    InvalidRequestError,
    QueueFullError,
    RequestStatus,
)
from engine.request_ids import family_ids
from tests.engine.builders import make_request, make_scheduler
from tests.engine.checksum_model import ChecksumEngine, expected_answer
from tests.engine.scheduling import step
from tests.engine.soundness import check_scheduler

CONFIG = ContinuousBatchingConfig(num_blocks=64, page_size=4, max_batch_tokens=16)
PROMPT = list(range(40, 57))  # four blocks and one token


def fields(**changes):
    return ContinuousBatchingConfig(
        **{"num_blocks": 64, "page_size": 4, "max_batch_tokens": 16, **changes}
    )


@pytest.fixture
def generate(tiny_model):
    """`generate_batch` of sampled answers with a small cache."""

    def call(inputs, config=CONFIG, **options):
        return tiny_model.generate_batch(
            inputs,
            continuous_batching_config=config,
            **{"max_new_tokens": 8, "temperature": 3.0, "seed": 7, **options},
        )

    yield call
    tiny_model.destroy_cached_continuous_batching_manager()


def tokens(outputs):
    assert [output.error for output in outputs.values()] == [None] * len(outputs)
    return [output.generated_tokens for output in outputs.values()]


def alone(generate, prompt, count, **options):
    """What requests of their own answer that have the seeds of a family, in its order."""
    seeds = [7 + 1 + index for index in range(count - 1)] + [7]
    return [tokens(generate([prompt], **{**options, "seed": seed}))[0] for seed in seeds]


def test_the_results_stand_in_the_documented_order(generate):
    outputs = generate([PROMPT, [5]], num_return_sequences=3)
    assert list(outputs) == [
        *("req_0__child#0", "req_0__child#1", "req_0"),
        *("req_1__child#0", "req_1__child#1", "req_1"),
    ]
    assert [output.prompt_ids for output in outputs.values()] == [PROMPT] * 3 + [[5]] * 3


@pytest.mark.parametrize("prompt", [PROMPT, PROMPT[:16], PROMPT[:4], [3], [3, 4]], ids=len)
@pytest.mark.parametrize("page_size", [4, 16, 256])
def test_each_answer_is_as_if_it_were_asked_for_alone(generate, prompt, page_size):
    config = fields(page_size=page_size)
    expected = alone(generate, prompt, 4, config=config)
    assert len({tuple(answer) for answer in expected}) == 4
    assert tokens(generate([prompt], config=config, num_return_sequences=4)) == expected


@pytest.mark.parametrize(
    "config",
    [
        fields(allow_block_sharing=False),
        fields(num_blocks=12, safety_margin=0.0),
        fields(num_blocks=7, safety_margin=0.0),
        fields(max_requests_per_batch=2),
        fields(max_batch_tokens=3),
        fields(max_queue_size=4),
        fields(scheduler_type="prefill_first"),
    ],
    ids=["not shared", "small cache", "tiny cache", "two rows", "chunked", "queue", "prefill"],
)
def test_answers_do_not_depend_on_what_they_share(generate, config):
    expected = [answer for prompt in (PROMPT, PROMPT[1:9]) for answer in alone(generate, prompt, 4)]
    found = generate([PROMPT, PROMPT[1:9]], config=config, num_return_sequences=4)
    assert tokens(found) == expected


def test_greedy_answers_are_equal(generate):
    answers = tokens(generate([PROMPT], temperature=0.0, num_return_sequences=3))
    assert answers[0] == answers[1] == answers[2]


def test_the_generation_configuration_says_how_many(generate):
    config = GenerationConfig(do_sample=True, num_return_sequences=2, eos_token_id=None)
    assert len(generate([PROMPT], generation_config=config)) == 2
    assert len(generate([PROMPT], generation_config=config, num_return_sequences=1)) == 1


def test_the_manager_says_how_many(make_manager):
    manager = make_manager()
    manager.num_return_sequences = 2
    assert manager.num_return_sequences == 2
    manager.add_request([1, 2], "a", max_new_tokens=2)
    manager.start()
    assert {output.request_id for output in manager} == {"a", "a__child#0"}
    manager.stop()


@pytest.mark.parametrize("length", [2, 4, 5, 16, 17, 18, 30])
def test_the_prompt_is_computed_once(length):
    """The children compute its last token, whose logits they draw from, and no other."""
    scheduler = make_scheduler(num_blocks=64, page_size=4, max_batch_tokens=8)
    parent = make_request("p", list(range(1, length + 1)))
    children = [parent.make_child(name, parent.params) for name in ("c", "d")]
    for request in (parent, *children):
        scheduler.add(request)
    computed = dict.fromkeys("pcd", 0)
    engine = ChecksumEngine(scheduler, 500)
    while scheduler.has_requests():
        batch = scheduler.schedule_batch()
        for item in batch.scheduled:
            first = item.first_position
            computed[item.request.request_id] += len(
                range(first, min(item.num_context_tokens, length))
            )
        scheduler.update(batch, engine.compute(batch))
        check_scheduler(scheduler)
    assert computed == {"p": length, "c": 1, "d": 1}
    expected = expected_answer(parent.prompt_ids, parent.params, 500)
    assert [r.generated_tokens for r in (parent, *children)] == [expected] * 3
    assert [r.num_cached_tokens for r in (parent, *children)] == [0, length - 1, length - 1]


def test_full_blocks_are_shared_and_the_last_one_is_copied():
    scheduler = make_scheduler(num_blocks=16, page_size=4)
    parent = make_request("p", list(range(1, 11)))
    child = parent.make_child("c", parent.params)
    scheduler.add(parent)
    scheduler.add(child)
    step(scheduler)
    batch, _ = step(scheduler)
    assert child.block_ids[:2] == parent.block_ids[:2]
    assert [(copy.source, copy.destination, copy.num_slots) for copy in batch.block_copies] == [
        (parent.block_ids[2], child.block_ids[2], 1)
    ]


def test_a_child_waits_for_the_prompt_only_while_it_is_computed():
    scheduler = make_scheduler(max_batch_tokens=8)
    parent = make_request("p", list(range(1, 30)))
    child = parent.make_child("c", parent.params)
    scheduler.add(child)
    scheduler.add(parent)
    batch, _ = step(scheduler)
    assert [item.request for item in batch.scheduled] == [child]


def test_a_child_goes_on_alone_when_its_parent_ends():
    scheduler = make_scheduler(max_batch_tokens=8)
    parent = make_request("p", list(range(1, 30)))
    child = parent.make_child("c", parent.params)
    scheduler.add(parent)
    scheduler.add(child)
    step(scheduler)
    scheduler.fail(parent, ValueError("no"))
    batch, _ = step(scheduler)
    assert [item.request for item in batch.scheduled] == [child]


def test_a_child_is_cancelled_by_its_own_id(make_manager):
    manager = make_manager(max_requests_per_batch=1)
    manager.add_request([1, 2, 3], "a", max_new_tokens=5, num_return_sequences=3)
    manager.cancel_request("a__child#0")
    manager.start()
    ends = {output.request_id: output.finish_reason for output in manager}
    manager.stop()
    assert ends == {
        "a": FinishReason.LENGTH,
        "a__child#0": FinishReason.CANCELLED,
        "a__child#1": FinishReason.LENGTH,
    }


def test_all_answers_are_streamed(make_manager):
    manager = make_manager()
    manager.start()
    manager.add_request([1, 2], "a", max_new_tokens=5, streaming=True, num_return_sequences=2)
    streamed: dict[str, list[int]] = {name: [] for name in family_ids("a", 2)}
    for output in manager:
        streamed[output.request_id] += output.new_tokens
    manager.stop()
    assert {len(found) for found in streamed.values()} == {5}


def test_timestamps_are_each_answers_own(generate):
    outputs = generate([[1, 2]], record_timestamps=True, num_return_sequences=2)
    stamps = [output.timestamps for output in outputs.values()]
    assert [len(found) for found in stamps] == [8, 8]


def test_every_answer_takes_a_place_in_the_queue(make_manager):
    manager = make_manager(max_queue_size=4)
    manager.add_request([1], num_return_sequences=3)
    with pytest.raises(QueueFullError):
        manager.add_request([1], num_return_sequences=2)
    manager.add_request([1])
    with pytest.raises(InvalidRequestError, match="4 places") as caught:
        manager.add_request([1], num_return_sequences=5)
    assert caught.value.param == "num_return_sequences"
    manager.stop()
    assert {output.status for output in manager} <= {RequestStatus.FAILED}


def test_no_answer_is_accepted_if_one_has_an_id_in_use(make_manager):
    manager = make_manager(max_queue_size=8)
    manager.add_request([1], "a__child#1", max_new_tokens=2)
    with pytest.raises(DuplicateRequestError):
        manager.add_request([1], "a", max_new_tokens=2, num_return_sequences=3)
    manager.add_request([1], "a", max_new_tokens=2, num_return_sequences=2)
    manager.start()
    assert {output.request_id for output in manager} == {"a", "a__child#0", "a__child#1"}
    manager.stop()
