"""From tokens to pieces of text: detokenising, stop strings and the reason of the end.

`TextAssembler` is the pure part, one per choice; `decode` runs it over a `CompletionStream`. A
piece carries every token that it took to make its text, so that token ids, log-probabilities and
counts stay aligned with the text and none is lost or sent twice; a token whose whole text is held
waits for it. Event loop only.
"""

from bisect import bisect_right
from collections.abc import AsyncGenerator, Iterator, Sequence
from dataclasses import dataclass, field, replace

from api_schemas import FinishReason
from engine import FinishReason as EngineFinishReason
from engine import TokenLogprobs
from server.completion_stream import CompletionStream, TokenDelta
from server.detokenizer import IncrementalDetokenizer
from server.stop_strings import StopStrings
from server.vocabulary import Vocabulary


@dataclass(frozen=True, slots=True)
class TextOptions:
    """How the text of an answer is made from its tokens.

    Attributes:
        stops: Stop strings.
        include_stop: Keep the match, or the text of the stop token, in the answer.
        skip_special_tokens: Hide special tokens.
        min_tokens: Tokens in which stop strings are not looked for.
    """

    stops: Sequence[str] = ()
    include_stop: bool = False
    skip_special_tokens: bool = True
    min_tokens: int = 0


@dataclass(frozen=True, slots=True)
class HiddenToken:
    """A special token that the text does not show.

    Attributes:
        place: Where it stood in the text, of the piece or, until there is one, of the answer.
        text: Its own text.
        number: How many tokens of the answer there were with it.
    """

    place: int
    text: str
    number: int


@dataclass(slots=True)
class TextDelta:
    """A piece of an answer.

    Attributes:
        text: May be empty in the last piece only.
        token_ids: The tokens that the piece took.
        logprobs: One entry per token, or none at all.
        finish_reason: Why the answer ended; in the last piece only.
        stop_reason: The stop string or stop token id that ended it.
        num_cached_tokens: Prompt tokens found in the cache.
        prompt_logprobs: What the model says of the prompt, if asked for; in the first piece only.
        hidden: Special tokens that the text does not show.
        token_ends: For each token, how many characters of the whole answer there were after it;
            stop strings and what is held because of them are counted.
    """

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    num_cached_tokens: int = 0
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    hidden: list[HiddenToken] = field(default_factory=list)
    token_ends: list[int] = field(default_factory=list)


class TextAssembler:
    """Turns the token deltas of one choice into text deltas."""

    def __init__(self, vocabulary: Vocabulary, options: TextOptions) -> None:
        """Start an empty answer."""
        self._vocabulary = vocabulary
        self._options = options
        self._detokenizer = IncrementalDetokenizer(
            vocabulary, skip_special_tokens=options.skip_special_tokens
        )
        self._stops = StopStrings(
            options.stops,
            special_texts=vocabulary.special_texts,
            include_match=options.include_stop,
        )
        self._num_tokens = 0
        self._num_characters = 0  # detokenised
        self._num_released = 0
        self._end = 0  # of the latest token that a piece has carried
        self._hidden: list[HiddenToken] = []
        self._pending = TextDelta()
        self.finished = False

    @property
    def found_stop_string(self) -> bool:
        """Whether a stop string has ended the answer."""
        return self._stops.matched is not None

    def push(self, delta: TokenDelta) -> TextDelta | None:
        """Take tokens; return a piece when there is text to show or the answer has ended."""
        pending = self._pending
        pending.num_cached_tokens = delta.num_cached_tokens
        pending.prompt_logprobs = pending.prompt_logprobs or delta.prompt_logprobs
        stopped = delta.finish_reason is EngineFinishReason.STOP
        last = len(delta.token_ids) - 1
        for position, token_id in enumerate(delta.token_ids):
            pending.token_ids.append(token_id)
            if delta.logprobs:
                pending.logprobs.append(delta.logprobs[position])
            self._num_tokens += 1
            closes = stopped and position == last
            pending.text += self._token_text(token_id, closes, delta.stop_reason)
            pending.token_ends.append(self._num_characters)
            if self._stops.matched is not None:
                break
        if self._stops.matched is not None or delta.finish_reason is not None:
            self._finish(delta)
        if not (pending.text or self.finished):
            return None
        self._pending = TextDelta(num_cached_tokens=delta.num_cached_tokens)
        self._place_hidden(pending)
        if not self.finished:
            self._hold_tokens(pending)
        return pending

    def _hold_tokens(self, piece: TextDelta) -> None:
        """Keep the tokens of a piece that none of its text comes from for the next one."""
        ends = piece.token_ends
        count = bisect_right(ends, self._num_released)
        if count < len(ends) and (ends[count - 1] if count else self._end) < self._num_released:
            count += 1
        self._end = ends[count - 1] if count else self._end
        if count == len(ends):
            return
        held = self._pending
        piece.token_ids, held.token_ids = piece.token_ids[:count], piece.token_ids[count:]
        piece.logprobs, held.logprobs = piece.logprobs[:count], piece.logprobs[count:]
        piece.token_ends, held.token_ends = ends[:count], ends[count:]

    def _place_hidden(self, piece: TextDelta) -> None:
        """Give a piece the hidden tokens that stand in it, and count its text as released."""
        start = self._num_released
        self._num_released += len(piece.text)
        inside = [one for one in self._hidden if one.place <= self._num_released]
        self._hidden = self._hidden[len(inside) :]
        piece.hidden = [replace(one, place=one.place - start) for one in inside]

    def _token_text(self, token_id: int, closes: bool, stop_reason: int | str | None) -> str:
        """Return the text that one more token releases."""
        if closes and not self._shows_closing_token(stop_reason):
            return self._hidden_text(token_id)
        text = self._detokenizer.push(token_id)
        self._num_characters += len(text)
        if not text and self._options.skip_special_tokens and self._vocabulary.is_special(token_id):
            own = self._vocabulary.token_text(token_id)
            self._hidden.append(HiddenToken(self._num_characters, own, self._num_tokens))
        if self._num_tokens <= self._options.min_tokens:
            return text
        if text:
            return self._stops.push(text)
        return self._hidden_text(token_id)

    def _hidden_text(self, token_id: int) -> str:
        """Let the stop strings see a special token that the client doesn't."""
        checked = self._num_tokens > self._options.min_tokens
        if not (checked and self._stops.sees_hidden and self._vocabulary.is_special(token_id)):
            return ""
        return self._stops.push(self._vocabulary.token_text(token_id), hidden=True)

    def _shows_closing_token(self, stop_reason: int | str | None) -> bool:
        """Return whether the token that ended the answer is part of its text."""
        if isinstance(stop_reason, str):
            return True  # the match is cut off with the other stop strings
        if stop_reason is not None:
            return self._options.include_stop
        return not self._options.skip_special_tokens

    def _finish(self, delta: TokenDelta) -> None:
        """Note why the answer ended and release what is held."""
        pending = self._pending
        self.finished = True
        if self._stops.matched is None:
            rest = self._detokenizer.flush()
            if self._num_tokens > self._options.min_tokens:
                rest = self._stops.push(rest)
            pending.text += rest
        if self._stops.matched is not None:
            pending.finish_reason = FinishReason.STOP
            pending.stop_reason = self._stops.matched
            return
        pending.text += self._stops.flush()
        pending.finish_reason = (
            FinishReason.STOP
            if delta.finish_reason is EngineFinishReason.STOP
            else FinishReason.LENGTH
        )
        pending.stop_reason = delta.stop_reason


async def decode(
    stream: CompletionStream, assembler: TextAssembler
) -> AsyncGenerator[TextDelta, None]:
    """Yield the text of a request piece by piece; a stop string ends the request itself.

    Raises:
        EngineError: What ended the request, if it was an error.
    """
    try:
        async for delta in stream:
            for one in _token_by_token(delta) if delta.logprobs else (delta,):
                piece = assembler.push(one)
                if piece is not None:
                    yield piece
                if assembler.finished:
                    return
    finally:
        stream.close(stopped=assembler.found_stop_string)


def _token_by_token(delta: TokenDelta) -> Iterator[TokenDelta]:
    """Yield the tokens of a delta one by one.

    What is said of a token goes with the part of the answer that it stands in, however many tokens
    have come at once because the reader was slow.
    """
    last = len(delta.token_ids) - 1
    for place, (token, logprobs) in enumerate(zip(delta.token_ids, delta.logprobs, strict=True)):
        one = TokenDelta([token], [logprobs], num_cached_tokens=delta.num_cached_tokens)
        if place == 0:
            one.prompt_logprobs = delta.prompt_logprobs
        if place == last:
            one.finish_reason, one.stop_reason = delta.finish_reason, delta.stop_reason
            one.pooled = delta.pooled
        yield one
