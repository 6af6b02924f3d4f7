"""What both kinds of answers share: their head, their usage, their options and their interface.

An `AnswerRenderer` keeps the state of one HTTP request. Event loop only.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from api_schemas import (
    CompletionTokensDetails,
    PromptTokensDetails,
    SamplingFields,
    Usage,
    WireModel,
)
from server.message_reader import MessageDelta
from server.text_stream import TextDelta


@dataclass(frozen=True, slots=True)
class AnswerHead:
    """The keys that an answer and all its chunks repeat.

    Attributes:
        id: Unique, with the prefix of its kind.
        created: In seconds since 1970.
        model: The name that the client asked for.
        system_fingerprint: Names the weights, the number format and the version.
        service_tier: What the client sent, if it did.
    """

    id: str
    created: int
    model: str
    system_fingerprint: str
    service_tier: str | None

    def fields(self) -> dict[str, Any]:
        """Return the keys as constructor arguments; an absent service tier stays absent."""
        fields: dict[str, Any] = {
            "id": self.id,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.system_fingerprint,
        }
        if self.service_tier is not None:
            fields["service_tier"] = self.service_tier
        return fields


@dataclass(frozen=True, slots=True)
class AnswerOptions:
    """What the client wants in its answer.

    Attributes:
        logprobs: Log-probabilities.
        token_ids: Token ids beside the text.
        tokens_as_ids: Log-probabilities name tokens by their ids.
        prompt_logprobs: What the model says of the prompt.
        include_usage: Streams only: a last chunk with the usage.
        continuous_usage: Streams only: running counts with every chunk.
    """

    logprobs: bool
    token_ids: bool
    tokens_as_ids: bool
    prompt_logprobs: bool
    include_usage: bool
    continuous_usage: bool

    @property
    def text_alone(self) -> bool:
        """Whether a chunk in the middle of a stream has nothing of its own but its text."""
        return not (
            self.logprobs or self.token_ids or self.prompt_logprobs or self.continuous_usage
        )


def to_answer_options(body: SamplingFields, *, logprobs: bool) -> AnswerOptions:
    """Read the options from a request."""
    stream = body.stream_options
    return AnswerOptions(
        logprobs=logprobs,
        token_ids=body.return_token_ids,
        tokens_as_ids=body.return_tokens_as_token_ids,
        prompt_logprobs=body.prompt_logprobs is not None,
        include_usage=stream is not None and stream.include_usage,
        continuous_usage=stream is not None and stream.continuous_usage_stats,
    )


@dataclass(slots=True)
class UsageCounter:
    """Counts tokens while an answer is made.

    Attributes:
        num_prompt_tokens: All prompts, each once.
        num_choices: Choices per prompt; the first one tells how much of the prompt was cached.
        num_completion_tokens: All choices.
    """

    num_prompt_tokens: int
    num_choices: int
    num_completion_tokens: int = 0
    reasoning_by_choice: dict[int, int] = field(default_factory=dict)
    cached_by_prompt: dict[int, int] = field(default_factory=dict)

    def count(self, index: int, delta: TextDelta | MessageDelta) -> None:
        """Take a piece into account."""
        self.num_completion_tokens += len(delta.token_ids)
        if index % self.num_choices == 0:
            self.cached_by_prompt[index] = delta.num_cached_tokens
        if isinstance(delta, MessageDelta):
            self.reasoning_by_choice[index] = delta.num_reasoning_tokens

    def usage(self) -> Usage:
        """Return the counts so far."""
        return Usage(
            prompt_tokens=self.num_prompt_tokens,
            completion_tokens=self.num_completion_tokens,
            total_tokens=self.num_prompt_tokens + self.num_completion_tokens,
            prompt_tokens_details=PromptTokensDetails(
                cached_tokens=sum(self.cached_by_prompt.values())
            ),
            completion_tokens_details=CompletionTokensDetails(
                reasoning_tokens=sum(self.reasoning_by_choice.values())
            ),
        )


class AnswerRenderer(Protocol):
    """Makes the wire objects of one HTTP request."""

    @property
    def includes_usage(self) -> bool:
        """Whether the stream ends with `usage_chunk`."""

    def chunks(self, index: int, delta: TextDelta) -> Iterator[WireModel]:
        """Yield the chunks of a piece of a choice."""

    def frames(self, index: int, delta: TextDelta) -> Iterator[bytes]:
        """Yield the chunks as events of a stream; either this or `chunks`, to the end."""

    def usage_chunk(self) -> WireModel:
        """Return the chunk that carries the usage."""

    def collect(self, index: int, delta: TextDelta) -> None:
        """Keep a piece for the whole answer."""

    def whole(self) -> WireModel:
        """Return the whole answer."""


@dataclass(slots=True)
class CollectedChoice:
    """The joined pieces of a choice.

    Attributes:
        last: Its last piece, which says why it ended.
    """

    texts: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[Any] = field(default_factory=list)
    last: TextDelta | None = None
    sum_logprobs: float = 0.0

    @property
    def mean_logprob(self) -> float:
        """The mean over the choice's tokens, where they have log-probabilities."""
        return self.sum_logprobs / max(len(self.token_ids), 1)

    def add(self, delta: TextDelta) -> None:
        """Append a piece."""
        self.sum_logprobs += sum(entry.logprob for entry in delta.logprobs)
        self.texts.append(delta.text)
        self.token_ids.extend(delta.token_ids)
        if delta.finish_reason is not None:
            self.last = delta

    def ending(self) -> dict[str, Any]:
        """Return the keys that say why the choice ended."""
        assert self.last is not None, "an answer was collected before it ended"
        return ending_fields(self.last)


def ending_fields(delta: TextDelta) -> dict[str, Any]:
    """Return finish_reason, and stop_reason where there is one."""
    fields: dict[str, Any] = {"finish_reason": delta.finish_reason}
    if delta.stop_reason is not None:
        fields["stop_reason"] = delta.stop_reason
    return fields
