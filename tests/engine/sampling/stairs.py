"""A grammar for tests of the engine: token ids that rise, for so many steps."""

from dataclasses import dataclass, field

import numpy as np

from engine.sampling.grammar import Matcher


@dataclass
class StairsMatcher:
    """Where one answer stands."""

    grammar: "Stairs"
    last: int = 0
    num_steps: int = 0

    def accept(self, token_id: int) -> None:
        assert token_id > self.last, f"{token_id} after {self.last}"
        self.last, self.num_steps = token_id, self.num_steps + 1
        assert self.num_steps <= self.grammar.most

    def allow(self, allowed: np.ndarray) -> None:
        self.grammar.masks.append(self.num_steps)
        if self.num_steps == self.grammar.breaks_at:
            raise self.grammar.failure
        if self.num_steps < self.grammar.most:
            allowed[self.last + 1 : self.last + 1 + self.grammar.widest] = True

    def is_complete(self) -> bool:
        return self.num_steps >= self.grammar.least


@dataclass
class Stairs:
    """Rising ids above 0, from `least` to `most` of them, each at most `widest` higher.

    Attributes:
        breaks_at: The step at which a matcher gives up; None never does.
        failure: What it then raises.
        masks: How far the answer was whenever a mask was made.
    """

    least: int
    most: int
    widest: int = 8
    breaks_at: int | None = None
    failure: BaseException = field(default_factory=lambda: ValueError("it is too complex"))
    masks: list[int] = field(default_factory=list)

    def matcher(self) -> Matcher:
        return StairsMatcher(self)

    def accepts(self, token_ids: list[int]) -> bool:
        steps = np.diff([0, *token_ids])
        is_rising = bool(((steps > 0) & (steps <= self.widest)).all())
        return is_rising and self.least <= len(token_ids) <= self.most
