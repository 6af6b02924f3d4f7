"""Shaping and drawing one row on a CPU, on ever smaller sets of candidate tokens.

Does what `processors.shape_distribution` and `draw.draw` do for rows side by side on an
accelerator, and must keep the same tokens. It never sorts a vocabulary: a bound first discards
tokens that cannot be in the answer, in one vectorised pass. As one row is all it sees, a result
cannot depend on the batch. Pure functions on the engine thread. Must never start threads: what
numpy does here, torch would do with all of them, and their barriers cost more than the work as
soon as another process wants a core.
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from engine.sampling.parameters import SamplingParams

_Scores = npt.NDArray[np.float32]
_Ids = npt.NDArray[np.int64]

# Tokens per group when bounding the k-th largest score from below.
_GROUP_SIZE = 64


@dataclass(frozen=True, slots=True)
class Candidates:
    """The tokens of a row that may be drawn.

    Attributes:
        ids: [C] int64, ascending; None when every token of the row may be drawn.
        scores: [C] fp32 logits of the distribution.
    """

    ids: _Ids | None
    scores: _Scores

    def keep(self, places: _Ids) -> "Candidates":
        """Return the candidates at the given places."""
        ids = places if self.ids is None else self.ids[places]
        return Candidates(ids, self.scores[places])

    def token_at(self, place: int) -> int:
        """Return the token id of one candidate."""
        return place if self.ids is None else int(self.ids[place])


def shape_row(scores: _Scores, params: SamplingParams) -> Candidates:
    """Apply temperature, top-k, top-p and min-p, in this order.

    Args:
        scores: [V] fp32 logits with a finite maximum; not changed.
        params: Of a row that is sampled.
    """
    if params.temperature != 1.0:
        scores = scores / np.float32(params.temperature)
    candidates = Candidates(None, scores)
    if 0 < params.top_k < len(scores):
        candidates = candidates.keep(places_of_largest(scores, params.top_k))
    if params.top_p < 1.0:
        candidates = candidates.keep(_nucleus(candidates.scores, params.top_p))
    if params.min_p > 0.0:
        floor = candidates.scores.max() + np.float32(math.log(params.min_p))
        candidates = candidates.keep(np.flatnonzero(candidates.scores >= floor))
    return candidates


def draw_place(scores: _Scores, number: float) -> int:
    """Return the place in [C] scores that a number in [0, 1) points at.

    The sum runs from left to right in fp64, so that a score of -inf adds exactly nothing and
    number * total stays below the total: no token of probability 0 is ever drawn.
    """
    probabilities = _softmax(scores).numpy().astype(np.float64)
    cumulative = torch.from_numpy(probabilities).cumsum(dim=0).numpy()  # 5 times numpy's speed
    return int(np.searchsorted(cumulative, number * cumulative[-1], side="right"))


def log_probability(scores: _Scores, place: int) -> float:
    """Return the log-softmax of [C] scores at one place."""
    return float(torch.from_numpy(scores).log_softmax(dim=0)[place])


def places_of_largest(scores: _Scores, count: int) -> _Ids:
    """Return, ascending, where the count largest of [C] scores are and all that tie with the last.

    Split into groups, the count-th largest of the groups' maxima has count scores at or above it;
    whatever is below cannot be among the largest.
    """
    num_groups = len(scores) // _GROUP_SIZE
    if num_groups < 2 * count:
        return np.flatnonzero(scores >= _kth_largest(scores, min(count, len(scores))))
    maxima = scores[: num_groups * _GROUP_SIZE].reshape(_GROUP_SIZE, num_groups).max(axis=0)
    places = np.flatnonzero(scores >= _kth_largest(maxima, count))
    found = scores[places]
    return places[found >= _kth_largest(found, count)]


def _kth_largest(scores: _Scores, count: int) -> np.float32:
    """Return the count-th largest of the scores."""
    rank = len(scores) - count
    value: np.float32 = np.partition(scores, rank)[rank]
    return value


def _nucleus(scores: _Scores, mass: float) -> _Ids:
    """Return, ascending, the places of [C] scores that `processors.keep_top_p` keeps.

    Tokens less likely than (1 - mass) / C cannot hold 1 - mass together, so they all go; only the
    others are sorted.
    """
    probabilities = _softmax(scores).numpy()
    # The factor keeps the bound on the safe side of the rounding of fp32.
    places = np.flatnonzero(probabilities > np.float32((1.0 - mass) / len(scores) * 0.999))
    likely = scores[places]
    ordered = np.sort(likely)
    cumulative = np.cumsum(np.exp(ordered.astype(np.float64) - ordered[-1]))
    cumulative /= cumulative[-1]
    if len(places) < len(scores):
        inside = float(probabilities[places].sum(dtype=np.float64))
        cumulative = 1.0 - min(inside, 1.0) * (1.0 - cumulative)
    num_gone = int(np.count_nonzero(cumulative.astype(np.float32) <= np.float32(1.0 - mass)))
    num_gone = min(num_gone, len(ordered) - 1)
    floor = ordered[num_gone]
    stays = likely >= floor
    num_tied_gone = num_gone - int(np.searchsorted(ordered, floor))
    if num_tied_gone:
        stays[np.flatnonzero(likely == floor)[-num_tied_gone:]] = False
    kept: _Ids = places[stays]
    return kept


def _softmax(scores: _Scores) -> torch.Tensor:
    """Return the fp32 probabilities of [C] scores."""
    return torch.from_numpy(scores).softmax(dim=0)
