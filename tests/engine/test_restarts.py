"""How often an engine may begin again, and what it still knows then."""

import dataclasses
import time

import pytest

from engine.restarts import RestartBudget
from engine.statistics import EngineStatistics
from tests.engine.control import loop_of

OF_THE_MOMENT = {
    "num_live", "num_waiting", "num_running", "num_blocks", "num_free_blocks", "num_cached_blocks",
    "num_queued", "is_paused",
}  # fmt: skip


def test_a_budget_is_spent_within_its_window_and_comes_back(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    budget = RestartBudget(max_restarts=2, window_seconds=10.0)
    assert [budget.spend(), budget.spend(), budget.spend()] == [True, True, False]
    now[0] += 10.5
    assert budget.spend()
    assert budget.num_restarts == 3


def test_no_restarts_means_that_the_first_fault_is_the_last():
    assert not RestartBudget(max_restarts=0).spend()


def cumulative(manager) -> dict[str, int]:
    """Return the statistics that only ever grow, as their names say."""
    now = dataclasses.asdict(manager.statistics())
    return {name: now[name] for name in now if name not in OF_THE_MOMENT}


@pytest.mark.parametrize("way", ["restart", "other weights"])
def test_no_count_is_lost_when_the_scheduler_is_replaced(way, make_manager, monkeypatch):
    manager = make_manager(
        num_blocks=4, safety_margin=0.0, cpu_offload_space=0.01, max_draft_tokens=4
    )
    for number in range(4):
        manager.add_request([number, number], max_new_tokens=40)
    manager.start()
    assert len(list(manager)) == 4
    before = cumulative(manager)
    assert min(before[name] for name in before if name != "num_restarts") > 0
    replaced = loop_of(manager).scheduler
    if way == "restart":
        monkeypatch.setattr(replaced, "schedule_batch", broken)
    else:
        manager.clear_prefix_cache()
    manager.add_request([1], "last", max_new_tokens=3)
    assert manager.get_result("last") is not None
    manager.stop(keep_for_next_session=True)
    assert loop_of(manager).scheduler is not replaced
    after = cumulative(manager)
    assert all(after[name] >= before[name] for name in before), (before, after)


def broken() -> None:
    raise ValueError("our own mistake")


def test_each_statistic_is_of_the_moment_or_counts():
    names = {field.name for field in dataclasses.fields(EngineStatistics)}
    assert names >= OF_THE_MOMENT
    assert names - OF_THE_MOMENT == {
        "num_preemptions", "num_swapped_out", "num_swapped_in", "num_steps", "num_restarts",
        "num_drafted_tokens", "num_accepted_tokens",
    }  # fmt: skip
