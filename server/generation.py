"""One HTTP request in the engine: its prompts, its choices and the text of each.

All choices are submitted before any text is read; if one is refused, those before it are
cancelled. `close` cancels whatever still runs and may be called at any time. Event loop only.
"""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from api_schemas import FinishReason, SamplingFields
from server.completion_stream import CompletionStream
from server.engine_client import EngineClient
from server.grammars.compiler import GrammarCompiler
from server.grammars.sources import GrammarRecipe
from server.interleave import Numbered, interleave
from server.parameters import RequestLimits, to_request_kwargs, to_text_options
from server.text_stream import TextAssembler, TextDelta, decode
from server.vocabulary import Vocabulary


@dataclass(frozen=True, slots=True)
class Choice:
    """One answer to one prompt.

    Attributes:
        stream: Its tokens; None when nothing is to be computed.
        assembler: Makes its text.
        is_silent: Whether it has no text: only what is said of its prompt is wanted.
    """

    stream: CompletionStream | None
    assembler: TextAssembler
    is_silent: bool = False

    async def deltas(self) -> AsyncGenerator[TextDelta, None]:
        """Yield the choice's text."""
        if self.stream is None:
            yield TextDelta(finish_reason=FinishReason.LENGTH)
            return
        if self.is_silent:
            yield await self._silent_delta(self.stream)
            return
        async with aclosing(decode(self.stream, self.assembler)) as deltas:
            async for delta in deltas:
                yield delta

    async def _silent_delta(self, stream: CompletionStream) -> TextDelta:
        """Return what is said of the prompt; the token that had to be drawn is dropped."""
        silent = TextDelta(finish_reason=FinishReason.LENGTH)
        try:
            async for delta in stream:
                silent.prompt_logprobs = silent.prompt_logprobs or delta.prompt_logprobs
                silent.num_cached_tokens = delta.num_cached_tokens
        finally:
            stream.close()
        return silent


class Generation:
    """The running choices of one HTTP request; index = prompt number * n + choice number.

    Attributes:
        request_id: The id of the answer.
        prompts: Token ids of each prompt.
        num_choices: Choices per prompt.
    """

    def __init__(self, request_id: str, prompts: Sequence[list[int]], num_choices: int) -> None:
        """Hold no choices yet; `start_generation` adds them."""
        self.request_id = request_id
        self.prompts = prompts
        self.num_choices = num_choices
        self.choices: list[Choice] = []

    def prompt_of(self, index: int) -> list[int]:
        """Return the prompt of a choice."""
        return self.prompts[index // self.num_choices]

    async def deltas(self) -> AsyncGenerator[Numbered[TextDelta], None]:
        """Yield the text of all choices as it comes; whatever ends it, nothing runs on."""
        try:
            if len(self.choices) == 1:
                async with aclosing(self.choices[0].deltas()) as deltas:
                    async for delta in deltas:
                        yield Numbered(0, delta)
                return
            sources = [choice.deltas() for choice in self.choices]
            async with aclosing(interleave(sources)) as merged:
                async for numbered in merged:
                    yield numbered
        finally:
            self.close()

    def fail(self, error: BaseException) -> None:
        """End what still runs with an error, which the reader of the text gets."""
        for choice in self.choices:
            if choice.stream is not None:
                choice.stream.fail(error)

    def stop(self, index: int) -> None:
        """End a choice whose text is complete, as a stop string does."""
        stream = self.choices[index].stream
        if stream is not None:
            stream.close(stopped=True)

    def close(self) -> None:
        """Cancel what still runs."""
        for choice in self.choices:
            if choice.stream is not None:
                choice.stream.close()


@dataclass(frozen=True, slots=True)
class GenerationSetting:
    """What every generation needs of the server.

    Attributes:
        client: Submits to the engine.
        vocabulary: Makes text of tokens.
        limits: What a request may ask for.
        grammars: Compiles what an answer must follow.
    """

    client: EngineClient
    vocabulary: Vocabulary
    limits: RequestLimits
    grammars: GrammarCompiler


async def start_generation(
    setting: GenerationSetting,
    body: SamplingFields,
    request_id: str,
    prompts: Sequence[list[int]],
    recipe: GrammarRecipe | None,
) -> Generation:
    """Submit every prompt with all its choices.

    Args:
        setting: The server's parts.
        body: The request.
        request_id: Unique; the engine's ids are made from it.
        prompts: Token ids of each prompt.
        recipe: What every answer must follow; None leaves them free.

    Raises:
        RequestError, EngineError: A prompt was refused; none is left running.
    """
    limits, options = setting.limits, to_text_options(body, setting.limits)
    arguments = [
        to_request_kwargs(body, num_prompt_tokens=len(prompt), limits=limits) for prompt in prompts
    ]
    if recipe is not None:
        grammar = await setting.grammars.compile(recipe)
        arguments = [{**keywords, "grammar": grammar} for keywords in arguments]
    count = body.num_answers
    generation = Generation(request_id, prompts, count)
    try:
        for number, keywords in enumerate(arguments):
            streams: list[CompletionStream | None] = [None] * count
            is_silent = keywords.get("max_new_tokens") == 0
            if is_silent and "prompt_logprobs" in keywords:
                keywords = {**keywords, "max_new_tokens": 1}
            if keywords.get("max_new_tokens") != 0:
                name = f"{request_id}-{number}"
                streams[:] = setting.client.submit(name, prompts[number], keywords, count)
            for stream in streams:
                assembler = TextAssembler(setting.vocabulary, options)
                generation.choices.append(Choice(stream, assembler, is_silent))
    except BaseException:
        generation.close()
        raise
    return generation
