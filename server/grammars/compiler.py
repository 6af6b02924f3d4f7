"""Compiling grammars off the event loop, each once: the most recently used ones are kept.

Bounded in size by the recipes, in work by the library's own counts, in time by how long a client
is kept waiting: what takes longer is given up. Event loop, with two threads of its own.
"""

import asyncio
from collections import OrderedDict
from typing import Any

from llguidance import LLMatcher, LLParserLimits

from server.grammars.matching import CompiledGrammar, GrammarError, check_matcher
from server.grammars.sources import GrammarRecipe
from server.grammars.tokens import make_tokenizer
from server.limited_pool import LimitedPool
from server.request_errors import RequestError
from server.vocabulary import Vocabulary

NUM_THREADS = 2
MAX_KEPT = 64
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
        self._pool = LimitedPool(NUM_THREADS, "grammar-compiler")
        self._tokenizer: asyncio.Future[Any] | None = None
        self._kept: OrderedDict[str, asyncio.Future[CompiledGrammar]] = OrderedDict()

    def close(self) -> None:
        """End the threads."""
        self._pool.close()

    async def compile(self, recipe: GrammarRecipe) -> CompiledGrammar:
        """Return the compiled grammar, at once if it is known.

        Raises:
            RequestError: It cannot be compiled, is too large or takes too long.
        """
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                key = await self._pool.run(None, recipe.key)
                # A client that leaves ends its own wait only: others may wait for the same grammar.
                return await asyncio.shield(self._find(key, recipe))
        except TimeoutError:
            reason = f"it takes more than {TIMEOUT_SECONDS:.0f} seconds to compile"
        except GrammarError as error:
            reason = str(error)
        message = recipe.error_message(reason)
        raise RequestError(message, param=recipe.param, code=recipe.error_code)

    def _find(self, key: str, recipe: GrammarRecipe) -> asyncio.Future[CompiledGrammar]:
        """Return the grammar if it is kept, else begin to compile it."""
        known = self._kept.get(key)
        if known is not None and not _has_failed(known):
            self._kept.move_to_end(key)
            return known
        future = asyncio.ensure_future(self._compile(recipe))
        future.add_done_callback(_has_failed)  # a failure that nobody awaits is no news
        self._kept[key] = future
        while len(self._kept) > MAX_KEPT:
            self._kept.popitem(last=False)
        return future

    async def _compile(self, recipe: GrammarRecipe) -> CompiledGrammar:
        if self._tokenizer is None or _has_failed(self._tokenizer):
            made = self._pool.run(None, make_tokenizer, self._vocabulary)
            self._tokenizer = asyncio.ensure_future(made)
        tokenizer = await asyncio.shield(self._tokenizer)
        return await self._pool.run(TIMEOUT_SECONDS, _compile, tokenizer, recipe)


def _has_failed(future: asyncio.Future[Any]) -> bool:
    """Return whether a future has ended without a result."""
    return future.done() and (future.cancelled() or future.exception() is not None)


def _compile(tokenizer: Any, recipe: GrammarRecipe) -> CompiledGrammar:
    """Make a grammar, compile it and see whether an answer can begin; on a thread of the pool."""
    text = recipe.make()
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
