"""Log-probabilities on the wire, in the chat form and in the older form of text completions.

Values are of the model's own distribution, before temperature and penalties; what JSON cannot say
(minus infinity) becomes -9999. Event loop only.
"""

import codecs
import math
from collections.abc import Sequence

from api_schemas import (
    CompletionLogprobs,
    PromptLogprob,
    PromptLogprobs,
    TokenLogprob,
    TopLogprob,
)
from engine import TokenLogprobs
from server.text_stream import TextDelta
from server.vocabulary import Vocabulary

SMALLEST_LOGPROB = -9999.0


def clamp_logprob(value: float) -> float:
    """Return a number that JSON can hold."""
    return value if math.isfinite(value) and value > SMALLEST_LOGPROB else SMALLEST_LOGPROB


class TokenNames:
    """What log-probabilities call a token."""

    def __init__(self, vocabulary: Vocabulary, *, as_ids: bool) -> None:
        """Choose between texts and numbers.

        Args:
            vocabulary: The tokens.
            as_ids: Write token_id:N, which tells every token from every other.
        """
        self.vocabulary = vocabulary
        self._as_ids = as_ids

    def __call__(self, token_id: int) -> str:
        """Return a token's name."""
        return id_name(token_id) if self._as_ids else self.vocabulary.token_text(token_id)


def id_name(token_id: int) -> str:
    """Return the name of a token that is told by its number."""
    return f"token_id:{token_id}"


def render_prompt_logprobs(
    vocabulary: Vocabulary, entries: Sequence[TokenLogprobs | None]
) -> PromptLogprobs:
    """Return what is said of each token of a prompt: the token itself and the most likely ones."""
    rendered: PromptLogprobs = []
    for entry in entries:
        if entry is None:
            rendered.append(None)
            continue
        ranked = [(token, logprob, rank) for rank, (token, logprob) in enumerate(entry.top, 1)]
        own = (entry.token_id, entry.logprob, entry.rank or len(ranked) + 1)
        rendered.append(
            {
                str(token): PromptLogprob(
                    logprob=clamp_logprob(logprob),
                    rank=rank,
                    decoded_token=vocabulary.token_text(token),
                )
                for token, logprob, rank in (*ranked, own)
            }
        )
    return rendered


def render_chat_logprobs(names: TokenNames, entries: Sequence[TokenLogprobs]) -> list[TokenLogprob]:
    """Return the chat form, one entry per token."""
    token_bytes = names.vocabulary.token_bytes
    return [
        TokenLogprob(
            token=names(entry.token_id),
            logprob=clamp_logprob(entry.logprob),
            bytes=list(token_bytes(entry.token_id)),
            top_logprobs=[
                TopLogprob(
                    token=names(token_id),
                    logprob=clamp_logprob(logprob),
                    bytes=list(token_bytes(token_id)),
                )
                for token_id, logprob in entry.top
            ],
        )
        for entry in entries
    ]


class CompletionLogprobsRenderer:
    """Makes the older form for the pieces of one choice; keeps where in the text it stands."""

    def __init__(self, names: TokenNames) -> None:
        """Start at the beginning of the text.

        Args:
            names: Names the tokens.
        """
        self._names = names
        self._vocabulary = names.vocabulary
        self._num_echoed = 0
        self._num_sent = 0
        self._begin = 0  # of the next token, among the characters of the answer

    def render_prompt(
        self, text: str, prompt: Sequence[int], entries: Sequence[TokenLogprobs | None]
    ) -> CompletionLogprobs:
        """Return the entries of an echoed prompt, which begins the choice's text.

        Args:
            text: The prompt as it is echoed.
            prompt: Its tokens.
            entries: What the model says of each of them; None for the first.
        """
        self._num_echoed = self._num_sent = len(text)
        return CompletionLogprobs(
            tokens=[self._names(token) for token in prompt],
            token_logprobs=[
                None if entry is None else clamp_logprob(entry.logprob) for entry in entries
            ],
            top_logprobs=[
                None if entry is None else self._alternatives(entry) for entry in entries
            ],
            text_offset=self._echoed_offsets(text, prompt),
        )

    def render(self, delta: TextDelta) -> CompletionLogprobs | None:
        """Return the entries of a piece; each offset lies inside the text sent so far.

        None for text whose tokens came with an earlier piece: it is sent when a stop string that
        it began is out of the question.
        """
        self._num_sent += len(delta.text)
        if not delta.logprobs:
            return None
        begins = [self._begin, *delta.token_ends]
        self._begin = begins.pop()
        return CompletionLogprobs(
            tokens=[self._names(entry.token_id) for entry in delta.logprobs],
            token_logprobs=[clamp_logprob(entry.logprob) for entry in delta.logprobs],
            top_logprobs=[self._alternatives(entry) for entry in delta.logprobs],
            text_offset=[min(self._num_echoed + begin, self._num_sent) for begin in begins],
        )

    def _echoed_offsets(self, text: str, prompt: Sequence[int]) -> list[int]:
        """Return where each token of an echoed prompt begins.

        The text may lack special tokens that were added to the prompt, and the blank of the first
        token, which some tokenizers drop.
        """
        utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")
        has_blank = self._vocabulary.token_text(prompt[0]).startswith(" ")
        offset = -1 if has_blank and text and not text.startswith(" ") else 0
        offsets = []
        for token_id in prompt:
            begin = max(offset, 0)
            offsets.append(begin)
            own = self._vocabulary.token_text(token_id)
            if self._vocabulary.is_special(token_id) and not text.startswith(own, begin):
                continue
            offset += len(utf8.decode(self._vocabulary.token_bytes(token_id)))
            offset = min(offset, len(text))
        return offsets

    def _alternatives(self, entry: TokenLogprobs) -> dict[str, float]:
        """Return the most likely tokens and the chosen one; equal texts stay apart."""
        pairs = list(entry.top)
        if all(token_id != entry.token_id for token_id, _ in pairs):
            pairs.append((entry.token_id, entry.logprob))
        alternatives: dict[str, float] = {}
        for token_id, logprob in pairs:
            text = self._names(token_id)
            name = text if text not in alternatives else id_name(token_id)
            alternatives[name] = clamp_logprob(logprob)
        return alternatives
