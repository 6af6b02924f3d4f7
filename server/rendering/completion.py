"""Text completions: chunks and the whole object, which have one shape.

With echo, the first chunk of a choice holds the prompt's text. Event loop only.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from api_schemas import Completion, CompletionChoice, CompletionLogprobs
from server.rendering.answer import (
    AnswerHead,
    AnswerOptions,
    CollectedChoice,
    UsageCounter,
    ending_fields,
)
from server.rendering.logprobs import (
    CompletionLogprobsRenderer,
    TokenNames,
    render_prompt_logprobs,
)
from server.sse import TextFrames, frame
from server.text_stream import TextDelta
from server.vocabulary import Vocabulary


@dataclass(slots=True)
class _Opening:
    """What is said of a choice before its first piece.

    Attributes:
        text: The echoed prompt.
        logprobs: Of the prompt's tokens, with echo.
        fields: Further keys of the choice.
    """

    text: str
    logprobs: CompletionLogprobs | None = None
    fields: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CompletionPrompts:
    """The prompts of a request and how many answers each has.

    Attributes:
        token_ids: Of each prompt.
        num_choices: Answers that are computed for each.
        num_shown: Answers that are given for each, the most likely ones.
        echoes: Text of each prompt when it is to be repeated.
    """

    token_ids: Sequence[list[int]]
    num_choices: int
    num_shown: int
    echoes: Sequence[str] | None = None


class CompletionRenderer:
    """Renders one completions request."""

    def __init__(
        self,
        head: AnswerHead,
        options: AnswerOptions,
        vocabulary: Vocabulary,
        prompts: CompletionPrompts,
    ) -> None:
        """Start with nothing rendered.

        Args:
            head: Keys that all objects repeat.
            options: What the client wants to see.
            vocabulary: Names tokens in log-probabilities.
            prompts: What is answered.
        """
        self._head = head.fields()
        self._options = options
        self._prompts = prompts.token_ids
        self._num_choices = prompts.num_choices
        self._num_shown = prompts.num_shown
        self._echoes = prompts.echoes
        self._names = TokenNames(vocabulary, as_ids=options.tokens_as_ids)
        self._usage = UsageCounter(sum(map(len, prompts.token_ids)), prompts.num_choices)
        self._begun: set[int] = set()
        self._text_frames: dict[int, TextFrames] = {}
        self._openings: dict[int, _Opening] = {}
        self._collected: defaultdict[int, CollectedChoice] = defaultdict(CollectedChoice)
        self._logprobs: defaultdict[int, CompletionLogprobsRenderer] = defaultdict(
            lambda: CompletionLogprobsRenderer(self._names)
        )

    @property
    def includes_usage(self) -> bool:
        """Whether the stream ends with `usage_chunk`."""
        return self._options.include_usage

    def chunks(self, index: int, delta: TextDelta) -> Iterator[Completion]:
        """Yield the opening if it is the first piece, then the piece, with its ending if it has it.

        Unlike in chats, the last text and the ending share a chunk, as they do at OpenAI.
        """
        if index not in self._begun:
            yield from self._opening_chunk(index, delta)
            self._begun.add(index)
        self._usage.count(index, delta)
        extras: dict[str, Any] = {"logprobs": self._delta_logprobs(index, delta)}
        if self._options.token_ids:
            extras["token_ids"] = delta.token_ids
        extras.update(ending_fields(delta))
        yield self._chunk(CompletionChoice(index=index, text=delta.text, **extras))

    def frames(self, index: int, delta: TextDelta) -> Iterator[bytes]:
        """Yield the chunks as events."""
        begun = index in self._begun
        if not (begun and self._options.text_alone) or delta.finish_reason is not None:
            yield from map(frame, self.chunks(index, delta))
            return
        self._usage.count(index, delta)
        frames = self._text_frames.get(index)
        if frames is None:
            choice = CompletionChoice(
                index=index, text=TextFrames.PLACE, logprobs=None, finish_reason=None
            )
            frames = self._text_frames[index] = TextFrames(self._chunk(choice))
        yield frames.frame(delta.text)

    def usage_chunk(self) -> Completion:
        """Return the chunk without choices."""
        return self._object(choices=[], usage=self._usage.usage())

    def collect(self, index: int, delta: TextDelta) -> None:
        """Keep a piece for the whole answer."""
        self._usage.count(index, delta)
        if index not in self._collected:
            self._openings[index] = self._opening(index, delta)
        choice = self._collected[index]
        choice.add(delta)
        if (entries := self._delta_logprobs(index, delta)) is not None:
            choice.logprobs.append(entries)

    def whole(self) -> Completion:
        """Return the whole answer, of each prompt's answers the most likely ones."""
        choices: list[CompletionChoice] = []
        for prompt in range(len(self._prompts)):
            for index in self._likely(prompt):
                choices.append(self._whole_choice(index, len(choices)))
        return self._object(choices=choices, usage=self._usage.usage())

    def _likely(self, prompt: int) -> list[int]:
        """Return which answers to a prompt are given, in their order."""
        first = prompt * self._num_choices
        indices = list(range(first, first + self._num_choices))
        if self._num_choices == self._num_shown:
            return indices
        indices.sort(key=lambda index: -self._collected[index].mean_logprob)
        return indices[: self._num_shown]

    def _whole_choice(self, index: int, shown_index: int) -> CompletionChoice:
        choice, opening = self._collected[index], self._openings[index]
        fields: dict[str, Any] = {"logprobs": None, **opening.fields}
        if self._options.logprobs:
            pieces = [] if opening.logprobs is None else [opening.logprobs]
            fields["logprobs"] = _join_logprobs([*pieces, *choice.logprobs])
        if self._options.token_ids:
            fields["token_ids"] = choice.token_ids
        text = opening.text + "".join(choice.texts)
        return CompletionChoice(index=shown_index, text=text, **fields, **choice.ending())

    def _opening_chunk(self, index: int, delta: TextDelta) -> Iterator[Completion]:
        """Yield the chunk that opens a choice, if there is anything to say in it."""
        opening = self._opening(index, delta)
        if not (opening.text or opening.fields or opening.logprobs):
            return
        fields = opening.fields
        if self._options.token_ids:
            fields = {**fields, "token_ids": []}
        yield self._chunk(
            CompletionChoice(
                index=index,
                text=opening.text,
                logprobs=opening.logprobs,
                finish_reason=None,
                **fields,
            )
        )

    def _opening(self, index: int, delta: TextDelta) -> _Opening:
        """Return what is said of a choice's prompt; the first piece knows its log-probabilities."""
        number = index // self._num_choices
        opening = _Opening("" if self._echoes is None else self._echoes[number])
        if self._options.token_ids:
            opening.fields["prompt_token_ids"] = self._prompts[number]
        known = delta.prompt_logprobs
        if known is not None and self._options.prompt_logprobs:
            rendered = render_prompt_logprobs(self._names.vocabulary, known)
            opening.fields["prompt_logprobs"] = rendered
        if known is not None and self._options.logprobs and self._echoes is not None:
            renderer = self._logprobs[index]
            opening.logprobs = renderer.render_prompt(opening.text, self._prompts[number], known)
        return opening

    def _delta_logprobs(self, index: int, delta: TextDelta) -> CompletionLogprobs | None:
        if not self._options.logprobs:
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
