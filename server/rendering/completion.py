"""Text completions: chunks and the whole object, which have one shape.

With echo, the first chunk of a choice holds the prompt's text. Event loop only.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from api_schemas import Completion, CompletionChoice, CompletionLogprobs
from server.rendering.answer import (
    AnswerHead,
    AnswerOptions,
    CollectedChoice,
    UsageCounter,
    ending_fields,
)
from server.rendering.logprobs import CompletionLogprobsRenderer
from server.text_stream import TextDelta
from server.vocabulary import Vocabulary


class CompletionRenderer:
    """Renders one completions request."""

    def __init__(
        self,
        head: AnswerHead,
        options: AnswerOptions,
        vocabulary: Vocabulary,
        *,
        prompts: Sequence[list[int]],
        num_choices: int,
        echoes: Sequence[str] | None,
    ) -> None:
        """Start with nothing rendered.

        Args:
            head: Keys that all objects repeat.
            options: What the client wants to see.
            vocabulary: Names tokens in log-probabilities.
            prompts: Token ids of each prompt.
            num_choices: Choices per prompt.
            echoes: Text of each prompt when it is to be repeated.
        """
        self._head = head.fields()
        self._options = options
        self._prompts = prompts
        self._num_choices = num_choices
        self._echoes = echoes
        self._usage = UsageCounter(sum(map(len, prompts)), num_choices)
        self._begun: set[int] = set()
        self._collected: defaultdict[int, CollectedChoice] = defaultdict(CollectedChoice)
        self._logprobs: defaultdict[int, CompletionLogprobsRenderer] = defaultdict(
            lambda: CompletionLogprobsRenderer(vocabulary)
        )

    @property
    def includes_usage(self) -> bool:
        """Whether the stream ends with `usage_chunk`."""
        return self._options.include_usage

    def chunks(self, index: int, delta: TextDelta) -> Iterator[Completion]:
        """Yield the echo if it is the first piece, then the piece, with its ending if it has one.

        Unlike in chats, the last text and the ending share a chunk, as they do at OpenAI.
        """
        if index not in self._begun:
            yield from self._echo_chunk(index)
            self._begun.add(index)
        self._usage.count(index, delta)
        extras: dict[str, Any] = {"logprobs": self._delta_logprobs(index, delta)}
        if self._options.token_ids:
            extras["token_ids"] = delta.token_ids
        extras.update(ending_fields(delta))
        yield self._chunk(CompletionChoice(index=index, text=delta.text, **extras))

    def usage_chunk(self) -> Completion:
        """Return the chunk without choices."""
        return self._object(choices=[], usage=self._usage.usage())

    def collect(self, index: int, delta: TextDelta) -> None:
        """Keep a piece for the whole answer."""
        self._usage.count(index, delta)
        choice = self._collected[index]
        choice.add(delta)
        if (entries := self._delta_logprobs(index, delta)) is not None:
            choice.logprobs.append(entries)

    def whole(self) -> Completion:
        """Return the whole answer."""
        choices = [
            self._whole_choice(index, choice) for index, choice in sorted(self._collected.items())
        ]
        return self._object(choices=choices, usage=self._usage.usage())

    def _whole_choice(self, index: int, choice: CollectedChoice) -> CompletionChoice:
        extras: dict[str, Any] = {"logprobs": None}
        if self._options.logprobs:
            extras["logprobs"] = _join_logprobs(choice.logprobs)
        if self._options.token_ids:
            extras.update(token_ids=choice.token_ids, prompt_token_ids=self._prompt_of(index))
        text = self._echo_of(index) + "".join(choice.texts)
        return CompletionChoice(index=index, text=text, **extras, **choice.ending())

    def _echo_chunk(self, index: int) -> Iterator[Completion]:
        """Yield the chunk that opens a choice, if there is anything to say in it."""
        text = self._echo_of(index)
        if not (text or self._options.token_ids):
            return
        extras: dict[str, Any] = {}
        if self._options.token_ids:
            extras.update(token_ids=[], prompt_token_ids=self._prompt_of(index))
        yield self._chunk(
            CompletionChoice(index=index, text=text, logprobs=None, finish_reason=None, **extras)
        )

    def _echo_of(self, index: int) -> str:
        return "" if self._echoes is None else self._echoes[index // self._num_choices]

    def _prompt_of(self, index: int) -> list[int]:
        return self._prompts[index // self._num_choices]

    def _delta_logprobs(self, index: int, delta: TextDelta) -> CompletionLogprobs | None:
        if not (self._options.logprobs and delta.logprobs):
            return None
        return self._logprobs[index].render(delta)

    def _chunk(self, choice: CompletionChoice) -> Completion:
        usage: dict[str, Any] = {"usage": None} if self._options.include_usage else {}
        if self._options.continuous_usage:
            usage["usage"] = self._usage.usage()
        return self._object(choices=[choice], **usage)

    def _object(self, **fields: Any) -> Completion:
        return Completion(object="text_completion", **self._head, **fields)


def _join_logprobs(pieces: Sequence[CompletionLogprobs]) -> CompletionLogprobs:
    """Join the four lists of all pieces."""
    return CompletionLogprobs(
        tokens=[token for piece in pieces for token in piece.tokens],
        token_logprobs=[value for piece in pieces for value in piece.token_logprobs],
        top_logprobs=[value for piece in pieces for value in piece.top_logprobs or ()],
        text_offset=[offset for piece in pieces for offset in piece.text_offset],
    )
