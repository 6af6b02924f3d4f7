"""The tokens of a model as the grammar library wants to see them.

Read-only once it is built; building takes a fraction of a second, so it is done in a thread, when
the first grammar is asked for.
"""

from typing import Any

from llguidance import LLTokenizer, TokenizerWrapper

from server.request_errors import RequestError
from server.vocabulary import Vocabulary

# Stands for the end of an answer inside the library, which wants one. Which tokens end an answer
# is the engine's to know, so no token of the model plays this part.
END_TEXT = b"<|grammar-end|>"


class GrammarTokens:
    """A vocabulary's bytes, with one more token that ends a text."""

    bos_token_id: int | None = None

    def __init__(self, vocabulary: Vocabulary) -> None:
        """Collect the bytes of all tokens."""
        tokens = vocabulary.all_bytes()
        self._encode = vocabulary.encode
        self._vocabulary = vocabulary
        self._ids = {data: token_id for token_id, data in reversed(list(enumerate(tokens)))}
        self.tokens = [*tokens, END_TEXT]
        self.eos_token_id = len(tokens)
        self.special_token_ids = [*sorted(vocabulary.special_ids), self.eos_token_id]

    def __call__(self, text: str) -> list[int]:
        """Return the tokens of a text that a grammar leaves no choice about.

        The tokenizer's own where they spell exactly this text; some add a blank to a beginning.
        """
        token_ids = self._encode(text)
        data = text.encode()
        if b"".join(map(self._vocabulary.token_bytes, token_ids)) == data:
            return token_ids
        return self._greedy(data)

    def _greedy(self, data: bytes) -> list[int]:
        """Spell bytes with the longest tokens, from left to right; what has no token is left."""
        token_ids, start = [], 0
        while start < len(data):
            lengths = range(min(len(data) - start, 64), 0, -1)
            found = next((n for n in lengths if data[start : start + n] in self._ids), None)
            if found is None:
                break
            token_ids.append(self._ids[data[start : start + found]])
            start += found
        return token_ids


def make_tokenizer(vocabulary: Vocabulary) -> Any:
    """Return the library's view of a vocabulary, an `LLTokenizer`.

    Raises:
        RequestError: The tokens' texts do not add up to the answer's text.
    """
    if vocabulary.is_wordpiece:
        raise RequestError("This model's tokenizer cannot follow a grammar.", param=None)
    return LLTokenizer(TokenizerWrapper(GrammarTokens(vocabulary)))
