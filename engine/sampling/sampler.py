"""From the logits of a step to one token per request.

    all rows greedy and unprocessed  ->  one argmax, one transfer
    otherwise                        ->  plan each row -> edit -> greedy: argmax
                                                               -> sampled: shape, softmax, draw

On a CPU rows are processed one at a time, so that no kernel ever sees two requests together and a
row's result is bitwise the same in any batch. On an accelerator rows of a kind share each kernel.
Engine thread. Must never change the logits it is given, nor a request.
"""

import math
from collections.abc import Sequence

import torch

from engine.batch import SampledTokens, ScheduledBatch
from engine.errors import GrammarFailedError, RequestFailedError
from engine.requests import RequestState
from engine.sampling.draw import draw, maxima, most_likely, most_likely_ids
from engine.sampling.grammar_masks import GrammarMasks
from engine.sampling.history import HistoryCache
from engine.sampling.host_row import Candidates, draw_place, log_probability, shape_row
from engine.sampling.logprobs import describe_prompts, describe_tokens, take_rows
from engine.sampling.processors import edit_logits, shape_distribution
from engine.sampling.random import uniform
from engine.sampling.row_plan import RowInputs, RowPlan, is_plain_greedy, plan_row

# What the values of one request can raise in numpy, in torch or here. Anything else is a fault of
# the engine and ends the step.
_ROW_FAULTS = (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError)

_NOTHING_LEFT = "its parameters leave no token to draw"
_GRAMMAR_LEFT_NOTHING = "the grammar and the other parameters leave no token to draw"


class Sampler:
    """Draws the next token of each request; remembers token histories and grammars' states."""

    def __init__(self, *, return_logprobs: bool) -> None:
        """Choose whether each token's log-probability under its own distribution is reported."""
        self._return_logprobs = return_logprobs
        self._histories = HistoryCache()
        self._was_plain = False
        self._masks = GrammarMasks()
        self._vocab_size: int | None = None  # known from the first logits on

    def prepare(self, batch: ScheduledBatch) -> None:
        """Begin with what can be known of the next draws before their logits are; never waits."""
        if self._vocab_size is not None and not (batch.continues and self._was_plain):
            self._masks.prepare(batch.sampling, self._vocab_size)

    def close(self) -> None:
        """End the thread that `prepare` may have started."""
        self._masks.close()

    @torch.inference_mode()
    def sample_batch(self, logits: torch.Tensor, batch: ScheduledBatch) -> SampledTokens:
        """Draw one token per sampling request of a batch, and report on prompt tokens.

        Args:
            logits: [N + P, V], in the order of `BatchInputs.sample_indices`, without those of
                guesses; not changed.
            batch: The batch they were computed for.
        """
        # A request that is plain stays so, once it is past its shortest length.
        if batch.continues and self._was_plain:
            sampled = sample_plain(logits)
            if sampled is not None:
                return sampled
        requests = batch.sampling
        count = len(requests)
        self._was_plain = False  # until this draw has come to its end
        sampled = self.sample(logits[:count], requests)
        if len(logits) > count:
            sampled.prompt_logprobs.update(describe_prompts(logits[count:], batch.scheduled))
        self._was_plain = not self._return_logprobs and all(
            is_plain_greedy(request) and request.params.top_logprobs is None for request in requests
        )
        return sampled

    @torch.inference_mode()
    def sample(self, logits: torch.Tensor, requests: Sequence[RequestState]) -> SampledTokens:
        """Draw one token per request.

        A row whose logits are not finite, or whose parameters cannot be applied, ends up in
        `errors` as a RequestFailedError; the other rows are drawn all the same.

        Args:
            logits: [N, V] of any float dtype, on any device; not changed.
            requests: N requests, in the order of the rows.
        """
        assert len(logits) == len(requests), f"{len(logits)} rows, {len(requests)} requests"
        self._histories.drop_ended()
        self._masks.drop_ended()
        raw = logits.detach().to(torch.float32)  # [N, V]
        self._vocab_size = raw.shape[-1]
        step = _Step(raw, requests, self._return_logprobs)
        if requests and not self._return_logprobs and all(map(is_plain_greedy, requests)):
            step.take_most_likely()
        elif requests:
            step.process(self._histories, self._masks)
        step.describe()
        return step.result


def sample_plain(logits: torch.Tensor) -> SampledTokens | None:
    """Take the most likely token of each row; None if a row has none.

    Args:
        logits: [N, V] of any float dtype, on any device; not changed.
    """
    token_ids = most_likely_ids(logits.detach().to(torch.float32))
    if token_ids is None:
        return None
    return SampledTokens(token_ids, [], [], {}, is_plain=True)


class _Step:
    """One call of the sampler: its inputs, and the result while rows are being filled in."""

    def __init__(
        self, raw: torch.Tensor, requests: Sequence[RequestState], return_logprobs: bool
    ) -> None:
        """Start with no row drawn."""
        count = len(requests)
        self.result = SampledTokens(
            token_ids=[0] * count,
            logprobs=[math.nan] * count if return_logprobs else [],
            token_logprobs=[None] * count,
            errors={},
        )
        self._raw = raw
        self._requests = requests
        self._return_logprobs = return_logprobs

    def take_most_likely(self) -> None:
        """Fill in rows that are greedy on the logits as they are."""
        best = most_likely(self._raw)
        peaks = self._raw.gather(1, best[:, None])[:, 0]
        # fp64 holds every token id exactly, so that one transfer carries both.
        ids, values = torch.stack((best.to(torch.float64), peaks.to(torch.float64))).tolist()
        for row, value in enumerate(values):
            if math.isfinite(value):
                self.result.token_ids[row] = int(ids[row])
            else:
                self._fail(row, "the model's logits are not finite")

    def process(self, histories: HistoryCache, masks: GrammarMasks) -> None:
        """Fill in rows of any kind."""
        plans = self._plan(histories, masks)
        if self._raw.device.type == "cpu":
            for plan in plans:
                try:
                    self._draw_on_host(plan)
                except _ROW_FAULTS as fault:
                    self._fail(plan.row, str(fault), fault)
            return
        self._draw_in_groups(plans)

    def describe(self) -> None:
        """Add the log-probabilities that requests asked to see."""
        num_tops = {
            row: request.params.top_logprobs
            for row, request in enumerate(self._requests)
            if request.params.top_logprobs is not None and row not in self.result.errors
        }
        rows = list(num_tops)
        tokens = [self.result.token_ids[row] for row in rows]
        described = describe_tokens(self._raw, rows, tokens, list(num_tops.values()))
        for row, entry in zip(rows, described, strict=True):
            self.result.token_logprobs[row] = entry

    def _plan(self, histories: HistoryCache, masks: GrammarMasks) -> list[RowPlan]:
        """Plan each row; one that cannot be planned fails and is left out."""
        requests, vocab_size = self._requests, self._raw.shape[-1]
        numbers = uniform(
            [request.params.seed for request in requests],
            [request.num_tokens for request in requests],
        ).tolist()
        peaks = maxima(self._raw).tolist()  # NaN where any logit of the row is
        plans = []
        for row, request in enumerate(requests):
            processors = request.params.processors
            mends = processors is not None and processors.takes_invalid
            if not mends and not math.isfinite(peaks[row]):
                self._fail(row, "the model's logits are not finite")
                continue
            try:
                mask = masks.get(request, vocab_size)
                inputs = RowInputs(numbers[row], histories, vocab_size, mask)
                plans.append(plan_row(row, request, inputs))
            except GrammarFailedError as fault:
                self.result.errors[row] = fault
            except _ROW_FAULTS as fault:
                self._fail(row, str(fault), fault)
        return plans

    def _draw_on_host(self, plan: RowPlan) -> None:
        """Fill in one row; nothing it computes involves another."""
        row = self._raw[plan.row].numpy()  # [V]
        if plan.edits_logits:
            row = row.copy()
            edit_logits(torch.from_numpy(row)[None], [plan])
        best = int(row.argmax())
        if not math.isfinite(row[best]):
            self._fail_empty(plan)
            return
        candidates, place = Candidates(None, row), best
        if not plan.params.greedy:
            if plan.has_shaping_processors:
                shaped = shape_distribution(torch.from_numpy(row)[None], [plan])
                candidates = Candidates(None, shaped[0].numpy())
            else:
                candidates = shape_row(row, plan.params)
            place = draw_place(candidates.scores, plan.uniform)
        self.result.token_ids[plan.row] = candidates.token_at(place)
        if self._return_logprobs:
            self.result.logprobs[plan.row] = log_probability(candidates.scores, place)

    def _draw_in_groups(self, plans: Sequence[RowPlan]) -> None:
        """Fill in rows that share kernels with their like; those with processors go alone."""
        alone = [plan for plan in plans if plan.params.processors is not None]
        for plan in alone:
            try:
                self._draw_together([plan])
            except _ROW_FAULTS as fault:
                self._fail(plan.row, str(fault), fault)
        for greedy in (True, False):
            alike = [
                plan
                for plan in plans
                if plan.params.processors is None and plan.params.greedy is greedy
            ]
            if alike:
                self._draw_together(alike)

    def _draw_together(self, plans: Sequence[RowPlan]) -> None:
        """Fill in rows that are all greedy or all sampled and that share their kernels."""
        scores = take_rows(self._raw, [plan.row for plan in plans])  # [n, V]
        if any(plan.edits_logits for plan in plans):
            scores = scores.clone() if len(plans) == 1 else scores  # several are a copy already
            edit_logits(scores, plans)
        tokens = most_likely(scores)  # [n]
        alive = torch.isfinite(scores.gather(1, tokens[:, None])[:, 0]).tolist()
        for plan, is_alive in zip(plans, alive, strict=True):
            if not is_alive:  # its row holds no number from here on, and nobody reads it
                self._fail_empty(plan)
        if not plans[0].params.greedy:
            scores = shape_distribution(scores, plans)
            tokens = draw(scores, [plan.uniform for plan in plans], tokens)
        for plan, token in zip(plans, tokens.tolist(), strict=True):
            self.result.token_ids[plan.row] = token
        if self._return_logprobs:
            chosen = scores.log_softmax(dim=-1).gather(1, tokens[:, None])[:, 0]
            for plan, logprob in zip(plans, chosen.tolist(), strict=True):
                self.result.logprobs[plan.row] = logprob

    def _fail_empty(self, plan: RowPlan) -> None:
        """Record that a row has no token because nothing may be drawn."""
        if plan.forbidden is None:
            self._fail(plan.row, _NOTHING_LEFT)
        else:
            self.result.errors[plan.row] = GrammarFailedError(_GRAMMAR_LEFT_NOTHING)

    def _fail(self, row: int, reason: str, cause: Exception | None = None) -> None:
        """Record that a row has no token."""
        name = self._requests[row].request_id
        error = RequestFailedError(f"request {name!r} cannot be sampled: {reason}")
        error.__cause__ = cause
        self.result.errors[row] = error
