"""Log-probabilities that requests ask to see, from the model's own distribution.

They are log-softmax of the raw logits in fp32. Engine thread. Must never look at processed
logits: those are the business of return_logprobs.
"""

from collections.abc import Sequence

import numpy as np
import torch

from engine.batch import ScheduledRequest
from engine.requests import TokenLogprobs
from engine.sampling.host_row import places_of_largest


def describe_tokens(
    raw: torch.Tensor, rows: Sequence[int], token_ids: Sequence[int], num_tops: Sequence[int]
) -> list[TokenLogprobs]:
    """Return the log-probabilities of chosen tokens and of the most likely ones.

    Args:
        raw: [N, V] fp32, as the model computed them.
        rows: m rows of interest.
        token_ids: m tokens, one for each of these rows.
        num_tops: m numbers of alternatives.
    """
    if not rows:
        return []
    if raw.device.type == "cpu":  # row by row, so that rows do not meet in a kernel
        return [
            _describe_on_host(raw[row], token, count)
            for row, token, count in zip(rows, token_ids, num_tops, strict=True)
        ]
    return _describe_together(take_rows(raw, rows), token_ids, num_tops)


def describe_prompts(
    logits: torch.Tensor, scheduled: Sequence[ScheduledRequest]
) -> dict[str, list[TokenLogprobs]]:
    """Return what the model says of prompt tokens, for each request that wants to know.

    Args:
        logits: [P, V] of any float dtype, request by request, in the order of their positions.
        scheduled: The requests of the step and their shares, in batch order.
    """
    described: dict[str, list[TokenLogprobs]] = {}
    first = 0
    for item in scheduled:
        positions = item.prompt_rows
        if not positions:
            continue
        request, count = item.request, len(positions)
        rows = logits[first : first + count].detach().to(torch.float32)
        tokens = request.prompt_ids[positions.start + 1 : positions.stop + 1]
        num_top = request.params.prompt_logprobs or 0
        described[request.request_id] = describe_tokens(
            rows, range(count), tokens, [num_top] * count
        )
        first += count
    return described


def take_rows(scores: torch.Tensor, rows: Sequence[int]) -> torch.Tensor:
    """Return the given rows of [N, V] as [n, V]: a view of a single row, a copy of several."""
    if len(rows) == 1:
        return scores[rows[0] : rows[0] + 1]
    return scores[torch.tensor(rows, device=scores.device)]


def _describe_on_host(raw: torch.Tensor, token: int, count: int) -> TokenLogprobs:
    """Do `describe_tokens` for one [V] row."""
    logprobs = raw.log_softmax(dim=-1).numpy()
    top: tuple[tuple[int, float], ...] = ()
    if count:
        places = places_of_largest(logprobs, count)
        values = logprobs[places]
        order = np.argsort(-values, kind="stable")[:count]  # the lower id first among equals
        top = tuple(zip(places[order].tolist(), values[order].tolist(), strict=True))
    rank = 1 + int(np.count_nonzero(logprobs > logprobs[token]))
    return TokenLogprobs(token, float(logprobs[token]), top, rank)


def _describe_together(
    raw: torch.Tensor, token_ids: Sequence[int], num_tops: Sequence[int]
) -> list[TokenLogprobs]:
    """Do `describe_tokens` for [m, V] rows that share their kernels."""
    logprobs = raw.log_softmax(dim=-1)
    chosen = logprobs.gather(1, torch.tensor(token_ids, device=raw.device)[:, None])[:, 0]
    ranks = 1 + (logprobs > chosen[:, None]).sum(dim=-1)  # [m]
    top = logprobs.topk(min(max(num_tops), raw.shape[-1]), dim=-1)
    tops = zip(top.indices.tolist(), top.values.tolist(), num_tops, strict=True)
    return [
        TokenLogprobs(token, logprob, tuple(zip(ids[:count], values[:count], strict=True)), rank)
        for token, logprob, rank, (ids, values, count) in zip(
            token_ids, chosen.tolist(), ranks.tolist(), tops, strict=True
        )
    ]
