"""Log-probabilities that requests ask to see, from the model's own distribution.

They are log-softmax of the raw logits in fp32. Engine thread. Must never look at processed
logits: those are the business of return_logprobs.
"""

from collections.abc import Sequence

import torch

from engine.requests import TokenLogprobs


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
    if raw.device.type == "cpu":  # row by row, so that rows do not meet in a kernel
        chunks = [[place] for place in range(len(rows))]
    else:
        chunks = [list(range(len(rows)))] if rows else []
    described = []
    for chunk in chunks:
        chosen_rows = [rows[place] for place in chunk]
        described += _describe(
            take_rows(raw, chosen_rows),
            [token_ids[place] for place in chunk],
            [num_tops[place] for place in chunk],
        )
    return described


def take_rows(scores: torch.Tensor, rows: Sequence[int]) -> torch.Tensor:
    """Return the given rows of [N, V] as [n, V]: a view of a single row, a copy of several."""
    if len(rows) == 1:
        return scores[rows[0] : rows[0] + 1]
    return scores[torch.tensor(rows, device=scores.device)]


def _describe(
    raw: torch.Tensor, token_ids: Sequence[int], num_tops: Sequence[int]
) -> list[TokenLogprobs]:
    """Do `describe_tokens` for rows that share their kernels."""
    logprobs = raw.log_softmax(dim=-1)  # [n, V]
    chosen = logprobs.gather(1, torch.tensor(token_ids, device=raw.device)[:, None])[:, 0].tolist()
    top = logprobs.topk(min(max(num_tops), raw.shape[-1]), dim=-1)
    described = []
    for token, logprob, values, ids, count in zip(
        token_ids, chosen, top.values.tolist(), top.indices.tolist(), num_tops, strict=True
    ):
        pairs = sorted(zip(ids, values, strict=True), key=lambda pair: (-pair[1], pair[0]))
        described.append(TokenLogprobs(token, logprob, tuple(pairs[:count])))
    return described
