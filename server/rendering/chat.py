"""Chat answers: chunks and the whole object.

The first chunk of a choice carries the role; it is made together with the first text, so that the
time to the first chunk is the time to the first token. Event loop only.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from api_schemas import (
    ChatAnswer,
    ChatChoice,
    ChatChunkChoice,
    ChatCompletion,
    ChatCompletionChunk,
    ChatDelta,
    ChatLogprobs,
)
from server.rendering.answer import (
    AnswerHead,
    AnswerOptions,
    CollectedChoice,
    UsageCounter,
    ending_fields,
)
from server.rendering.logprobs import render_chat_logprobs
from server.text_stream import TextDelta
from server.vocabulary import Vocabulary


class ChatRenderer:
    """Renders one chat request."""

    def __init__(
        self,
        head: AnswerHead,
        options: AnswerOptions,
        vocabulary: Vocabulary,
        *,
        prompt: Sequence[int],
        num_choices: int,
    ) -> None:
        """Start with nothing rendered.

        Args:
            head: Keys that all objects repeat.
            options: What the client wants to see.
            vocabulary: Names tokens in log-probabilities.
            prompt: The prompt's token ids.
            num_choices: Choices of the request.
        """
        self._head = head.fields()
        self._options = options
        self._vocabulary = vocabulary
        self._prompt = list(prompt)
        self._usage = UsageCounter(len(prompt), num_choices)
        self._no_details: dict[str, Any] = {"logprobs": None}
        if options.token_ids:
            self._no_details["token_ids"] = []
        self._begun: set[int] = set()
        self._collected: defaultdict[int, CollectedChoice] = defaultdict(CollectedChoice)

    @property
    def includes_usage(self) -> bool:
        """Whether the stream ends with `usage_chunk`."""
        return self._options.include_usage

    def chunks(self, index: int, delta: TextDelta) -> Iterator[ChatCompletionChunk]:
        """Yield the role if it is the first piece, the text if there is any, and the ending."""
        if index not in self._begun:
            yield self._role_chunk(index)
            self._begun.add(index)
        self._usage.count(index, delta)
        details = self._details(delta)
        if delta.text:
            yield self._chunk(index, ChatDelta(content=delta.text), finish_reason=None, **details)
            details = self._no_details
        if delta.finish_reason is not None:
            yield self._chunk(index, ChatDelta(), **ending_fields(delta), **details)

    def usage_chunk(self) -> ChatCompletionChunk:
        """Return the chunk without choices."""
        return self._finish_chunk(choices=[], usage=self._usage.usage())

    def collect(self, index: int, delta: TextDelta) -> None:
        """Keep a piece for the whole answer."""
        self._usage.count(index, delta)
        choice = self._collected[index]
        choice.add(delta)
        choice.logprobs.extend(render_chat_logprobs(self._vocabulary, delta.logprobs))

    def whole(self) -> ChatCompletion:
        """Return the whole answer."""
        extras: dict[str, Any] = {}
        if self._options.token_ids:
            extras["prompt_token_ids"] = self._prompt
        return ChatCompletion(
            object="chat.completion",
            **self._head,
            choices=[
                self._whole_choice(index, choice)
                for index, choice in sorted(self._collected.items())
            ],
            usage=self._usage.usage(),
            **extras,
        )

    def _whole_choice(self, index: int, choice: CollectedChoice) -> ChatChoice:
        extras: dict[str, Any] = {}
        if self._options.token_ids:
            extras["token_ids"] = choice.token_ids
        answer = ChatAnswer(role="assistant", content="".join(choice.texts), refusal=None)
        return ChatChoice(
            index=index,
            message=answer,
            logprobs=self._logprobs(choice.logprobs),
            **choice.ending(),
            **extras,
        )

    def _details(self, delta: TextDelta) -> dict[str, Any]:
        """Return what stands beside the text of a chunk."""
        if not (delta.logprobs or self._options.token_ids):
            return self._no_details
        entries = render_chat_logprobs(self._vocabulary, delta.logprobs)
        details: dict[str, Any] = {"logprobs": self._logprobs(entries) if entries else None}
        if self._options.token_ids:
            details["token_ids"] = delta.token_ids
        return details

    def _logprobs(self, entries: list[Any]) -> ChatLogprobs | None:
        if not self._options.logprobs:
            return None
        return ChatLogprobs(content=entries, refusal=None)

    def _role_chunk(self, index: int) -> ChatCompletionChunk:
        extras: dict[str, Any] = {}
        if self._options.token_ids and not self._begun:
            extras["prompt_token_ids"] = self._prompt
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
