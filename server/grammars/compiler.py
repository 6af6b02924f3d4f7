"""Compiling grammars off the event loop, each once: the most recently used ones are kept.

Bounded in size here, in work by the library's own counts, in time by how long a client is kept
waiting. Event loop, with two threads of its own.
"""

import asyncio
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from llguidance import LLMatcher, LLParserLimits

from server.grammars.matching import CompiledGrammar, GrammarError, check_matcher
from server.grammars.sources import GrammarRecipe
from server.grammars.tokens import make_tokenizer
from server.request_errors import RequestError
from server.vocabulary import Vocabulary

NUM_THREADS = 2
MAX_KEPT = 64
MAX_SOURCE_CHARACTERS = 512 * 1024
MAX_LEXER_STATES = 25_000
TIMEOUT_SECONDS = 10.0


class GrammarCompiler:
    """Compiles the grammars of one model's requests."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        """Start without grammars and without threads.

        Args:
            vocabulary: The model's tokens.
        """
        self._vocabulary = vocabulary
        self._pool = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="grammar-compiler")
        self._tokenizer: asyncio.Future[Any] | None = None
        self._kept: OrderedDict[str, asyncio.Future[CompiledGrammar]] = OrderedDict()

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def compile(self, recipe: GrammarRecipe) -> CompiledGrammar:
        """Return the compiled grammar, at once if it is known.

        Raises:
            RequestError: It cannot be compiled, is too large or takes too long.
        """
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                text = await loop.run_in_executor(self._pool, recipe.make)
                if len(text) > MAX_SOURCE_CHARACTERS:
                    raise GrammarError(f"it is longer than {MAX_SOURCE_CHARACTERS} characters")
                # A client that leaves ends its own wait only: others may wait for the same grammar.
                return await asyncio.shield(self._find(text))
        except TimeoutError:
            reason = f"it takes more than {TIMEOUT_SECONDS:.0f} seconds to compile"
        except GrammarError as error:
            reason = str(error)
        message = recipe.error_message(reason)
        raise RequestError(message, param=recipe.param, code=recipe.error_code)

    def _find(self, text: str) -> asyncio.Future[CompiledGrammar]:
        """Return the grammar if it is kept, else begin to compile it."""
        known = self._kept.get(text)
        if known is not None and not _has_failed(known):
            self._kept.move_to_end(text)
            return known
        future = asyncio.ensure_future(self._compile(text))
        future.add_done_callback(_has_failed)  # a failure that nobody awaits is no news
        self._kept[text] = future
        while len(self._kept) > MAX_KEPT:
            self._kept.popitem(last=False)
        return future

    async def _compile(self, text: str) -> CompiledGrammar:
        loop = asyncio.get_running_loop()
        if self._tokenizer is None or _has_failed(self._tokenizer):
            self._tokenizer = asyncio.ensure_future(
                loop.run_in_executor(self._pool, make_tokenizer, self._vocabulary)
            )
        tokenizer = await asyncio.shield(self._tokenizer)
        return await loop.run_in_executor(self._pool, _compile, tokenizer, text)


def _has_failed(future: asyncio.Future[Any]) -> bool:
    """Return whether a future has ended without a result."""
    return future.done() and (future.cancelled() or future.exception() is not None)


def _compile(tokenizer: Any, text: str) -> CompiledGrammar:
    """Compile a grammar and see whether an answer can begin; on a thread of the pool."""
    # A state takes one or two kilobytes; a grammar that needs more of them is given up.
    limits = LLParserLimits(verbose_errors=False, max_lexer_states=MAX_LEXER_STATES)
    matcher = LLMatcher(tokenizer, text, log_level=0, limits=limits)
    check_matcher(matcher)
    first = matcher.deep_copy()
    bits = first.compute_bitmask()
    check_matcher(first)
    if first.is_stopped() or not any(bits):
        raise GrammarError("no answer can follow it")
    return CompiledGrammar(matcher, tokenizer.vocab_size - 1)
