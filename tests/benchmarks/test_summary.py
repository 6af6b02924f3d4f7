"""Figures that are right, and tables that say them."""

import math
import random
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from benchmarks.load.answer import Outcome
from benchmarks.load.measurement import Plan, Turn
from benchmarks.load.pacing import ClosedLoop, OpenLoop, Pacing
from benchmarks.load.report import RATIOS, ratios, remarks, show
from benchmarks.load.summary import Limits, Summary, percentile, summarize
from benchmarks.load.target import Target
from benchmarks.load.workload import Endpoint, Workload

QUICK = Outcome(10.0, (10.1, 10.2, 10.3), 10.3, num_output_tokens=3, num_prompt_tokens=20)
# Starts later, and puts two tokens into an event.
SLOW = Outcome(10.0, (10.5, 11.5), 11.5, num_output_tokens=4, num_prompt_tokens=40)
BUSY = Outcome(10.0, (), 10.1, error="HTTP 429", detail="busy")
LOST = Outcome(10.0, (10.1,), 10.2, num_output_tokens=1, error="connection lost")


def summary_of(*outcomes: Outcome, limits: Limits | None = None) -> Summary:
    return summarize(outcomes, 2.0, limits or Limits(), num_output_tokens=4, generator_share=0.1)


@pytest.mark.parametrize("count", [1, 2, 3, 10, 99, 100, 101])
@pytest.mark.parametrize("percent", [0, 50, 99, 100])
def test_percentiles_are_what_numpy_says(count, percent):
    values = [random.Random(count).random() for _ in range(count)]
    assert percentile(values, percent) == pytest.approx(float(np.percentile(values, percent)))


def test_only_whole_answers_count():
    summary = summary_of(QUICK, SLOW, BUSY, LOST, BUSY)
    assert (summary.num_done, summary.num_failed) == (2, 3)
    assert summary.errors == {"HTTP 429": 2, "connection lost": 1}
    assert summary.error_details["HTTP 429"] == "busy"
    assert summary.requests_per_second == pytest.approx(1.0)
    assert summary.tokens_per_second == pytest.approx(3.5)
    assert summary.ttft_median_ms == pytest.approx(300)
    assert summary.ttft_p99_ms == pytest.approx(496)
    assert summary.itl_median_ms == pytest.approx(100)
    assert summary.itl_p99_ms == pytest.approx(982)
    assert summary.tokens_per_piece == pytest.approx(7 / 5)
    assert summary.prompt_tokens == pytest.approx(30)
    assert summary.num_short == 1


def test_without_an_answer_there_are_no_times():
    summary = summary_of(BUSY)
    assert summary.requests_per_second == summary.tokens_per_second == 0
    assert summary.ttft_median_ms is summary.itl_p99_ms is summary.tokens_per_piece is None


@pytest.mark.parametrize(
    ("limits", "good"),
    [
        (Limits(ttft_ms=99), 0),
        (Limits(ttft_ms=101), 1),
        (Limits(ttft_ms=501), 2),
        (Limits(itl_ms=99), 0),
        (Limits(itl_ms=101), 1),
        # SLOW takes a second for three tokens after the first, in one event.
        (Limits(itl_ms=334), 2),
        (Limits(ttft_ms=101, itl_ms=334), 1),
    ],
)
def test_goodput_counts_answers_that_keep_both_limits(limits, good):
    summary = summary_of(QUICK, SLOW, BUSY, LOST, limits=limits)
    assert summary.good_per_second == pytest.approx(good / 2.0)


def test_without_limits_there_is_no_goodput():
    assert summary_of(QUICK).good_per_second is None


def test_an_answer_of_one_token_has_a_pace():
    assert replace(QUICK, arrivals=(10.1,), num_output_tokens=1).pace_seconds == 0


def turn(number: int, name: str, tokens_per_second: float, *outcomes: Outcome) -> Turn:
    summary = replace(summary_of(*outcomes), tokens_per_second=tokens_per_second)
    return Turn(number, "8 clients", name, summary)


def test_ratios_are_taken_within_rounds_that_both_finished():
    turns = [turn(0, "a", 30, QUICK), turn(0, "b", 10, QUICK), turn(1, "b", 20, QUICK)]
    turns += [turn(1, "a", 40, QUICK), turn(2, "a", 99, QUICK)]
    assert list(ratios(turns, "8 clients", ("a", "b"), RATIOS[0][1])) == [3.0, 2.0]


def test_tables_show_figures_ratios_and_what_to_be_wary_of(capsys):
    turns = [turn(0, "ours", 30.04, QUICK), turn(0, "theirs", 10, SLOW, BUSY)]
    turns[1] = replace(turns[1], summary=replace(turns[1].summary, generator_share=0.9))
    show(Console(width=120), turns)
    printed = capsys.readouterr().out
    assert "30.0" in printed
    assert "3.00 x (3.00 to 3.00)" in printed
    assert "100.0 / 100.0" in printed
    assert list(remarks(turns)) == [
        "ours: 1 of 1 answers were shorter than asked for; compare tokens/s, not req/s",
        "theirs: 1 failed: HTTP 429 (busy)",
        "theirs: up to 2.0 tokens to an event; its ITL is the time between events, not between "
        "tokens",
        "theirs: the generator used more than half a core; it may be the limit",
    ]
    assert all(remark[:40] in printed for remark in remarks(turns))


def test_a_server_without_any_answer_has_a_row(capsys):
    show(Console(width=120), [turn(0, "ours", 0, BUSY), turn(0, "theirs", 10, QUICK)])
    printed = capsys.readouterr().out
    assert "- / -" in printed
    assert "│ -" in printed


def test_turns_go_round_and_everybody_begins_once():
    targets = [Target("a", "h", 1), Target("b", "h", 2)]
    paces: list[Pacing] = [ClosedLoop(2), OpenLoop(1.0)]
    plan = Plan(targets, paces, Workload(Endpoint.CHAT, 20, 8), 2, 0, 1.0, Limits())
    assert [(n, pace.label, target.name) for n, pace, target in plan.turns()] == [
        (0, "2 clients", "a"), (0, "2 clients", "b"), (0, "1/s", "a"), (0, "1/s", "b"),
        (1, "2 clients", "b"), (1, "2 clients", "a"), (1, "1/s", "b"), (1, "1/s", "a"),
    ]  # fmt: skip
    assert plan.total_requests == 2 * 2 * (8 + 64)
    assert replace(plan, num_requests=3).total_requests == 24


def test_limits_that_nobody_set_are_kept_by_all():
    assert Limits().are_kept(SLOW)
    assert Limits().ttft_ms == math.inf
