"""Results on their way out: get, iterate, stream, handle."""

import asyncio
import threading
import time

import pytest

from engine import RequestStatus
from tests.engine.threads import Call


@pytest.fixture
def manager(make_manager):
    manager = make_manager()
    manager.start()
    return manager


def test_streaming_delivers_one_cumulative_output_per_token(manager):
    manager.add_request([1, 2], "a", max_new_tokens=3, streaming=True)
    outputs = list(manager.request_id_iter("a"))
    assert [len(output.generated_tokens) for output in outputs] == [1, 2, 3]
    assert [output.status for output in outputs] == [
        RequestStatus.DECODING,
        RequestStatus.DECODING,
        RequestStatus.FINISHED,
    ]
    joined = [token for output in outputs for token in output.new_tokens]
    assert joined == outputs[-1].generated_tokens
    assert outputs[0].generated_tokens == joined[:1]


def test_without_streaming_there_is_one_output(manager):
    manager.add_request([1, 2], "a", max_new_tokens=3)
    (output,) = manager.request_id_iter("a")
    assert len(output.generated_tokens) == len(output.new_tokens) == 3


def test_streaming_and_quiet_requests_run_side_by_side(manager):
    for number in range(4):
        manager.add_request([7, 8], f"r{number}", max_new_tokens=5, streaming=number % 2 == 0)
    seen: dict[str, list[int]] = {}
    for output in manager:
        seen.setdefault(output.request_id, []).append(len(output.generated_tokens))
    assert seen == {"r0": [1, 2, 3, 4, 5], "r1": [5], "r2": [1, 2, 3, 4, 5], "r3": [5]}


def test_a_stream_goes_on_where_it_was_after_a_preemption(make_manager):
    manager = make_manager(num_blocks=4, page_size=4, safety_margin=0.0)
    for name in "abc":
        manager.add_request([ord(name)] * 3, name, max_new_tokens=12, streaming=True)
    manager.start()
    lengths: dict[str, list[int]] = {}
    preemptions = 0
    for output in manager:
        lengths.setdefault(output.request_id, []).append(len(output.generated_tokens))
        preemptions += output.num_preemptions
    assert lengths == {name: list(range(1, 13)) for name in "abc"}
    assert preemptions > 0


def test_a_filtered_get_leaves_the_others_in_order(manager):
    ids = [manager.add_request([n], max_new_tokens=2, streaming=True) for n in range(3)]
    last = list(manager.request_id_iter(ids[2]))
    assert {output.request_id for output in last} == {ids[2]}
    others = list(manager)
    for name in ids[:2]:
        lengths = [len(o.generated_tokens) for o in others if o.request_id == name]
        assert lengths == [1, 2]


@pytest.mark.parametrize("request_id", [None, "a"])
def test_a_get_gives_up_after_its_timeout(controlled, request_id):
    manager, runner = controlled()
    runner.hold()
    manager.start()
    manager.add_request([1], "a", max_new_tokens=1)
    began = time.monotonic()
    assert manager.get_result(request_id, timeout=0.05) is None
    assert 0.05 <= time.monotonic() - began < 5


def test_a_get_for_a_request_that_is_not_there_returns_at_once(manager):
    assert manager.get_result("unknown") is None
    manager.add_request([1], "a", max_new_tokens=1)
    assert manager.get_result("a") is not None
    assert manager.get_result("a") is None


def test_nothing_is_waited_for_from_an_engine_that_does_not_run(make_manager):
    manager = make_manager()
    manager.add_request([1], "a")
    assert manager.get_result() is None
    assert manager.get_result("a") is None
    assert list(manager) == []
    assert list(manager.request_id_iter("a")) == []
    manager.stop()


def test_results_are_there_after_a_stop(manager):
    manager.add_request([1], "a", max_new_tokens=1)
    manager.stop()
    assert manager.get_result("a").request_id == "a"
    assert manager.get_result() is None


def test_iterating_an_idle_engine_ends(manager):
    assert list(manager) == []


def test_iteration_ends_when_every_request_has(manager):
    """The reference's never does."""
    ids = manager.add_requests([[n] for n in range(5)], max_new_tokens=2)
    assert sorted(output.request_id for output in manager) == sorted(ids)
    assert list(manager) == []


def test_two_threads_may_iterate_and_share_the_outputs(manager):
    ids = manager.add_requests([[n] for n in range(20)], max_new_tokens=4)
    calls = [Call(lambda: list(manager)) for _ in range(2)]
    outputs = [output for call in calls for output in call.outcome()]
    assert sorted(output.request_id for output in outputs) == sorted(ids)


def test_a_waiting_get_is_told_that_the_engine_stopped(manager):
    call = Call(manager.get_result)
    call.join(0.02)
    assert call.is_alive()
    manager.stop()
    assert call.outcome() is None


def test_timestamps_are_recorded_per_token_when_asked_for(manager):
    began = time.perf_counter()
    manager.add_request([1], "timed", max_new_tokens=4, record_timestamps=True)
    manager.add_request([1], "not", max_new_tokens=4)
    outputs = {output.request_id: output for output in manager}
    stamps = outputs["timed"].timestamps
    assert len(stamps) == 4
    assert stamps == sorted(stamps)
    assert began <= outputs["timed"].created_time <= stamps[0]
    started, ended = outputs["timed"].lifespan
    assert began <= started <= stamps[0] <= stamps[-1] <= ended <= time.perf_counter()
    assert outputs["not"].timestamps is None


def test_timestamps_outlive_a_preemption(make_manager):
    manager = make_manager(num_blocks=4, page_size=4, safety_margin=0.0)
    for name in "abc":
        manager.add_request([ord(name)] * 3, name, max_new_tokens=12, record_timestamps=True)
    manager.start()
    outputs = list(manager)
    assert [len(output.timestamps or []) for output in outputs] == [12, 12, 12]
    assert sum(output.num_preemptions for output in outputs) > 0


def test_logprobs_are_reported_when_configured(make_manager):
    manager = make_manager(return_logprobs=True)
    manager.start()
    manager.add_request([1], "a", max_new_tokens=3)
    output = manager.get_result("a")
    assert len(output.logprobs) == 3
    assert all(logprob <= 0 for logprob in output.logprobs)


def test_what_came_from_the_cache_is_reported(manager):
    prompt = list(range(40))
    for name, cached in (("first", 0), ("second", 39)):
        manager.add_request(prompt, name, max_new_tokens=2)
        assert manager.get_result(name).num_cached_tokens == cached


async def collect(manager, name, prompt, **options):
    """Handle a request on the running loop; return its outputs and the threads they came on."""
    outputs, threads, ended = [], set(), asyncio.Event()

    def handle(output):
        outputs.append(output)
        threads.add(threading.current_thread())
        if output.is_finished():
            ended.set()

    manager.register_result_handler(name, handle)
    manager.add_request(prompt, name, **options)
    await asyncio.wait_for(ended.wait(), 20)
    assert threads == {threading.current_thread()}
    return outputs


async def test_a_handler_registered_before_the_request_misses_nothing(manager):
    for number in range(20):
        outputs = await collect(manager, f"r{number}", [1, 2], max_new_tokens=3, streaming=True)
        assert [len(output.generated_tokens) for output in outputs] == [1, 2, 3]
    assert manager.get_result(timeout=0) is None


async def test_a_handler_may_use_the_id_again_at_once(manager):
    """Its terminal output says that the request has ended, so its id must be free."""
    for _ in range(200):
        await collect(manager, "same", [1], max_new_tokens=1)


def test_handlers_on_two_loops_get_their_own(manager):
    async def many(prefix):
        names = [f"{prefix}{number}" for number in range(8)]
        return await asyncio.gather(
            *(collect(manager, name, [3], max_new_tokens=4, streaming=True) for name in names)
        )

    calls = [Call(asyncio.run, many(prefix)) for prefix in "ab"]
    for call in calls:
        for outputs in call.outcome():
            assert [len(output.generated_tokens) for output in outputs] == [1, 2, 3, 4]


async def test_a_handler_is_told_of_a_cancellation(manager):
    outputs, ended = [], asyncio.Event()

    def handle(output):
        outputs.append(output)
        if output.is_finished():
            ended.set()
        elif len(outputs) == 1:
            manager.cancel_request("a")

    manager.register_result_handler("a", handle)
    manager.add_request([1], "a", max_new_tokens=400, streaming=True)
    await asyncio.wait_for(ended.wait(), 20)
    assert outputs[-1].status is RequestStatus.CANCELLED
    assert len(outputs[-1].generated_tokens) < 400


async def test_a_handler_of_a_refused_request_can_be_taken_back(manager):
    manager.register_result_handler("a", print)
    with pytest.raises(ValueError, match="input_ids"):
        manager.add_request([], "a")
    manager.unregister_result_handler("a")
    assert manager._router.num_handlers == 0
