"""What one request's next tokens might be, by what followed the same tokens before.

`PromptLookup` finds guesses, `Drafting` says how many are worth their rows. A wrong guess costs a
row of a step and changes no answer. Pure, engine thread only; a token costs the same at any length.
"""

from collections.abc import Sequence

# Tokens that have to have been there before. Longer ones go first: they are right more often. A
# single one says little.
NGRAM_SIZES = (4, 3, 2)
# What is expected of a request that nothing is known of: a good one is soon given long drafts, a
# bad one costs about one row for each of its first steps.
FIRST_ACCEPTANCE = 0.5
# Weight of one guess in the estimate: the last ten or so decide.
ACCEPTANCE_GAIN = 0.2
# A request whose guesses do not pay has one more tried after so many tokens.
RETRY_TOKENS = 32
# Tokens of a prompt that are entered into a lookup in one step; each takes some 5 microseconds.
READ_TOKENS = 256


class PromptLookup:
    """The tokens of one request, and where each short sequence of them was last.

    Where an answer quotes, edits or repeats what was there before, in the prompt or in itself,
    texts that end alike go on alike.
    """

    def __init__(self, prompt_ids: Sequence[int]) -> None:
        """Take the prompt; it is read when the first guess is asked for."""
        self._tokens = list(prompt_ids)
        self._num_prompt = len(prompt_ids)
        self._num_read = 0
        self._place_after: dict[tuple[int, ...], int] = {}

    def catch_up(self, generated: Sequence[int]) -> bool:
        """Read on in the prompt and in the answer; return whether all of it is read.

        A call reads a part only: all streams wait for it.
        """
        tokens = self._tokens
        tokens += generated[len(tokens) - self._num_prompt :]
        # The newest token has no successor yet, so nothing that ends with it is entered.
        end = min(len(tokens), self._num_read + 1 + READ_TOKENS)
        for stop in range(self._num_read + 1, end):
            for size in NGRAM_SIZES:
                if size <= stop:
                    self._place_after[tuple(tokens[stop - size : stop])] = stop
        self._num_read = max(0, end - 1)
        return end == len(tokens)

    def propose(self, count: int) -> list[int]:
        """Return `count` tokens that may come next, or none.

        They are what followed when the last tokens were last there. If that was so recently that it
        reaches up to now, it goes round: what repeats itself is taken to go on repeating.
        """
        tokens = self._tokens
        for size in NGRAM_SIZES:
            place = self._place_after.get(tuple(tokens[-size:]))
            if place is not None:
                period = len(tokens) - place
                return [tokens[place + number % period] for number in range(count)]
        return []


class Drafting:
    """The guesses of one request and how good they have been.

    Attributes:
        acceptance: How likely it is that a guess is right if those before it are.
    """

    __slots__ = ("_lookup", "_num_tried_at", "acceptance")

    def __init__(self, prompt_ids: Sequence[int]) -> None:
        """Start without experience."""
        self.acceptance = FIRST_ACCEPTANCE
        self._lookup = PromptLookup(prompt_ids)
        self._num_tried_at = 0

    def draft(self, generated: Sequence[int], most: int, least_chance: float) -> list[int]:
        """Return guesses for the next tokens, or none.

        Args:
            generated: The answer so far.
            most: How many there may be, at least 1.
            least_chance: How likely a guess must be to be right, with all before it.
        """
        count = self._num_worth(most, least_chance)
        if count == 0:
            if len(generated) - self._num_tried_at < RETRY_TOKENS:
                return []
            count = 1
        if not self._lookup.catch_up(generated):
            return []
        guesses = self._lookup.propose(count)
        if guesses:
            self._num_tried_at = len(generated)
        return guesses

    def learn(self, num_drafted: int, num_accepted: int) -> None:
        """Take in how many guesses of a draft were right; nothing is known of those after a wrong.

        Args:
            num_drafted: Length of the draft.
            num_accepted: Guesses before the first wrong one.
        """
        for _ in range(num_accepted):
            self.acceptance += ACCEPTANCE_GAIN * (1.0 - self.acceptance)
        if num_accepted < num_drafted:
            self.acceptance -= ACCEPTANCE_GAIN * self.acceptance

    def _num_worth(self, most: int, least_chance: float) -> int:
        """Return how many guesses are likely enough to be right."""
        count, chance = 0, self.acceptance
        while count < most and chance >= least_chance:
            count += 1
            chance *= self.acceptance
        return count
