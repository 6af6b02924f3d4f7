"""Answers made of masks alone: random walks through a grammar, with no model."""

import random

import numpy as np

from server.vocabulary import Vocabulary

MAX_TOKENS = 600
MANY_TOKENS = 100
# What ends a value, and what the patterns of the tests need before it. A walk that has been long
# chooses little else, or it would hardly ever meet them among the tokens of a real vocabulary.
LAST = [one.encode() for one in ('"', "}", "]", "b", "x", "é", "日本", "@", ".")]


class Walker:
    """Walks through grammars over one vocabulary."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._bytes = vocabulary.all_bytes()
        self._last = [one in LAST for one in self._bytes]
        self._special = sorted(vocabulary.special_ids)
        # What brings an answer to its end, or is needed before it, so that a walk gets there.
        self._closing = [
            b'"' in one or b"}" in one or b"]" in one or one in (b"@", b".", b"b")
            for one in self._bytes
        ]

    def walk(self, grammar, seed: int) -> str | None:
        """Return a text that follows the grammar; None if the walk was too long."""
        chance = random.Random(seed)
        matcher = grammar.matcher()
        data = b""
        for step in range(MAX_TOKENS):
            allowed = np.zeros(len(self._bytes) + 7, dtype=np.bool_)
            matcher.allow(allowed)
            assert not allowed[len(self._bytes) :].any(), "a token without a text is allowed"
            assert not allowed[self._special].any(), "a special token is allowed"
            ids = np.flatnonzero(allowed).tolist()
            if matcher.is_complete() and (not ids or chance.random() < 0.3 or step > 60):
                return data.decode("utf-8")
            assert ids, f"a dead end after {data!r}"
            token = chance.choice(self._preferred(ids, chance, step))
            matcher.accept(token)
            data += self._bytes[token]
        return None

    def _preferred(self, ids: list[int], chance: random.Random, step: int) -> list[int]:
        """Return the tokens to choose from: any at first, later ones that close something."""
        if step > MANY_TOKENS and chance.random() < 0.9:
            return [token for token in ids if self._last[token]] or ids
        if chance.random() < min(0.2 + step / 60, 0.95):
            return [token for token in ids if self._closing[token]] or ids
        return ids


class Adversary(Walker):
    """Looks for what a grammar may have left open: odd tokens, texts that go on as they may."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        super().__init__(vocabulary)
        # Long ones cross the borders of values; the others are where limits are forgotten.
        kinds = [
            lambda one: len(one) > 3,
            lambda one: any(byte > 0x7F for byte in one),
            lambda one: b"\\" in one or b"\n" in one or b" " in one,
            lambda one: one != b"" and set(one) <= set(b"0123456789.eE+-"),
            lambda one: set(one) & set(b'",:{}[]') != set(),
        ]
        self._kinds = [[kind(one) for one in self._bytes] for kind in kinds]

    def _preferred(self, ids: list[int], chance: random.Random, step: int) -> list[int]:
        if step > 40 or chance.random() < 0.3:
            return super()._preferred(ids, chance, step)
        wanted = chance.choice(self._kinds)
        return [token for token in ids if wanted[token]] or ids
