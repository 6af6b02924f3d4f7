"""How often an engine may begin again."""

import time

from engine.restarts import RestartBudget


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
