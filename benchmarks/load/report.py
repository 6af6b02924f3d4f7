"""Tables of turns, and what to be wary of in them."""

import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from rich.console import Console
from rich.table import Table

from benchmarks.load.measurement import Turn
from benchmarks.load.summary import Summary

T = TypeVar("T")
Figure = Callable[[Summary], float | None]
# From here on the generator may be what is measured.
BUSY_SHARE = 0.5
# More than the odd token that has no text of its own.
MERGED_TOKENS = 1.1
RATIOS: tuple[tuple[str, Figure], ...] = (
    ("tokens/s", lambda summary: summary.tokens_per_second),
    ("TTFT", lambda summary: summary.ttft_median_ms),
    ("ITL", lambda summary: summary.itl_median_ms),
)


def show(console: Console, turns: Sequence[Turn]) -> None:
    """Print what each server did, how the first compares to the others, and remarks."""
    console.print(figures_table(turns))
    names = _unique(turn.target for turn in turns)
    if len(names) > 1:
        console.print(ratios_table(turns))
        console.print(
            f"{names[0]} divided by the other, within a round: the median of the rounds, lowest "
            "and highest; more tokens/s are better, less TTFT and ITL are",
            highlight=False,
            markup=False,
        )
    for remark in remarks(turns):
        console.print(remark, highlight=False, markup=False)


def figures_table(turns: Sequence[Turn]) -> Table:
    """Return the medians over the rounds; done and failed requests are summed."""
    table = Table("load", "server", "done", "failed", "req/s", "tokens/s", "TTFT ms", "ITL ms")
    table.caption = "TTFT and ITL: median / 99th percentile; medians of the rounds"
    has_limits = any(turn.summary.good_per_second is not None for turn in turns)
    if has_limits:
        table.add_column("good/s")
    table.add_column("generator")
    for load in _unique(turn.load for turn in turns):
        for name in _unique(turn.target for turn in turns):
            summaries = [t.summary for t in turns if (t.load, t.target) == (load, name)]
            if not summaries:
                continue
            good = [_median(summaries, lambda s: s.good_per_second, 2)] if has_limits else []
            table.add_row(
                load,
                name,
                str(sum(summary.num_done for summary in summaries)),
                str(sum(summary.num_failed for summary in summaries)),
                _median(summaries, lambda s: s.requests_per_second, 2),
                _median(summaries, lambda s: s.tokens_per_second, 1),
                _pair(summaries, lambda s: s.ttft_median_ms, lambda s: s.ttft_p99_ms),
                _pair(summaries, lambda s: s.itl_median_ms, lambda s: s.itl_p99_ms),
                *good,
                f"{statistics.median(s.generator_share for s in summaries):.0%}",
            )
        table.add_section()
    return table


def ratios_table(turns: Sequence[Turn]) -> Table:
    """Return how the first server compares to each other one."""
    first, *others = _unique(turn.target for turn in turns)
    table = Table("load", f"{first} against", *(name for name, _ in RATIOS))
    for load in _unique(turn.load for turn in turns):
        for other in others:
            cells = [
                _spread(list(ratios(turns, load, (first, other), figure))) for _, figure in RATIOS
            ]
            table.add_row(load, other, *cells)
        table.add_section()
    return table


def ratios(
    turns: Sequence[Turn], load: str, pair: tuple[str, str], figure: Figure
) -> Iterator[float]:
    """Yield one server's figure divided by another's, for each round in which both have one."""
    figures = {(t.round_number, t.target): figure(t.summary) for t in turns if t.load == load}
    for number in _unique(turn.round_number for turn in turns):
        ours, theirs = figures.get((number, pair[0])), figures.get((number, pair[1]))
        if ours and theirs:
            yield ours / theirs


def remarks(turns: Sequence[Turn]) -> Iterator[str]:
    """Yield what makes figures mean less than they seem to."""
    for name in _unique(turn.target for turn in turns):
        summaries = [turn.summary for turn in turns if turn.target == name]
        for kind in _unique(kind for summary in summaries for kind in summary.errors):
            count = sum(summary.errors.get(kind, 0) for summary in summaries)
            detail = next(s.error_details[kind] for s in summaries if kind in s.errors)
            yield f"{name}: {count} failed: {kind}" + (f" ({detail})" if detail else "")
        num_short = sum(summary.num_short for summary in summaries)
        if num_short:
            yield (
                f"{name}: {num_short} of {sum(s.num_done for s in summaries)} answers were shorter "
                "than asked for; compare tokens/s, not req/s"
            )
        merged = max((summary.tokens_per_piece or 0.0 for summary in summaries), default=0.0)
        if merged > MERGED_TOKENS:
            yield (
                f"{name}: up to {merged:.1f} tokens to an event; its ITL is the time between "
                "events, not between tokens"
            )
        if max(summary.generator_share for summary in summaries) > BUSY_SHARE:
            yield f"{name}: the generator used more than half a core; it may be the limit"


def _median(summaries: Sequence[Summary], figure: Figure, digits: int) -> str:
    values = [value for value in map(figure, summaries) if value is not None]
    return f"{statistics.median(values):.{digits}f}" if values else "-"


def _pair(summaries: Sequence[Summary], median: Figure, slowest: Figure) -> str:
    return f"{_median(summaries, median, 1)} / {_median(summaries, slowest, 1)}"


def _spread(values: Sequence[float]) -> str:
    if not values:
        return "-"
    return f"{statistics.median(values):.2f} x ({min(values):.2f} to {max(values):.2f})"


def _unique(values: Iterable[T]) -> list[T]:
    return list(dict.fromkeys(values))
