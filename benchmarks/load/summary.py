"""Figures of many outcomes."""

import math
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.load.answer import Outcome


@dataclass(frozen=True, slots=True)
class Limits:
    """What a request must keep to count as good; infinite where nobody asked.

    Attributes:
        ttft_ms: Most time until the first text, in milliseconds.
        itl_ms: Most time per token after the first, in milliseconds, on the mean of an answer.
    """

    ttft_ms: float = math.inf
    itl_ms: float = math.inf

    @property
    def are_set(self) -> bool:
        """Whether there is any."""
        return min(self.ttft_ms, self.itl_ms) < math.inf

    def are_kept(self, outcome: Outcome) -> bool:
        """Whether an answer that came whole was also quick enough."""
        return (
            outcome.first_text_seconds * 1e3 <= self.ttft_ms
            and outcome.pace_seconds * 1e3 <= self.itl_ms
        )


@dataclass(frozen=True, slots=True)
class Summary:
    """What a turn came to. Rates and times are of answers that came whole, and `None` without any.

    Attributes:
        num_done: Answers that came whole.
        errors: Number of failed requests of each kind.
        error_details: What one failure of each kind said.
        seconds: From the first request to the end of the last.
        requests_per_second: Whole answers, by time.
        tokens_per_second: Tokens of whole answers, by time.
        ttft_median_ms: Time to the first text.
        ttft_p99_ms: The same, for the slowest hundredth.
        itl_median_ms: Time from one piece of text to the next.
        itl_p99_ms: The same, for the slowest hundredth.
        good_per_second: Whole answers that kept the limits, by time; `None` without limits.
        num_short: Whole answers that had fewer tokens than were asked for.
        tokens_per_piece: Tokens in a piece of text, on average; above 1 the server puts several
            into one event, and the times between pieces are not those between tokens.
        prompt_tokens: Tokens of a prompt, on average; 0 where the server doesn't count.
        generator_share: Processor time of the generator, as a share of one core.
    """

    num_done: int
    errors: dict[str, int]
    error_details: dict[str, str]
    seconds: float
    requests_per_second: float
    tokens_per_second: float
    ttft_median_ms: float | None
    ttft_p99_ms: float | None
    itl_median_ms: float | None
    itl_p99_ms: float | None
    good_per_second: float | None
    num_short: int
    tokens_per_piece: float | None
    prompt_tokens: float
    generator_share: float

    @property
    def num_failed(self) -> int:
        """Requests that failed, of all kinds."""
        return sum(self.errors.values())


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the value below which that share lies, between neighbours if it falls there.

    Args:
        values: At least one, in any order.
        percent: From 0 to 100.
    """
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def summarize(
    outcomes: Sequence[Outcome],
    seconds: float,
    limits: Limits,
    num_output_tokens: int,
    generator_share: float,
) -> Summary:
    """Return the figures of a turn.

    Args:
        outcomes: What became of each request.
        seconds: How long all of them took together.
        limits: What makes an answer good.
        num_output_tokens: How many tokens each answer should have had.
        generator_share: Processor time the generator took for it, as a share of one core.
    """
    whole = [outcome for outcome in outcomes if not outcome.error]
    failed = [outcome for outcome in outcomes if outcome.error]
    first = [outcome.first_text_seconds for outcome in whole]
    gaps = [gap for outcome in whole for gap in outcome.gaps_seconds]
    num_tokens = sum(outcome.num_output_tokens for outcome in whole)
    num_pieces = sum(len(outcome.arrivals) for outcome in whole)
    num_good = sum(limits.are_kept(outcome) for outcome in whole)
    return Summary(
        num_done=len(whole),
        errors=dict(Counter(outcome.error for outcome in failed)),
        error_details={outcome.error: outcome.detail for outcome in reversed(failed)},
        seconds=seconds,
        requests_per_second=len(whole) / seconds,
        tokens_per_second=num_tokens / seconds,
        ttft_median_ms=_milliseconds(first, 50),
        ttft_p99_ms=_milliseconds(first, 99),
        itl_median_ms=_milliseconds(gaps, 50),
        itl_p99_ms=_milliseconds(gaps, 99),
        good_per_second=num_good / seconds if limits.are_set else None,
        num_short=sum(outcome.num_output_tokens < num_output_tokens for outcome in whole),
        tokens_per_piece=num_tokens / num_pieces if num_pieces else None,
        prompt_tokens=statistics.fmean(o.num_prompt_tokens for o in whole) if whole else 0.0,
        generator_share=generator_share,
    )


def _milliseconds(seconds: Sequence[float], percent: float) -> float | None:
    return percentile(seconds, percent) * 1e3 if seconds else None
