"""Several threads with one kept manager, and blocks that are left in the middle of it."""

import random
import time

import pytest

from engine import ContinuousBatchingConfig, EngineStoppingError, FinishReason
from tests.engine.control import control
from tests.engine.threads import Call, until

SMALL = ContinuousBatchingConfig(num_blocks=256, page_size=16, step_time_target=0.0)
PROMPTS = [[n, n + 1, n + 2] for n in range(6)]


@pytest.fixture
def kept(tiny_model):
    """A function that generates with the kept manager; it is given up when the test is over."""

    def generate(**options):
        given = {"continuous_batching_config": SMALL, "max_new_tokens": 10, "warmup": False}
        outputs = tiny_model.generate_batch(
            PROMPTS, persistent_manager=True, **{**given, **options}
        )
        return [output.generated_tokens for output in outputs.values()]

    yield generate
    tiny_model.destroy_cached_continuous_batching_manager()


def test_threads_that_generate_with_a_kept_manager_share_it(kept, tiny_model, cache_is_sound):
    """The first to come starts it, the last to go stops it, and nobody is turned away."""
    expected = kept()
    for _ in range(4):
        for call in [Call(kept) for _ in range(5)]:
            assert call.outcome() == expected
        assert not tiny_model.cached_manager.is_running()
        assert tiny_model.cached_manager.sessions.num_open == 0
    assert len(cache_is_sound.managers) == 1


def test_threads_that_come_first_at_once_make_one_manager(kept, cache_is_sound):
    calls = [Call(lambda: kept(warmup=True)) for _ in range(5)]
    results = [call.outcome() for call in calls]
    assert results == results[:1] * 5
    assert len(cache_is_sound.managers) == 1


def test_who_does_not_keep_it_ends_it_only_when_everybody_has_gone(kept, tiny_model):
    kept()
    manager = tiny_model.cached_manager
    with tiny_model.continuous_batching_context_manager(persistent_manager=True) as inner:
        assert inner is manager
        kept()
        tiny_model.generate_batch(PROMPTS, max_new_tokens=3)
        assert manager.is_running()
        assert tiny_model.cached_manager is manager
    assert tiny_model.cached_manager is manager, "one of them asked for it to be kept"
    tiny_model.generate_batch(PROMPTS, max_new_tokens=3)
    assert tiny_model.cached_manager is None


@pytest.mark.parametrize("seed", range(3))
def test_random_starts_stops_and_batches_end_and_are_right(seed, kept, tiny_model):
    """Who is turned away by somebody's stop is told so; nobody hangs or gets another's answer."""
    expected = kept()
    manager = tiny_model.cached_manager

    def work(number):
        source = random.Random(100 * seed + number)
        num_answered = 0
        for _ in range(6):
            way = source.choice(["batch", "batch", "start", "stop", "drain"])
            try:
                if way == "batch":
                    assert kept() == expected
                    num_answered += 1
                elif way == "start":
                    manager.start()
                else:
                    manager.stop(
                        hard_stop=False,
                        block=way == "drain",
                        keep_for_next_session=source.random() < 0.5,
                    )
            except EngineStoppingError:
                pass
        return num_answered

    assert sum(call.outcome() for call in [Call(work, number) for number in range(4)]) > 0
    manager.stop()
    until(lambda: not manager.is_running())
    assert kept() == expected


def test_a_start_during_a_stop_waits_for_its_end(controlled):
    manager, runner = controlled()
    runner.hold()
    manager.start()
    manager.add_request([1], "a", max_new_tokens=5)
    runner.wait_for_forward()
    manager.stop(block=False)
    starting = Call(manager.start)
    with pytest.raises(EngineStoppingError):
        manager.add_request([1])
    assert starting.is_alive()
    runner.go()
    starting.outcome()
    assert manager.takes_requests
    assert len(manager.get_result("a").generated_tokens) == 5
    manager.add_request([1], "a", max_new_tokens=3)
    assert len(manager.get_result("a").generated_tokens) == 3
    manager.stop()


def test_a_start_during_a_stop_inside_ones_own_pause_is_refused(make_manager):
    manager = make_manager()
    manager.start()
    with manager.pause():
        Call(lambda: manager.stop(block=False)).outcome()
        with pytest.raises(RuntimeError, match="own pause"):
            manager.start()
    manager.join(time.perf_counter())


def test_a_start_during_a_warm_up_waits_for_its_end(controlled):
    """Two threads would turn one loop."""
    manager, runner = controlled()
    runner.hold()
    warming = Call(manager.warmup)
    runner.wait_for_forward()
    starting = Call(manager.start)
    second = Call(manager.warmup)
    starting.join(0.02)
    assert starting.is_alive()
    assert not manager.is_running()
    runner.go()
    for call in (warming, starting, second):
        call.outcome()
    assert manager.warmed_up
    manager.stop()


def test_whoever_wants_the_cache_kept_is_enough(make_manager):
    manager = make_manager()
    manager.start()
    with manager.pause():
        for keep in (True, False):
            Call(lambda keep=keep: manager.stop(block=False, keep_for_next_session=keep)).outcome()
    manager.join(time.perf_counter())
    assert manager._thread.loop is not None


def test_a_stop_after_a_destroy_keeps_nothing(make_manager, tiny_model):
    manager = make_manager()
    manager.start()
    manager.destroy()
    manager.stop(keep_for_next_session=True)
    assert tiny_model.cached_manager is None


class LeftError(Exception):
    """What a test leaves a block with."""


@pytest.mark.parametrize("error", [LeftError, KeyboardInterrupt, SystemExit, GeneratorExit])
@pytest.mark.parametrize("keep", [True, False])
def test_a_block_that_raises_is_left_at_once(error, keep, tiny_model):
    """Its requests would be computed to their ends for nobody."""

    def leave():
        with tiny_model.continuous_batching_context_manager(
            continuous_batching_config=SMALL, persistent_manager=keep, warmup=False
        ) as manager:
            found.append((manager, control_while_paused(manager)))
            for name in "abc":
                manager.add_request([1], name, max_new_tokens=450)
            found[0][1].wait_for_forward(3)
            raise error

    found: list = []
    with pytest.raises(error):
        leave()
    manager, runner = found[0]
    assert not manager.is_running()
    assert runner.num_forwards < 450
    for name in "abc":
        output = manager.get_result(name)
        assert (output.finish_reason, len(output.generated_tokens) < 450) == (
            FinishReason.ERROR,
            True,
        )
    assert (tiny_model.cached_manager is manager) == keep
    tiny_model.destroy_cached_continuous_batching_manager()


def control_while_paused(manager):
    with manager.pause():
        return control(manager)


def test_a_block_that_raises_ends_nothing_of_others(kept, tiny_model):
    expected = kept()

    def leave():
        with tiny_model.continuous_batching_context_manager(persistent_manager=True) as inner:
            inner.add_request([1], "a", max_new_tokens=5)
            raise LeftError

    with tiny_model.continuous_batching_context_manager(persistent_manager=True) as manager:
        with pytest.raises(LeftError):
            leave()
        assert manager.takes_requests
        assert manager.get_result("a").finish_reason is FinishReason.LENGTH
        assert kept() == expected
