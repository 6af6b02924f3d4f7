"""Computes guessed tokens beside known ones, and takes those that turn out right.

Where reading the weights is what a step takes its time for, some rows more cost little. So a step
may compute, after the last token of a request, a draft of what might follow. If the token that is
drawn is the first of the draft, its row has been computed already, and the next one is drawn from
that, and so on:

    known      draft             rows of the step
    .. 7       3  9  4           7  3  9  4
               |  |  |           |  |  |  |
    drawn:     3  9  5  <--------+--+--+     5 is not 4: the answer goes on after 5

Drawing is done as if each were a step of its own, with the request as it then is: parameters,
penalties, grammars and ends see nothing of a draft, and the random number of a position is that of
the position. So the answer is the one without drafts. A draft takes nothing from anybody: it has
rows that the step has left and slots that the request has. Engine thread only.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from engine.batch import ScheduledBatch, ScheduledRequest
from engine.drafting import Drafting
from engine.requests import RequestState, RequestStatus

# What a row adds to a step, as a share of what reading the weights takes. Source: the kernels'
# figures in benchmarks/README.md give 0.05 for float32 weights and 0.25 for those of 4 bits.
ROW_COST = 0.1
# Tokens of a step that has drafts: beyond, a row costs as much as it can save.
MAX_STEP_TOKENS = 64


class Speculation:
    """Adds drafts to batches, and counts what becomes of them.

    Attributes:
        num_drafted: Tokens that were guessed.
        num_accepted: Of these, those that were right.
    """

    def __init__(
        self, max_tokens: int = 0, *, max_batch_tokens: int = 0, page_size: int = 1
    ) -> None:
        """Say how much may be guessed.

        Args:
            max_tokens: Length of a request's draft; 0 for none at all.
            max_batch_tokens: Tokens in a step.
            page_size: Positions in a block.
        """
        self.num_drafted = 0
        self.num_accepted = 0
        self._max_tokens = max_tokens
        self._max_step_tokens = min(MAX_STEP_TOKENS, max_batch_tokens) if max_tokens else 0
        self._page_size = page_size

    def extend(self, batch: ScheduledBatch) -> ScheduledBatch:
        """Return the batch with drafts, or itself if there are none."""
        num_rows = len(batch.scheduled)
        room = self._max_step_tokens - batch.num_tokens
        if room < num_rows or num_rows == 0:
            return batch
        most = min(self._max_tokens, room // num_rows)
        # A guess pays if its chance to save a row of a later step exceeds what its own adds to this
        # one: the more rows share the reading of the weights, the less there is to gain.
        cost = ROW_COST * batch.num_tokens
        least_chance = cost / (1.0 + cost)
        scheduled, num_drafted = batch.scheduled, 0
        for place, item in enumerate(batch.scheduled):
            draft = self._draft(item, most, least_chance)
            if draft:
                if num_drafted == 0:  # the batch may be repeated, so it keeps its own list
                    scheduled = scheduled.copy()
                num_drafted += len(draft)
                scheduled[place] = ScheduledRequest(
                    item.request, item.num_new_tokens, item.samples, draft
                )
        if num_drafted == 0:
            return batch
        return ScheduledBatch(
            scheduled, batch.num_tokens, batch.num_started, batch.block_copies, num_drafted
        )

    def _draft(self, item: ScheduledRequest, most: int, least_chance: float) -> Sequence[int]:
        request = item.request
        if not item.samples:
            return ()
        num_slots = len(request.block_ids) * self._page_size - item.num_context_tokens
        # The token after the draft is the last one that the answer can have.
        num_wanted = request.params.max_new_tokens - len(request.generated_tokens) - 1
        most = min(most, num_slots, num_wanted)
        if most <= 0:
            return ()
        drafting = request.drafting
        if drafting is None:
            drafting = request.drafting = Drafting(request.prompt_ids)
        return drafting.draft(request.generated_tokens, most, least_chance)

    def learn(self, verification: "Verification") -> None:
        """Take in what became of a batch's drafts."""
        for guess in verification.guesses:
            num_drafted = len(guess.draft)
            self.num_drafted += num_drafted
            self.num_accepted += guess.num_accepted
            if guess.request.drafting is not None:  # it may have ended
                guess.request.drafting.learn(num_drafted, guess.num_accepted)


@dataclass(slots=True)
class Guess:
    """A request's draft in a step.

    Attributes:
        request: Whose it is.
        draft: What was guessed.
        first_row: The row of its first token among those of all drafts of the step.
        num_accepted: Tokens of it that were drawn so far.
    """

    request: RequestState
    draft: Sequence[int]
    first_row: int
    num_accepted: int = 0

    def is_right(self) -> bool:
        """Return whether the token that was drawn last is the one that was guessed."""
        return (
            self.num_accepted < len(self.draft)
            and self.request.status is not RequestStatus.FAILED
            and self.request.generated_tokens[-1] == self.draft[self.num_accepted]
        )


class Verification:
    """Goes along the drafts of a step whose own tokens have been drawn.

    Attributes:
        guesses: All of them.
    """

    def __init__(self, batch: ScheduledBatch) -> None:
        """Begin before the first guessed token."""
        self.guesses: list[Guess] = []
        num_rows = 0
        for item in batch.scheduled:
            if item.draft:
                self.guesses.append(Guess(item.request, item.draft, num_rows))
                num_rows += len(item.draft)
        self._open = self.guesses

    def advance(self) -> list[int]:
        """Go on to the next token of every draft that has been right so far.

        Returns:
            For each request of `batch()`, which row of the drafts its next token is drawn from.
            Nothing is left to draw if there are none.
        """
        right = [guess for guess in self._open if guess.is_right()]
        for guess in right:
            guess.num_accepted += 1
        self._open = [guess for guess in right if not guess.request.is_finished()]
        return [guess.first_row + guess.num_accepted - 1 for guess in self._open]

    def batch(self) -> ScheduledBatch:
        """Return the requests that go on, as a step in which each computes one token."""
        scheduled = [ScheduledRequest(guess.request, 1, True) for guess in self._open]
        return ScheduledBatch(scheduled, len(scheduled))
