"""From the logits of the model to the distribution that is drawn from.

    logits [n, V] fp32
                          Stage.BIAS                                       \
      add_bias            what the client adds                              |
      penalise            repetition, then frequency and presence           |  in place, on a copy
                          Stage.BAN                                         |  that the caller owns
      mask_tokens         ends of the answer, while it must go on           |
                          Stage.FORCE                                       |
      mask_grammar        what a grammar forbids                           /
      apply_temperature                                                    \
                          Stage.HEAT                                        |
      keep_top_k          ties with the k-th are kept                       |  return a new tensor,
      keep_top_p          over what top-k left                              |  or the same one when
      keep_min_p          relative to the most likely one                   |  no row asks for it
                          Stage.CUT                                        /

The stages are the turns of transformers' own processors, where a request has some.

The order and what is kept are those of transformers' `generate` (5.24, `_get_logits_processor`),
which has sequence_bias and no presence or frequency penalty; the latter two follow OpenAI's
formula. A row that does not ask for a step keeps its bits, and no row looks at
another. Pure functions on the engine thread.
"""

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from engine.sampling.row_plan import RowPlan
from engine.sampling.token_processors import Stage

_REMOVED = -math.inf


def edit_logits(scores: torch.Tensor, plans: Sequence[RowPlan]) -> None:
    """Apply bias, penalties, masks and the processors among them, in place.

    Args:
        scores: [n, V] fp32, owned by the caller; changed.
        plans: n plans, in the order of the rows.
    """
    run_processors(scores, plans, Stage.BIAS)
    add_bias(scores, plans)
    penalise(scores, plans)
    run_processors(scores, plans, Stage.BAN)
    mask_tokens(scores, plans)
    run_processors(scores, plans, Stage.FORCE)
    mask_grammar(scores, plans)


def run_processors(scores: torch.Tensor, plans: Sequence[RowPlan], stage: Stage) -> None:
    """Give each row of [n, V] fp32 scores to its request's own processors, in place."""
    for place, plan in enumerate(plans):
        processors = plan.params.processors
        if processors is not None and plan.token_ids is not None and stage in processors.stages:
            token_ids = torch.from_numpy(plan.token_ids)[None].to(scores.device)  # [1, L]
            row = scores[place : place + 1]
            row.copy_(processors.apply(stage, token_ids, row))


def add_bias(scores: torch.Tensor, plans: Sequence[RowPlan]) -> None:
    """Add each row's bias to [n, V] fp32 scores, in place."""
    biased = [(place, plan) for place, plan in enumerate(plans) if len(plan.bias_ids)]
    if biased:
        rows, ids = _entries(scores, [(place, plan.bias_ids) for place, plan in biased])
        values = np.concatenate([plan.bias_values for _, plan in biased])
        scores[rows, ids] += torch.from_numpy(values).to(scores.device)


def penalise(scores: torch.Tensor, plans: Sequence[RowPlan]) -> None:
    """Make seen tokens less likely in [n, V] fp32 scores, in place.

    A repetition penalty r divides a positive logit and multiplies a negative one, for tokens of
    the prompt and the output. Then frequency * count + presence * (count > 0) is subtracted,
    where count is the occurrences in the output.
    """
    seen = [(place, plan.params, plan.history) for place, plan in enumerate(plans) if plan.history]
    if not seen:
        return
    sizes = [len(history.token_ids) for _, _, history in seen]
    if not sum(sizes):
        return
    rows, ids = _entries(scores, [(place, history.token_ids) for place, _, history in seen])
    factors = np.repeat([params.repetition_penalty for _, params, _ in seen], sizes)
    counts = np.concatenate([history.output_counts for _, _, history in seen])
    frequency = np.repeat([params.frequency_penalty for _, params, _ in seen], sizes)
    presence = np.repeat([params.presence_penalty for _, params, _ in seen], sizes)
    lowered = _to_scores(frequency * counts + presence * (counts > 0), scores)
    factor = _to_scores(factors, scores)
    old = scores[rows, ids]  # [S]
    scores[rows, ids] = torch.where(old < 0, old * factor, old / factor) - lowered


def mask_tokens(scores: torch.Tensor, plans: Sequence[RowPlan]) -> None:
    """Remove each row's blocked tokens from [n, V] fp32 scores, in place."""
    blocked = [
        (place, plan.blocked_ids) for place, plan in enumerate(plans) if len(plan.blocked_ids)
    ]
    if blocked:
        rows, ids = _entries(scores, blocked)
        scores[rows, ids] = _REMOVED


def mask_grammar(scores: torch.Tensor, plans: Sequence[RowPlan]) -> None:
    """Remove what each row's grammar forbids from [n, V] fp32 scores, in place."""
    for place, plan in enumerate(plans):
        if plan.forbidden is None:
            continue
        if scores.device.type == "cpu":  # numpy's does without a team of threads
            np.copyto(scores[place].numpy(), np.float32(_REMOVED), where=plan.forbidden)
        else:
            forbidden = torch.from_numpy(plan.forbidden).to(scores.device, non_blocking=True)
            scores[place].masked_fill_(forbidden, _REMOVED)


def shape_distribution(scores: torch.Tensor, plans: Sequence[RowPlan]) -> torch.Tensor:
    """Return [n, V] fp32 scores after temperature, top-k, top-p and min-p, in this order.

    Processors run in their stages; the given scores are not changed.
    """
    params = [plan.params for plan in plans]
    if any(plan.has_shaping_processors for plan in plans):
        scores = scores.clone()
    scores = apply_temperature(scores, [row.temperature for row in params])
    run_processors(scores, plans, Stage.HEAT)
    scores = keep_top_k(scores, [row.top_k for row in params])
    scores = keep_top_p(scores, [row.top_p for row in params])
    scores = keep_min_p(scores, [row.min_p for row in params])
    run_processors(scores, plans, Stage.CUT)
    return scores


def apply_temperature(scores: torch.Tensor, temperatures: Sequence[float]) -> torch.Tensor:
    """Return [n, V] scores divided by each row's temperature, all of them above 0."""
    if all(temperature == 1.0 for temperature in temperatures):
        return scores
    return scores / _column(temperatures, scores)  # x / 1.0 is x, bit for bit


def keep_top_k(scores: torch.Tensor, limits: Sequence[int]) -> torch.Tensor:
    """Return [n, V] scores without those below each row's k-th largest; 0 keeps all."""
    vocab_size = scores.shape[-1]
    needed = [limit if 0 < limit < vocab_size else 0 for limit in limits]
    if not any(needed):
        return scores
    largest = scores.topk(max(needed), dim=-1).values  # [n, max k]
    last = torch.tensor([max(limit - 1, 0) for limit in needed], device=scores.device)
    floor = largest.gather(1, last[:, None])  # [n, 1]
    keeps_all = torch.tensor([limit == 0 for limit in needed], device=scores.device)
    floor = floor.masked_fill(keeps_all[:, None], _REMOVED)
    return scores.masked_fill(scores < floor, _REMOVED)


def keep_min_p(scores: torch.Tensor, shares: Sequence[float]) -> torch.Tensor:
    """Return [n, V] scores without tokens less likely than a share of the most likely one."""
    if all(share == 0.0 for share in shares):
        return scores
    gaps = _column([math.log(share) if share > 0.0 else _REMOVED for share in shares], scores)
    floor = scores.amax(dim=-1, keepdim=True) + gaps  # [n, 1]
    return scores.masked_fill(scores < floor, _REMOVED)


def keep_top_p(scores: torch.Tensor, masses: Sequence[float]) -> torch.Tensor:
    """Return [n, V] scores cut to the smallest likely set that reaches each row's mass.

    In ascending order, tokens go while their cumulative probability is at most 1 - mass, compared
    in fp32; the last one always stays. So does transformers, except that its sort is unstable:
    which of several equal scores go is open there, and here those with the higher index do.
    """
    if all(mass >= 1.0 for mass in masses):
        return scores
    ordered, order = scores.sort(dim=-1, descending=True, stable=True)
    ordered, order = ordered.flip(-1), order.flip(-1)  # ascending, the lower index last of equals
    cumulative = ordered.softmax(dim=-1).to(torch.float64).cumsum(dim=-1)
    cumulative = (cumulative / cumulative[:, -1:]).to(torch.float32)
    # A row that keeps all of its mass compares with -1 and loses nothing.
    limits = _column([1.0 - mass if mass < 1.0 else -1.0 for mass in masses], scores)
    goes = cumulative <= limits
    goes[:, -1] = False
    return scores.masked_fill(torch.empty_like(goes).scatter_(1, order, goes), _REMOVED)


def _entries(
    scores: torch.Tensor, listed: Sequence[tuple[int, npt.NDArray[np.int64]]]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the rows and columns, each [S] int64, of (row, its token ids) pairs."""
    rows = np.repeat([place for place, _ in listed], [len(ids) for _, ids in listed])
    ids = np.concatenate([ids for _, ids in listed])
    device = scores.device
    return torch.from_numpy(rows).to(device), torch.from_numpy(ids).to(device)


def _column(values: Sequence[float], scores: torch.Tensor) -> torch.Tensor:
    """Return one number per row as [n, 1], of the scores' dtype and device."""
    return torch.tensor(values, dtype=scores.dtype, device=scores.device)[:, None]


def _to_scores(values: npt.NDArray[np.float64], scores: torch.Tensor) -> torch.Tensor:
    """Return an array with the scores' dtype and device."""
    return torch.from_numpy(values.astype(np.float32)).to(scores.device)
