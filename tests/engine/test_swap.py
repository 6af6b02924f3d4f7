"""Preempted requests that are swapped to the host: same answers, less computed, nothing left."""

import pytest

from engine.requests import FinishReason
from tests.engine.builders import make_scheduler
from tests.engine.checksum_model import ChecksumEngine, expected_answer
from tests.engine.control import loop_of
from tests.engine.scheduling import distinct, share, started, step
from tests.engine.soundness import check_idle

VOCAB = 50
PROMPTS = [[first, *range(40 + first)] for first in range(6)]


def crowded(kind="fifo", num_host_blocks=100, sharing=False):
    """An engine in which the newest of three requests has to give way."""
    scheduler = make_scheduler(
        num_blocks=7, kind=kind, sharing=sharing, num_host_blocks=num_host_blocks
    )
    engine = ChecksumEngine(scheduler, VOCAB)
    requests = [distinct(name, 6, max_new_tokens=14) for name in "abc"]
    for request in requests:
        scheduler.add(request)
    return engine, requests


def run(engine):
    num_tokens = 0
    while engine.scheduler.has_requests():
        batch = engine.scheduler.schedule_batch()
        num_tokens += batch.num_tokens
        engine.scheduler.update(batch, engine.compute(batch))
    check_idle(engine.scheduler)
    return num_tokens


@pytest.mark.parametrize("kind", ["fifo", "prefill_first", "priority"])
@pytest.mark.parametrize("sharing", [True, False])
def test_swapped_requests_go_on_where_they_were(kind, sharing):
    engine, requests = crowded(kind, sharing=sharing)
    num_tokens = run(engine)
    scheduler = engine.scheduler
    assert scheduler.num_swapped_out == scheduler.num_preemptions > 0
    assert scheduler.num_swapped_in > 0
    for request in requests:
        assert request.generated_tokens == expected_answer(
            request.prompt_ids, request.params, VOCAB
        )
    # Nothing is computed twice: every position but each request's last, once.
    assert num_tokens == sum(request.num_tokens - 1 for request in requests)


def test_without_a_buffer_preempted_requests_are_computed_again():
    engine, requests = crowded(num_host_blocks=0)
    assert run(engine) > sum(request.num_tokens - 1 for request in requests)
    assert (engine.scheduler.num_swapped_out, engine.scheduler.num_swapped_in) == (0, 0)


def test_a_full_buffer_falls_back_to_computing_again():
    engine, requests = crowded(num_host_blocks=3)
    run(engine)
    scheduler = engine.scheduler
    assert 0 < scheduler.num_swapped_out < scheduler.num_preemptions
    assert all(request.finish_reason is FinishReason.LENGTH for request in requests)


def test_a_swapped_request_that_is_cancelled_gives_its_host_blocks_back():
    scheduler = make_scheduler(num_blocks=3, page_size=4, num_host_blocks=8)
    _, middle, newest = started(scheduler, *(distinct(name, 3) for name in "abc"))
    step(scheduler)
    step(scheduler)
    assert scheduler.blocks.host.num_free == 6
    scheduler.cancel(middle)
    scheduler.fail(newest, ValueError("while it waits"))
    assert scheduler.blocks.host.num_free == 8


def test_a_request_swapped_back_draws_its_next_token_in_the_same_step():
    scheduler = make_scheduler(num_blocks=3, page_size=4, num_host_blocks=8)
    oldest, middle, _ = started(scheduler, *(distinct(name, 3) for name in "abc"))
    step(scheduler)
    step(scheduler)
    scheduler.cancel(oldest)
    batch, _ = step(scheduler)
    assert share(batch)["b"] == 1
    assert batch.scheduled[0].samples
    assert middle.num_preemptions == 1


@pytest.fixture
def plenty(make_manager):
    """Answers of an engine that is never short of blocks."""
    return answers(make_manager())


def answers(manager):
    manager.start()
    names = manager.add_requests(PROMPTS, max_new_tokens=30)
    outputs = {output.request_id: output for output in manager}
    return [outputs[name].generated_tokens for name in names]


@pytest.mark.parametrize("scheduler", ["fifo", "prefill_first", "priority"])
@pytest.mark.parametrize("space", [None, 1.0])
def test_cpu_offload_space_swaps_and_changes_no_answer(make_manager, plenty, scheduler, space):
    manager = make_manager(
        num_blocks=12,
        safety_margin=0.0,
        cpu_offload_space=space,
        scheduler_type=scheduler,
        allow_block_sharing=False,
    )
    assert answers(manager) == plenty
    statistics = manager.statistics()
    assert statistics.num_swapped_out == statistics.num_preemptions > 0
    assert statistics.num_swapped_in == statistics.num_swapped_out
    host = loop_of(manager).scheduler.blocks.host
    assert host.num_free == host.num_host_blocks > 0


def test_offloading_is_off_by_default(make_manager, plenty):
    manager = make_manager(num_blocks=12, safety_margin=0.0)
    assert manager.resolved_config.num_host_blocks == 0
    assert answers(manager) == plenty
    statistics = manager.statistics()
    assert statistics.num_preemptions > 0
    assert (statistics.num_swapped_out, statistics.num_swapped_in) == (0, 0)
