"""Chat answers: chunks and the whole object.

The first chunk of a choice carries the role; it is made together with the first text, so that the
time to the first chunk is the time to the first token. Event loop only.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from api_schemas import (
    ChatChoice,
    ChatChunkChoice,
    ChatCompletion,
    ChatCompletionChunk,
    ChatDelta,
    ChatLogprobs,
)
from server.answer_plan import AnswerPlan
from server.message_parts import CallArguments, TextPart
from server.message_reader import MessageDelta, MessageReader
from server.rendering.answer import AnswerHead, AnswerOptions, UsageCounter
from server.rendering.logprobs import (
    TokenNames,
    render_chat_logprobs,
    render_prompt_logprobs,
)
from server.rendering.message import MessageRenderer
from server.sse import TextFrames, frame
from server.text_stream import TextDelta
from server.vocabulary import Vocabulary


@dataclass(slots=True)
class _Choice:
    """One answer while it is read and rendered.

    Attributes:
        has_begun: Whether the chunk with the role has been sent.
        ending: Why it ended; empty until then.
        frames: Make events that hold a piece of text, or of the arguments of the call of a number.
    """

    reader: MessageReader
    message: MessageRenderer
    has_begun: bool = False
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[Any] = field(default_factory=list)
    ending: dict[str, Any] = field(default_factory=dict)
    frames: dict[int | None, TextFrames] = field(default_factory=dict)


class ChatRenderer:
    """Renders one chat request."""

    def __init__(
        self,
        head: AnswerHead,
        options: AnswerOptions,
        vocabulary: Vocabulary,
        plan: AnswerPlan,
        stop: Callable[[int], None],
    ) -> None:
        """Start with nothing rendered.

        Args:
            head: Keys that all objects repeat.
            options: What the client wants to see.
            vocabulary: Names tokens in log-probabilities.
            plan: What is to become of the answers.
            stop: Ends the generation of a choice that is complete.
        """
        self._head = head.fields()
        self._options = options
        self._vocabulary = vocabulary
        self._names = TokenNames(vocabulary, as_ids=options.tokens_as_ids)
        self._about_prompt: dict[str, Any] = {}
        self._plan = plan
        self._stop = stop
        self._prompt = list(plan.prompt.token_ids)
        self._usage = UsageCounter(len(self._prompt), plan.num_choices)
        self._no_details: dict[str, Any] = {"logprobs": None}
        if options.token_ids:
            self._no_details["token_ids"] = []
        self._choices: dict[int, _Choice] = {}

    @property
    def includes_usage(self) -> bool:
        """Whether the stream ends with `usage_chunk`."""
        return self._options.include_usage

    def chunks(self, index: int, delta: TextDelta) -> Iterator[ChatCompletionChunk]:
        """Yield the role if it is the first piece, a chunk for each part, and the ending."""
        choice = self._choice(index)
        message = self._read(index, choice, delta)
        if message is not None:
            yield from self._message_chunks(index, choice, message)

    def frames(self, index: int, delta: TextDelta) -> Iterator[bytes]:
        """Yield the chunks as events."""
        choice = self._choice(index)
        message = self._read(index, choice, delta)
        if message is None:
            return
        piece = message.lone_piece if choice.has_begun and self._options.text_alone else None
        if piece is None:
            yield from map(frame, self._message_chunks(index, choice, message))
            return
        self._usage.count(index, message)
        choice.message.collect(piece)
        yield self._piece_frames(index, choice, piece).frame(piece.text)

    def _piece_frames(
        self, index: int, choice: _Choice, piece: TextPart | CallArguments
    ) -> TextFrames:
        """Return what makes events of pieces like this one."""
        kind = piece.index if isinstance(piece, CallArguments) else None
        frames = choice.frames.get(kind)
        if frames is None:
            delta = choice.message.rendered(replace(piece, text=TextFrames.PLACE))
            chunk = self._chunk(index, delta, finish_reason=None, **self._no_details)
            frames = choice.frames[kind] = TextFrames(chunk)
        return frames

    def _message_chunks(
        self, index: int, choice: _Choice, message: MessageDelta
    ) -> Iterator[ChatCompletionChunk]:
        if not choice.has_begun:
            yield self._role_chunk(index, message)
            choice.has_begun = True
        self._usage.count(index, message)
        details = self._details(message)
        for part in message.parts:
            piece = choice.message.delta(part)
            yield self._chunk(index, piece, finish_reason=None, **details)
            details = self._no_details
        if message.finish_reason is not None:
            yield self._chunk(index, ChatDelta(), **self._ending(message), **details)

    def usage_chunk(self) -> ChatCompletionChunk:
        """Return the chunk without choices."""
        return self._finish_chunk(choices=[], usage=self._usage.usage())

    def collect(self, index: int, delta: TextDelta) -> None:
        """Keep a piece for the whole answer."""
        choice = self._choice(index)
        message = self._read(index, choice, delta)
        if message is None:
            return
        self._usage.count(index, message)
        self._note_prompt(message)
        for part in message.parts:
            choice.message.collect(part)
        choice.token_ids += message.token_ids
        choice.logprobs += render_chat_logprobs(self._names, message.logprobs)
        if message.finish_reason is not None:
            choice.ending = self._ending(message)

    def whole(self) -> ChatCompletion:
        """Return the whole answer."""
        return ChatCompletion(
            object="chat.completion",
            **self._head,
            choices=[
                self._whole_choice(index, choice) for index, choice in sorted(self._choices.items())
            ],
            usage=self._usage.usage(),
            **self._about_prompt,
        )

    def _choice(self, index: int) -> _Choice:
        """Return the state of a choice, made when its first piece comes."""
        choice = self._choices.get(index)
        if choice is None:
            message = MessageRenderer(
                is_legacy=self._plan.tools.is_legacy, short_ids=self._plan.formats.short_call_ids
            )
            choice = self._choices[index] = _Choice(self._plan.reader(), message)
        return choice

    def _read(self, index: int, choice: _Choice, delta: TextDelta) -> MessageDelta | None:
        """Take a piece of text, and end what nobody will read."""
        message = choice.reader.push(delta)
        if choice.reader.is_complete:
            self._stop(index)
        return message

    def _ending(self, message: MessageDelta) -> dict[str, Any]:
        """Return finish_reason, and stop_reason where there is one."""
        assert message.finish_reason is not None
        reason = self._plan.finish_reason(message.finish_reason, has_calls=message.has_calls)
        fields: dict[str, Any] = {"finish_reason": reason}
        if message.stop_reason is not None:
            fields["stop_reason"] = message.stop_reason
        return fields

    def _whole_choice(self, index: int, choice: _Choice) -> ChatChoice:
        assert choice.ending, "an answer was rendered before it ended"
        extras: dict[str, Any] = {}
        if self._options.token_ids:
            extras["token_ids"] = choice.token_ids
        return ChatChoice(
            index=index,
            message=choice.message.whole(),
            logprobs=self._logprobs(choice.logprobs),
            **choice.ending,
            **extras,
        )

    def _details(self, delta: MessageDelta) -> dict[str, Any]:
        """Return what stands beside the text of a chunk."""
        if not (delta.logprobs or self._options.token_ids):
            return self._no_details
        entries = render_chat_logprobs(self._names, delta.logprobs)
        details: dict[str, Any] = {"logprobs": self._logprobs(entries) if entries else None}
        if self._options.token_ids:
            details["token_ids"] = delta.token_ids
        return details

    def _logprobs(self, entries: list[Any]) -> ChatLogprobs | None:
        if not self._options.logprobs:
            return None
        return ChatLogprobs(content=entries, refusal=None)

    def _note_prompt(self, message: MessageDelta) -> dict[str, Any]:
        """Return what is said of the prompt, the first time that there is something to say."""
        if self._about_prompt:
            return {}
        if self._options.token_ids:
            self._about_prompt["prompt_token_ids"] = self._prompt
        if self._options.prompt_logprobs and message.prompt_logprobs is not None:
            self._about_prompt["prompt_logprobs"] = render_prompt_logprobs(
                self._vocabulary, message.prompt_logprobs
            )
        return self._about_prompt

    def _role_chunk(self, index: int, message: MessageDelta) -> ChatCompletionChunk:
        extras = self._note_prompt(message)
        delta = ChatDelta(role="assistant", content="")
        return self._chunk(index, delta, extras, logprobs=None, finish_reason=None)

    def _chunk(
        self, index: int, delta: ChatDelta, extras: dict[str, Any] | None = None, **fields: Any
    ) -> ChatCompletionChunk:
        choice = ChatChunkChoice(index=index, delta=delta, **fields)
        return self._finish_chunk(choices=[choice], **self._running_usage(), **(extras or {}))

    def _running_usage(self) -> dict[str, Any]:
        """Return the usage key of a chunk: counts, null, or nothing at all."""
        if self._options.continuous_usage:
            return {"usage": self._usage.usage()}
        return {"usage": None} if self._options.include_usage else {}

    def _finish_chunk(self, **fields: Any) -> ChatCompletionChunk:
        return ChatCompletionChunk(object="chat.completion.chunk", **self._head, **fields)
