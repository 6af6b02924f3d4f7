"""Starting, stopping, keeping, destroying: what each allows next, and who is told."""

import logging
import os
import sys
import threading
import time

import pytest

from engine import EngineDeadError, EngineStoppingError, FinishReason
from tests.engine.control import loop_of
from tests.engine.threads import Call, until


def answer(manager, prompt=(1, 2, 3), **options):
    """Return the output of one request."""
    name = manager.add_request(list(prompt), **{"max_new_tokens": 3, **options})
    return manager.get_result(name)


def test_a_manager_runs_from_start_to_stop(make_manager):
    manager = make_manager()
    assert not manager.is_running()
    manager.start()
    assert manager.is_running()
    manager.stop()
    assert not manager.is_running()
    assert manager.fatal_error is None


def test_starting_twice_warns_and_changes_nothing(make_manager, caplog):
    manager = make_manager()
    manager.start()
    thread = manager._thread._threads[0]
    with caplog.at_level(logging.WARNING):
        manager.start()
    assert "runs already" in caplog.text
    assert manager._thread._threads == [thread]


def test_a_stopped_manager_refuses_until_it_is_started_again(make_manager):
    manager = make_manager()
    manager.start()
    first = answer(manager)
    manager.stop()
    with pytest.raises(EngineStoppingError):
        manager.add_request([1])
    manager.start()
    assert answer(manager).generated_tokens == first.generated_tokens


def test_stopping_what_does_not_run_warns(make_manager, caplog):
    manager = make_manager()
    with caplog.at_level(logging.WARNING):
        manager.stop()
        manager.stop()
    assert "does not run" in caplog.text
    manager.start()
    assert answer(manager).finish_reason is FinishReason.LENGTH


def test_a_stop_gives_the_cache_back_unless_it_is_kept(make_manager):
    manager = make_manager()
    manager.start()
    manager.stop()
    assert manager._thread.loop is None
    manager.start()
    manager.stop(keep_for_next_session=True)
    assert manager._thread.loop is not None


def test_a_kept_manager_is_used_again_with_its_prefixes(make_manager, tiny_model):
    manager = make_manager()
    manager.start()
    prompt = list(range(40))
    assert answer(manager, prompt).num_cached_tokens == 0
    manager.stop(keep_for_next_session=True)
    assert tiny_model.init_continuous_batching() is manager
    manager.start()
    assert answer(manager, prompt).num_cached_tokens == 39
    manager.destroy()
    assert tiny_model.cached_manager is None


def test_a_stop_that_was_not_kept_forgets_the_prefixes(make_manager):
    manager = make_manager()
    for _ in range(2):
        manager.start()
        assert answer(manager, range(40)).num_cached_tokens == 0
        manager.stop()


def test_a_stop_need_not_wait(controlled):
    manager, runner = controlled()
    runner.hold()
    manager.start()
    manager.add_request([1], "a", max_new_tokens=3)
    runner.wait_for_forward()
    manager.stop(block=False)
    assert manager.is_running()
    runner.go()
    until(lambda: not manager.is_running())
    assert manager.get_result("a").finish_reason is FinishReason.LENGTH


def test_a_stop_whose_time_is_up_goes_on_draining(controlled, caplog):
    """The reference fails everything in flight then."""
    manager, runner = controlled()
    runner.hold()
    manager.start()
    manager.add_request([1], "a", max_new_tokens=20)
    runner.wait_for_forward()
    began = time.monotonic()
    with caplog.at_level(logging.WARNING):
        manager.stop(timeout=0.05)
    assert time.monotonic() - began < 5
    assert "has not stopped after" in caplog.text
    assert manager.is_running()
    runner.go()
    manager.join(time.perf_counter())
    output = manager.get_result("a")
    assert (output.finish_reason, len(output.generated_tokens)) == (FinishReason.LENGTH, 20)


def test_an_idle_engine_stops_at_once(make_manager):
    manager = make_manager()
    manager.start()
    began = time.monotonic()
    manager.stop()
    assert time.monotonic() - began < 2


def test_a_destroyed_manager_cannot_be_started(make_manager):
    manager = make_manager()
    manager.start()
    manager.destroy()
    manager.destroy()
    with pytest.raises(RuntimeError, match="destroyed"):
        manager.start()
    with pytest.raises(EngineStoppingError):
        manager.add_request([1])
    assert manager.statistics().num_blocks == 0


def test_many_threads_may_stop_at_once(make_manager):
    """Only one of them may end what was never started; two would end a request twice."""
    for _ in range(20):
        manager = make_manager()
        ids = manager.add_requests([[n] for n in range(10)])
        begin = threading.Barrier(4)
        stops = [Call(lambda m=manager, b=begin: (b.wait(), m.stop())) for _ in range(4)]
        for call in stops:
            call.outcome()
        ended = [manager.get_result(timeout=0).request_id for _ in ids]
        assert sorted(ended) == sorted(ids)
        assert manager.get_result(timeout=0) is None
        assert manager.fatal_error is None


def test_starting_and_stopping_at_once_leaves_no_request_behind(make_manager):
    for _ in range(20):
        manager = make_manager()
        manager.add_request([1], "a", max_new_tokens=1)
        begin = threading.Barrier(2)
        calls = [
            Call(lambda m=manager, b=begin: (b.wait(), m.start())),
            Call(lambda m=manager, b=begin: (b.wait(), m.stop())),
        ]
        for call in calls:
            call.outcome()
        manager.stop()
        assert manager.get_result("a").is_finished()


def test_warming_up_delivers_nothing_and_leaves_no_request(make_manager):
    manager = make_manager()
    assert not manager.warmed_up
    manager.warmup()
    assert manager.warmed_up
    statistics = manager.statistics()
    assert (statistics.num_live, statistics.num_free_blocks) == (0, 64)
    manager.start()
    answer(manager)
    assert manager.get_result(timeout=0) is None


def test_warming_up_with_the_smallest_cache(make_manager):
    manager = make_manager(num_blocks=2, page_size=4, max_batch_tokens=1)
    manager.warmup()
    manager.start()
    assert answer(manager).finish_reason is FinishReason.LENGTH


def test_a_running_engine_is_not_warmed_up(make_manager, caplog):
    manager = make_manager()
    manager.start()
    with caplog.at_level(logging.WARNING):
        manager.warmup()
    assert "before start()" in caplog.text
    assert not manager.warmed_up


def test_a_warm_up_that_raises_leaves_an_engine_that_works(controlled):
    manager, runner = controlled()
    runner.poison = 0  # the first token of the warm-up's prompt
    with pytest.raises(ValueError, match="poison"):
        manager.warmup()
    assert not manager.warmed_up
    manager.start()
    assert answer(manager).finish_reason is FinishReason.LENGTH


def test_a_dead_engine_is_visible_to_every_waiter(controlled):
    manager, runner = controlled(max_queue_size=1, max_requests_per_batch=1)
    runner.hold()
    manager.start()
    manager.add_request([1], "a", max_new_tokens=9)
    runner.wait_for_forward()
    manager.add_request([2], "b")
    for_ids = [Call(manager.get_result, name) for name in "ab"]
    in_turn = Call(manager.add_requests, [[3]])
    pausing = Call(manager.pause().__enter__)
    until(lambda: len(manager._pause._holds) == 1)
    cause = kill(manager)
    runner.go()
    for call in for_ids:
        error = call.outcome().exception
        assert isinstance(error, EngineDeadError)
        assert error.__cause__ is cause
        # Whoever is told looks at the manager next.
        assert manager.fatal_error is cause
    with pytest.raises((EngineDeadError, EngineStoppingError)):
        in_turn.outcome()
    with pytest.raises(RuntimeError, match="ended while a pause waited") as caught:
        pausing.outcome()
    assert caught.value.__cause__ is cause
    with pytest.raises(EngineDeadError) as refused:
        manager.add_request([1])
    assert refused.value.__cause__ is cause
    assert manager.get_result() is None
    assert list(manager) == []


def test_whoever_waits_for_anything_is_told_of_the_death(controlled):
    manager, runner = controlled()
    runner.hold()
    manager.start()
    manager.add_request([1], "a")
    runner.wait_for_forward()
    for_any = [Call(manager.get_result) for _ in range(3)]
    iterating = Call(list, manager)
    kill(manager)
    runner.go()
    outputs = [call.outcome() for call in for_any] + iterating.outcome()
    told = [output for output in outputs if output is not None]
    assert [type(output.exception) for output in told] == [EngineDeadError]


def test_a_dead_engine_can_be_started_again(controlled):
    manager, runner = controlled()
    runner.hold()
    manager.start()
    manager.add_request([1], "a")
    runner.wait_for_forward()
    kill(manager)
    runner.go()
    assert isinstance(manager.get_result("a").exception, EngineDeadError)
    until(lambda: not manager.is_running())
    with pytest.raises(EngineDeadError, match="our own mistake"):
        manager.add_request([1])
    manager.start()
    assert manager.fatal_error is None
    assert answer(manager).finish_reason is FinishReason.LENGTH


def kill(manager):
    """Break the scheduler, so that the step that runs is the last; return the cause."""
    loop_of(manager).restarts.max_restarts = 0
    cause = KeyError("our own mistake")

    def broken(*args):
        raise cause

    loop_of(manager).scheduler.update = broken  # type: ignore[method-assign]
    return cause


@pytest.mark.skipif(sys.platform != "linux", reason="threads have priorities of their own on Linux")
def test_the_engine_stands_back_behind_the_threads_of_its_callers(make_manager):
    own = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    for niceness in (0, 3, 19):
        manager = make_manager(thread_niceness=niceness)
        for _ in range(2):
            manager.start()
            assert answer(manager) is not None
            thread = manager._thread._threads[0].native_id
            assert os.getpriority(os.PRIO_PROCESS, thread) == min(own + niceness, 19)
            manager.stop()
        assert os.getpriority(os.PRIO_PROCESS, threading.get_native_id()) == own
