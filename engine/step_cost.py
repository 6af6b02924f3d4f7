"""How long a step takes, learnt while running, and how much of a prompt fits into one.

Engine thread only. `StepCost` is arithmetic; `StepPace` joins it to a clock and a target. Without a
running stream there is nobody to keep waiting, and a step may be as long as `max_batch_tokens`
allows; beside streams the prompt tokens of a step are as many as the target leaves time for.
"""

import time
from collections import deque
from collections.abc import Callable

from engine.batch import ScheduledBatch

# A decode step counts this much of the one after it: the last ten or so decide.
DECAY = 0.9
# Share of the latest measurement in the cost of a prompt token: its chunks get longer or shorter
# with it, so that it is followed more closely.
PREFILL_GAIN = 0.3
# A prompt goes on by at least this many tokens a step, however late the step already is: less would
# cost more in steps than it saves in time.
MIN_CHUNK_TOKENS = 16
# Prompt tokens are taken to cost at least this share of a step that has some: a noisy clock must
# not make them free.
MIN_PREFILL_SHARE = 0.1
# Steps that may be under way at once, and more.
MAX_PENDING = 4


class StepCost:
    """Seconds of a step = fixed + rows x per row + prompt tokens x per token.

    The first two are the least-squares line through the steps without prompt tokens, the third is
    what other steps took beyond it; older steps count ever less. Whatever the split between them,
    the sum is right where the engine currently runs, so that a limit taken from it converges.

    Attributes:
        prefill_seconds: Seconds of a token of a prompt; 0 while none was seen.
    """

    def __init__(self) -> None:
        """Know nothing."""
        self._weight = 0.0
        self._rows = 0.0
        self._rows_squared = 0.0
        self._seconds = 0.0
        self._seconds_rows = 0.0
        self.prefill_seconds = 0.0

    def observe(self, num_rows: int, num_prefill_tokens: int, seconds: float) -> None:
        """Take in what a step took.

        Args:
            num_rows: Requests that computed one token.
            num_prefill_tokens: Tokens of the other requests.
            seconds: How long the step took.
        """
        if num_prefill_tokens:
            excess = max(seconds - self.decode_seconds(num_rows), MIN_PREFILL_SHARE * seconds)
            measured = excess / num_prefill_tokens
            gain = PREFILL_GAIN if self.prefill_seconds else 1.0
            self.prefill_seconds += gain * (measured - self.prefill_seconds)
            return
        self._weight = DECAY * self._weight + 1.0
        self._rows = DECAY * self._rows + num_rows
        self._rows_squared = DECAY * self._rows_squared + num_rows * num_rows
        self._seconds = DECAY * self._seconds + seconds
        self._seconds_rows = DECAY * self._seconds_rows + seconds * num_rows

    def decode_seconds(self, num_rows: int) -> float:
        """Return what a step of this many rows and no prompt tokens takes, in seconds."""
        if self._weight == 0.0:
            return 0.0
        mean_rows = self._rows / self._weight
        mean_seconds = self._seconds / self._weight
        spread = self._rows_squared / self._weight - mean_rows * mean_rows
        if spread < 1e-6 * mean_rows * mean_rows:  # all steps alike: no slope to be seen
            return mean_seconds
        slope = (self._seconds_rows / self._weight - mean_rows * mean_seconds) / spread
        # More rows are never quicker, and no rows at all take no negative time.
        slope = min(max(slope, 0.0), mean_seconds / mean_rows)
        return mean_seconds + slope * (num_rows - mean_rows)

    def num_tokens_within(self, seconds: float, num_rows: int) -> int:
        """Return how many prompt tokens fit beside these rows into a step of this length."""
        per_token = self.prefill_seconds
        if per_token == 0.0:
            return MIN_CHUNK_TOKENS
        left = seconds - self.decode_seconds(num_rows)
        return max(MIN_CHUNK_TOKENS, int(left / per_token))


class StepPace:
    """Holds steps to a length while somebody streams."""

    def __init__(self, target: float = 0.0, clock: Callable[[], float] = time.perf_counter) -> None:
        """Start without measurements.

        Args:
            target: How long a step with running streams may take, in seconds; 0 for any time.
            clock: Seconds since some fixed moment.
        """
        self.cost = StepCost()
        self._target = target
        self._clock = clock
        self._pending: deque[tuple[ScheduledBatch, float]] = deque(maxlen=MAX_PENDING)
        self._last_computed_at = 0.0

    def chunk_limit(self, num_decoding: int) -> int | None:
        """Return how many prompt tokens the next step may have; None for no limit.

        Args:
            num_decoding: Rows that the step has besides.
        """
        if self._target == 0.0 or num_decoding == 0:
            return None
        return self.cost.num_tokens_within(self._target, num_decoding)

    def note_scheduled(self, batch: ScheduledBatch) -> None:
        """Start the clock of a step."""
        if self._target:
            self._pending.append((batch, self._clock()))

    def note_computed(self, batch: ScheduledBatch) -> None:
        """Learn from a step; the halves of one that had to be split say nothing."""
        if not any(pending is batch for pending, _ in self._pending):
            return
        scheduled, scheduled_at = self._pending.popleft()
        while scheduled is not batch:
            scheduled, scheduled_at = self._pending.popleft()
        now = self._clock()
        # Where steps overlap, one begins to be computed when the one before it is.
        seconds = now - max(scheduled_at, self._last_computed_at)
        self._last_computed_at = now
        num_rows = batch.num_tokens
        if not batch.continues:
            num_rows = sum(item.num_new_tokens == 1 for item in batch.scheduled)
        # A guessed token is a row like any other.
        self.cost.observe(num_rows + batch.num_drafted, batch.num_tokens - num_rows, seconds)
