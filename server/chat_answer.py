"""A chat completion as something to build other answers on: its chunks and its usage.

The routes that speak another protocol than chat completions translate their requests into one and
its chunks into their own, so that whatever a chat can do they can. Event loop only.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass

from api_schemas import ChatCompletionChunk, Usage
from server.generation import Generation
from server.rendering.chat import ChatRenderer


@dataclass(frozen=True, slots=True)
class ChatAnswer:
    """A running chat completion.

    Attributes:
        generation: What the engine computes.
        renderer: Makes its chunks.
        num_prompt_tokens: Length of the prompt.
    """

    generation: Generation
    renderer: ChatRenderer
    num_prompt_tokens: int

    async def chunks(self) -> AsyncGenerator[ChatCompletionChunk, None]:
        """Yield the chunks; whatever ends them, nothing runs on.

        Raises:
            EngineError: What ended the generation, if it was an error.
        """
        async with aclosing(self.generation.deltas()) as deltas:
            async for numbered in deltas:
                for chunk in self.renderer.chunks(numbered.index, numbered.item):
                    yield chunk

    def usage(self) -> Usage:
        """Return the counts so far."""
        usage = self.renderer.usage_chunk().usage
        assert usage is not None
        return usage
