"""Which tokens the grammar of each request allows next, worked out while the model computes.

A thread of its own brings the matchers up to the accepted tokens and asks them for masks, between
two draws: a step waits for a mask only if its forward was quicker. A matcher follows the tokens of
its request and nothing else, so preempting and computing again changes nothing. Engine thread,
except where it is said otherwise.
"""

import time
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from engine.errors import EngineError, GrammarFailedError
from engine.requests import RequestState
from engine.sampling.grammar import Matcher

# A step waits for the masks of its rows, so a grammar that is slow to follow slows everybody. A
# mask takes tens of microseconds; what takes hundreds of times as long, on and on, is given up.
# In seconds of processor time: a start, and so much for each token.
ALLOWED_SECONDS = 1.0
ALLOWED_SECONDS_PER_TOKEN = 0.01


@dataclass(frozen=True, slots=True)
class Mask:
    """What a grammar says of a request's next token.

    Attributes:
        blocked: [V] bool, tokens that may not be drawn.
        must_end: Whether only tokens that end the answer are left.
    """

    blocked: npt.NDArray[np.bool_]
    must_end: bool


class _Row:
    """One request's matcher and the mask that is being made for its next token."""

    def __init__(self, request: RequestState) -> None:
        self.request = request
        self.mask: Future[Mask] | None = None
        self.num_masked = -1
        self._matcher: Matcher | None = None
        self._num_read = 0
        self._seconds = 0.0

    def make_mask(self, num_generated: int, vocab_size: int) -> Mask:
        """Bring the matcher up to the last accepted token and ask it; not on the engine thread."""
        params = self.request.params
        assert params.grammar is not None
        if self._seconds > ALLOWED_SECONDS + ALLOWED_SECONDS_PER_TOKEN * num_generated:
            raise GrammarFailedError("the grammar takes too long to follow")
        started = time.thread_time()
        try:
            matcher = self._matcher = self._matcher or params.grammar.matcher()
            for token in self.request.generated_tokens[self._num_read : num_generated]:
                matcher.accept(token)
            self._num_read = num_generated
            allowed = np.zeros(vocab_size, dtype=np.bool_)
            matcher.allow(allowed)
            is_complete = matcher.is_complete()
        except EngineError:
            raise
        except BaseException as cause:  # native code may raise what is no Exception
            raise GrammarFailedError(f"the grammar cannot be followed: {cause}") from cause
        self._seconds += time.thread_time() - started
        eos, stops = list(params.eos_token_ids), list(params.stop_token_ids)
        allowed[eos] = False
        must_end = is_complete and not allowed.any()
        if is_complete:
            allowed[eos] = True
            allowed[stops] = True
        return Mask(~allowed, must_end)


class GrammarMasks:
    """The masks of all requests that follow a grammar and have not ended."""

    def __init__(self) -> None:
        """Start without requests and without a thread."""
        self._rows: dict[str, _Row] = {}
        self._pool: ThreadPoolExecutor | None = None

    def prepare(self, requests: Iterable[RequestState], vocab_size: int) -> None:
        """Begin with the masks for the next token of each request; returns at once.

        Args:
            requests: Those that get a token in this step.
            vocab_size: Width of a logits row.
        """
        for request in requests:
            if request.params.grammar is not None:
                self._begin(request, vocab_size)

    def get(self, request: RequestState, vocab_size: int) -> Mask | None:
        """Return the mask for a request's next token, waiting for it; None without a grammar.

        Raises:
            GrammarFailedError: The grammar gave up.
        """
        if request.params.grammar is None:
            return None
        return self._begin(request, vocab_size).result()

    def drop_ended(self) -> None:
        """Forget the requests that have ended."""
        for key in [key for key, row in self._rows.items() if row.request.is_finished()]:
            del self._rows[key]

    def close(self) -> None:
        """End the thread; a later mask starts a new one."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = None
        self._rows.clear()

    def __len__(self) -> int:
        """Return how many requests are remembered."""
        return len(self._rows)

    def _begin(self, request: RequestState, vocab_size: int) -> Future[Mask]:
        """Return the mask that is being made, after the request's last accepted token."""
        row = self._rows.get(request.request_id)
        if row is None or row.request is not request:  # ids may be used again
            row = self._rows[request.request_id] = _Row(request)
        num_generated = len(request.generated_tokens)
        if row.mask is None or row.num_masked != num_generated:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(1, thread_name_prefix="grammar")
            row.num_masked = num_generated
            row.mask = self._pool.submit(row.make_mask, num_generated, vocab_size)
        return row.mask
