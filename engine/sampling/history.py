"""Which tokens a request has seen, in order or counted, kept as flat arrays.

Penalties and logits processors need this at every step; rebuilding it from the token lists would
cost a request of n tokens O(n squared). Owned by the engine thread. Must never hold on to a request
that has ended.
"""

import numpy as np
import numpy.typing as npt

from engine.requests import RequestState

_MIN_CAPACITY = 64


class TokenHistory:
    """The distinct tokens of one request and their number of occurrences in the output.

    Attributes:
        request: The request this is about.
    """

    def __init__(self, request: RequestState, vocab_size: int) -> None:
        """Read the prompt once.

        Raises:
            ValueError: The prompt has an id that a logits row does not have.
        """
        distinct = np.unique(np.array(request.prompt_ids, dtype=np.int64))
        if len(distinct) and not 0 <= distinct[0] <= distinct[-1] < vocab_size:
            raise ValueError(f"prompt token ids lie outside 0 to {vocab_size - 1}")
        self.request = request
        self._size = len(distinct)
        self._ids = np.zeros(max(2 * self._size, _MIN_CAPACITY), dtype=np.int64)
        self._ids[: self._size] = distinct
        self._counts = np.zeros(len(self._ids), dtype=np.float32)
        self._places = {token: place for place, token in enumerate(distinct.tolist())}
        self._num_read = 0

    def catch_up(self) -> None:
        """Count the output tokens accepted since the last call."""
        for token in self.request.generated_tokens[self._num_read :]:
            place = self._place_of(token)  # first: it may replace the arrays
            self._counts[place] += 1
        self._num_read = len(self.request.generated_tokens)

    @property
    def token_ids(self) -> npt.NDArray[np.int64]:
        """[S] int64, each token of the prompt or the output once; a view."""
        return self._ids[: self._size]

    @property
    def output_counts(self) -> npt.NDArray[np.float32]:
        """[S] float32, how often each of them occurs in the output; a view."""
        return self._counts[: self._size]

    def _place_of(self, token: int) -> int:
        """Return where a token is counted, making room for a new one."""
        place = self._places.get(token)
        if place is None:
            if self._size == len(self._ids):
                self._ids = np.concatenate((self._ids, np.zeros_like(self._ids)))
                self._counts = np.concatenate((self._counts, np.zeros_like(self._counts)))
            place = self._places[token] = self._size
            self._ids[place] = token
            self._size += 1
        return place


class TokenSequence:
    """The tokens of one request, prompt and output, in one array.

    Attributes:
        request: The request this is about.
    """

    def __init__(self, request: RequestState) -> None:
        """Read the prompt once."""
        self.request = request
        self._ids = np.empty(2 * request.num_tokens + _MIN_CAPACITY, dtype=np.int64)
        self._size = len(request.prompt_ids)
        self._ids[: self._size] = request.prompt_ids

    def catch_up(self) -> None:
        """Append the output tokens accepted since the last call."""
        new = self.request.generated_tokens[self._size - len(self.request.prompt_ids) :]
        size = self._size + len(new)
        if size > len(self._ids):
            self._ids = np.concatenate((self._ids, np.empty(size, dtype=np.int64)))
        self._ids[self._size : size] = new
        self._size = size

    @property
    def token_ids(self) -> npt.NDArray[np.int64]:
        """[L] int64; a view."""
        return self._ids[: self._size]


class HistoryCache:
    """What is remembered of the requests that need it and have not ended."""

    def __init__(self) -> None:
        """Start empty."""
        self._histories: dict[str, TokenHistory] = {}
        self._sequences: dict[str, TokenSequence] = {}

    def get(self, request: RequestState, vocab_size: int) -> TokenHistory:
        """Return the request's history, up to its last accepted token.

        Raises:
            ValueError: The prompt has an id that a logits row does not have.
        """
        history = self._histories.get(request.request_id)
        if history is None or history.request is not request:  # ids may be used again
            history = TokenHistory(request, vocab_size)
            self._histories[request.request_id] = history
        history.catch_up()
        return history

    def sequence(self, request: RequestState) -> npt.NDArray[np.int64]:
        """Return the request's tokens up to its last accepted one, [L] int64; a view."""
        kept = self._sequences.get(request.request_id)
        if kept is None or kept.request is not request:
            kept = self._sequences[request.request_id] = TokenSequence(request)
        kept.catch_up()
        return kept.token_ids

    def drop_ended(self) -> None:
        """Forget the requests that have ended."""
        _drop_ended(self._histories)
        _drop_ended(self._sequences)

    def __len__(self) -> int:
        """Return how many requests are remembered."""
        return len(self._histories.keys() | self._sequences.keys())


def _drop_ended(kept: dict[str, TokenHistory] | dict[str, TokenSequence]) -> None:
    ended = [key for key, entry in kept.items() if entry.request.is_finished()]
    for key in ended:
        del kept[key]
