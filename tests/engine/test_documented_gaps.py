"""What the documented API promises and its reference leaves untested, a test for each.

Several of these end or hang the reference: a cancellation without an answer, a duplicate id, a
request that outgrows the cache, an engine whose death nobody is told of.
"""

import asyncio
import threading

import pytest

from engine import (
    DuplicateRequestError,
    EngineDeadError,
    FinishReason,
    InvalidRequestError,
    PromptTooLongError,
    QueueFullError,
    RequestStatus,
    WorkloadHints,
)
from tests.engine.control import loop_of
from tests.engine.threads import Call, until


@pytest.fixture
def manager(make_manager):
    manager = make_manager()
    manager.start()
    yield manager
    if manager.is_running():
        manager.stop(hard_stop=True)


def test_cancel_and_its_acknowledgement(manager):
    manager.add_request([1], "a", max_new_tokens=400)
    waiting = Call(manager.get_result, "a")
    manager.cancel_request("a")
    assert waiting.outcome().status is RequestStatus.CANCELLED


def test_max_queue_size(controlled):
    manager, runner = controlled(max_queue_size=2, max_requests_per_batch=1)
    runner.hold()
    manager.start()
    manager.add_request([0], max_new_tokens=2)
    runner.wait_for_forward()
    for number in (1, 2):
        manager.add_request([number], max_new_tokens=2)
    with pytest.raises(QueueFullError) as refusal:
        manager.add_request([3])
    assert refusal.value.num_waiting == 2
    runner.go()
    assert len(list(manager)) == 3
    manager.stop()


def test_record_timestamps_also_after_a_preemption(make_manager):
    manager = make_manager(num_blocks=4, safety_margin=0.0)
    ids = [manager.add_request([n, n], max_new_tokens=40, record_timestamps=True) for n in range(4)]
    manager.start()
    outputs = {output.request_id: output for output in manager}
    assert sum(output.num_preemptions for output in outputs.values()) > 0
    for name in ids:
        assert len(outputs[name].timestamps) == 40
        assert outputs[name].timestamps == sorted(outputs[name].timestamps)
    manager.stop()


def test_persistent_manager_reuse(tiny_model):
    options = {"max_new_tokens": 4, "persistent_manager": True}
    first = tiny_model.generate_batch([[1, 2, 3]], **options)
    kept = tiny_model.cached_manager
    second = tiny_model.generate_batch([[1, 2, 3]], **options)
    assert tiny_model.cached_manager is kept
    assert [*first] == ["req_0"]
    assert [*second] == ["req_1"], "ids go on where they were"
    tokens = [[o.generated_tokens for o in found.values()] for found in (first, second)]
    assert tokens[0] == tokens[1]
    tiny_model.destroy_cached_continuous_batching_manager()


@pytest.mark.parametrize("options", [{}, {"timeout": 0.001}, {"block": False}], ids=str)
def test_stop_and_start_again(manager, options):
    for _ in range(3):
        manager.add_request([1], "a", max_new_tokens=50)
        manager.stop(**options)
        until(lambda: not manager.is_running())
        assert len(manager.get_result("a").generated_tokens) == 50
        manager.start()


def test_hard_stop_outputs(controlled):
    """What ran keeps its tokens, what waited has none; each gets its one terminal output."""
    manager, runner = controlled(max_requests_per_batch=1)
    for name in "ab":
        manager.add_request([1], name, max_new_tokens=400)
    runner.allow(3)
    manager.start()
    runner.wait_for_forward(4)
    manager.stop(hard_stop=True, block=False)
    runner.go()
    manager.join(0.0)
    ran, waited = manager.get_result("a"), manager.get_result("b")
    assert ran.status is waited.status is RequestStatus.FAILED
    assert len(ran.generated_tokens) >= 3
    assert waited.generated_tokens == []
    assert manager.get_result() is None


def test_get_result_filtering_order_and_timeouts(manager):
    manager.add_request([1], "a", max_new_tokens=5, streaming=True)
    manager.add_request([2], "b", max_new_tokens=5, streaming=True)
    until(lambda: manager.statistics().num_live == 0)
    assert [len(manager.get_result("b").generated_tokens) for _ in range(5)] == [1, 2, 3, 4, 5]
    assert [len(manager.get_result().generated_tokens) for _ in range(5)] == [1, 2, 3, 4, 5]
    assert manager.get_result("a", timeout=5.0) is None  # at once: it cannot come


def test_duplicate_ids(manager):
    manager.add_request([1], "a", max_new_tokens=300)
    with pytest.raises(DuplicateRequestError):
        manager.add_request([2], "a")
    assert manager.get_result("a").prompt_ids == [1]
    manager.add_request([2], "a", max_new_tokens=1)
    assert manager.get_result("a").prompt_ids == [2]


def test_over_long_prompt(manager):
    limit = manager.resolved_config.max_model_tokens
    with pytest.raises(PromptTooLongError):
        manager.add_request([1] * limit)
    with pytest.raises(PromptTooLongError):
        manager.add_request([1] * (limit - 5), max_new_tokens=6)
    manager.add_request([1] * (limit - 5), "a", max_new_tokens=5)
    assert manager.get_result("a").finish_reason is FinishReason.LENGTH


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"temperature": -1.0}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": 1.5}, "top_p"),
        ({"top_k": -3}, "top_k"),
        ({"top_k": 0.5}, "top_k"),
        ({"max_new_tokens": 0}, "max_new_tokens"),
        ({"beams": 3}, "beams"),
    ],
    ids=str,
)
def test_bad_logit_kwargs_and_ranges(manager, options, param):
    with pytest.raises(InvalidRequestError) as refusal:
        manager.add_request([1], **options)
    assert refusal.value.param == param


def test_values_at_the_edge_of_their_ranges(manager):
    """Temperature 0 and a top_k beyond the vocabulary end the reference's engine."""
    for options in ({"temperature": 0.0}, {"do_sample": True, "top_k": 10_000}):
        manager.add_request([1], "a", max_new_tokens=3, **options)
        assert len(manager.get_result("a").generated_tokens) == 3


def test_seed_reproducibility(make_manager):
    """The same seeds give the same tokens, alone or in a crowd."""
    answers = []
    for crowd in (0, 9):
        manager = make_manager(seed=7)
        manager.start()
        manager.add_request([1], "a", max_new_tokens=20, do_sample=True, seed=3)
        manager.add_requests([[n] for n in range(crowd)], max_new_tokens=20, do_sample=True)
        answers.append(manager.get_result("a").generated_tokens)
        manager.stop(hard_stop=True)
    assert answers[0] == answers[1]


def test_prefill_first(make_manager):
    answers = []
    for kind in ("fifo", "prefill_first"):
        manager = make_manager(scheduler_type=kind, max_batch_tokens=16)
        ids = manager.add_requests([list(range(n, n + 40)) for n in range(6)], max_new_tokens=8)
        manager.start()
        answers.append([manager.get_result(name).generated_tokens for name in ids])
        manager.stop()
    assert answers[0] == answers[1]


def test_workload_hints(tiny_model):
    hints = WorkloadHints(max_prompt_length=9, max_generated_length=5, num_requests=3)
    manager = tiny_model.init_continuous_batching(workload_hints=hints)
    assert manager.resolved_config.max_requests_per_batch == 3
    manager.destroy()


def test_concurrent_submitters(manager):
    def submit(start):
        return [manager.add_request([start + n], max_new_tokens=3) for n in range(25)]

    ids = [name for call in [Call(submit, 25 * k) for k in range(6)] for name in call.outcome()]
    assert len(set(ids)) == 150
    outputs = {name: manager.get_result(name) for name in ids}
    assert {output.finish_reason for output in outputs.values()} == {FinishReason.LENGTH}


def test_handlers_on_two_loops(manager):
    """Each is called on its own loop, in its own thread."""

    async def collect(name):
        outputs: asyncio.Queue = asyncio.Queue()
        threads = set()

        def handle(output):
            threads.add(threading.get_ident())
            outputs.put_nowait(output)

        manager.register_result_handler(name, handle)
        manager.add_request([1], name, max_new_tokens=30, streaming=True)
        count = 0
        while not (await outputs.get()).is_finished():
            count += 1
        assert threads == {threading.get_ident()}
        return count + 1

    calls = [Call(asyncio.run, collect(name)) for name in "ab"]
    assert [call.outcome() for call in calls] == [30, 30]


def test_engine_death_visibility(controlled):
    manager, runner = controlled()
    runner.hold()
    manager.start()
    manager.add_request([1], "a", max_new_tokens=5)
    runner.wait_for_forward()
    cause = KeyError("our own mistake")

    def broken(*args):
        raise cause

    loop = loop_of(manager)
    loop.restarts.max_restarts = 0
    loop.scheduler.update = broken  # type: ignore[method-assign]
    runner.go()
    output = manager.get_result("a")
    assert isinstance(output.exception, EngineDeadError)
    assert output.exception.__cause__ is manager.fatal_error is cause
    with pytest.raises(EngineDeadError):
        manager.add_request([1])
    assert manager.get_result() is None


def test_unlimited_max_new_tokens(make_manager):
    """Without a limit an answer ends with the context or the cache; others go on."""
    manager = make_manager(num_blocks=6, page_size=16)
    manager.add_request([1, 2, 3], "a")
    manager.add_request([4], "b", max_new_tokens=3)
    manager.start()
    output = manager.get_result("a")
    assert output.finish_reason is FinishReason.LENGTH
    # The last token is drawn and not computed: nothing follows it.
    assert 3 + len(output.generated_tokens) == manager.resolved_config.max_model_tokens
    assert len(manager.get_result("b").generated_tokens) == 3
    manager.stop()


def test_cancel_all_after_a_preemption(make_manager):
    """The queue must not stay blocked when those it was blocked for are gone."""
    manager = make_manager(num_blocks=4, safety_margin=0.0)
    ids = manager.add_requests([[n, n] for n in range(6)], max_new_tokens=60)
    manager.start()
    until(lambda: manager.statistics().num_preemptions > 0)
    for name in ids:
        manager.cancel_request(name)
    manager.add_request([9], "next", max_new_tokens=3)
    assert len(manager.get_result("next").generated_tokens) == 3
    manager.stop()
