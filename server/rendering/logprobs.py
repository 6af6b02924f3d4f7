"""Log-probabilities on the wire, in the chat form and in the older form of text completions.

Values are of the model's own distribution, before temperature and penalties; what JSON cannot say
(minus infinity) becomes -9999. Event loop only.
"""

import codecs
import math
from collections.abc import Sequence

from api_schemas import CompletionLogprobs, TokenLogprob, TopLogprob
from engine import TokenLogprobs
from server.text_stream import TextDelta
from server.vocabulary import Vocabulary

SMALLEST_LOGPROB = -9999.0


def clamp_logprob(value: float) -> float:
    """Return a number that JSON can hold."""
    return value if math.isfinite(value) and value > SMALLEST_LOGPROB else SMALLEST_LOGPROB


def render_chat_logprobs(
    vocabulary: Vocabulary, entries: Sequence[TokenLogprobs]
) -> list[TokenLogprob]:
    """Return the chat form, one entry per token."""
    return [
        TokenLogprob(
            token=vocabulary.token_text(entry.token_id),
            logprob=clamp_logprob(entry.logprob),
            bytes=list(vocabulary.token_bytes(entry.token_id)),
            top_logprobs=[
                TopLogprob(
                    token=vocabulary.token_text(token_id),
                    logprob=clamp_logprob(logprob),
                    bytes=list(vocabulary.token_bytes(token_id)),
                )
                for token_id, logprob in entry.top
            ],
        )
        for entry in entries
    ]


class CompletionLogprobsRenderer:
    """Makes the older form for the pieces of one choice; keeps where in the text it stands."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        """Start at the beginning of the text.

        Args:
            vocabulary: Names the tokens.
        """
        self._vocabulary = vocabulary
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._offset = 0
        self._end = 0
        self._at_start = True

    def render(self, delta: TextDelta) -> CompletionLogprobs:
        """Return the entries of a piece; each offset lies inside the text sent so far."""
        self._end += len(delta.text)
        if self._at_start and delta.text:
            self._at_start = False
            first = self._vocabulary.token_text(delta.token_ids[0])
            if first.startswith(" ") and not delta.text.startswith(" "):
                # Such tokenizers drop the blank before the first word.
                self._offset -= 1
        offsets = [self._advance(entry.token_id) for entry in delta.logprobs]
        return CompletionLogprobs(
            tokens=[self._vocabulary.token_text(entry.token_id) for entry in delta.logprobs],
            token_logprobs=[clamp_logprob(entry.logprob) for entry in delta.logprobs],
            top_logprobs=[self._alternatives(entry) for entry in delta.logprobs],
            text_offset=offsets,
        )

    def _advance(self, token_id: int) -> int:
        """Return where a token begins and move behind it."""
        begin = max(min(self._offset, self._end), 0)
        self._offset += len(self._utf8.decode(self._vocabulary.token_bytes(token_id)))
        self._offset = min(self._offset, self._end)
        return begin

    def _alternatives(self, entry: TokenLogprobs) -> dict[str, float]:
        """Return the most likely tokens and the chosen one; equal texts stay apart."""
        pairs = list(entry.top)
        if all(token_id != entry.token_id for token_id, _ in pairs):
            pairs.append((entry.token_id, entry.logprob))
        alternatives: dict[str, float] = {}
        for token_id, logprob in pairs:
            text = self._vocabulary.token_text(token_id)
            name = text if text not in alternatives else f"token_id:{token_id}"
            alternatives[name] = clamp_logprob(logprob)
        return alternatives
