"""What a token is in bytes and in text, whatever the tokenizer's family.

Byte-level vocabularies write each byte as one printable character; SentencePiece ones write a blank
as a low line and unknown bytes as <0xNN>; WordPiece marks continuations. Read-only after it is
built, used from the event loop.
"""

import re
from functools import lru_cache
from typing import Any

from tokenizers import decoders

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_METASPACE = "\u2581"


@lru_cache(maxsize=1)
def byte_characters() -> dict[str, int]:
    """Return the byte that each character of a byte-level vocabulary stands for.

    Source: Radford et al. 2019 (GPT-2), bytes_to_unicode: printable Latin-1 stands for itself, the
    rest is moved to U+0100 and above, in order.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {chr(byte): byte for byte in printable}
    others = [byte for byte in range(256) if chr(byte) not in table]
    table.update({chr(0x100 + offset): byte for offset, byte in enumerate(others)})
    return table


class Vocabulary:
    """A tokenizer seen token by token.

    Attributes:
        is_byte_level: Whether joining the tokens' bytes is all there is to decoding.
        is_wordpiece: Whether decoding rearranges blanks.
        special_ids: Tokens that skip_special_tokens hides.
        special_texts: Their texts.
    """

    def __init__(self, tokenizer: Any) -> None:
        """Read what is needed of a transformers tokenizer.

        Args:
            tokenizer: A `PreTrainedTokenizerBase`; with the `tokenizers` library behind it or not.
        """
        self._tokenizer = tokenizer
        self._backend = getattr(tokenizer, "backend_tokenizer", None)
        decoder = getattr(self._backend, "decoder", None)
        self.is_byte_level = isinstance(decoder, decoders.ByteLevel)
        # A chain of decoders that ends in bytes can't be told by its type.
        self._has_byte_level = self.is_byte_level or "ByteLevel" in repr(decoder)
        self.is_wordpiece = isinstance(decoder, decoders.WordPiece)
        self.special_ids = _special_ids(tokenizer, self._backend)
        self._bytes: dict[int, bytes] = {}
        self.special_texts = tuple(map(self.token_text, sorted(self.special_ids)))

    def is_special(self, token_id: int) -> bool:
        """Return whether a token is hidden by skip_special_tokens."""
        return token_id in self.special_ids

    def token_bytes(self, token_id: int) -> bytes:
        """Return the true bytes of a token, which may be part of a character."""
        known = self._bytes.get(token_id)
        if known is None:
            known = self._bytes[token_id] = self._compute_bytes(token_id)
        return known

    def token_text(self, token_id: int) -> str:
        """Return a token's text; bytes that are no text become U+FFFD."""
        return self.token_bytes(token_id).decode("utf-8", errors="replace")

    def all_bytes(self) -> list[bytes]:
        """Return the bytes of all tokens, in the order of their ids; a gap has none."""
        return [self.token_bytes(token_id) for token_id in range(len(self._tokenizer))]

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text, none of them special nor added."""
        if self._backend is not None:
            return list(self._backend.encode(text, add_special_tokens=False).ids)
        return list(self._tokenizer.encode(text, add_special_tokens=False))

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool) -> str:
        """Decode with the tokenizer itself."""
        if self._backend is not None:
            return str(self._backend.decode(token_ids, skip_special_tokens=skip_special_tokens))
        return str(
            self._tokenizer.decode(
                token_ids,
                skip_special_tokens=skip_special_tokens,
                clean_up_tokenization_spaces=False,
            )
        )

    def _compute_bytes(self, token_id: int) -> bytes:
        """Find a token's bytes; a number beyond the vocabulary has none."""
        token = self._tokenizer.convert_ids_to_tokens(token_id)
        if not token:
            return b""
        if self._has_byte_level:
            return _from_byte_characters(token)
        if match := _BYTE_TOKEN.fullmatch(token):
            return bytes([int(match[1], 16)])
        if self.is_special(token_id):
            return str(token).encode()
        if self.is_wordpiece:
            return (token[2:] if token.startswith("##") else f" {token}").encode()
        return str(token.replace(_METASPACE, " ")).encode()


def _from_byte_characters(token: str) -> bytes:
    """Undo the byte-level alphabet, as the decoder does: all characters or none."""
    table = byte_characters()
    try:
        return bytes([table[character] for character in token])
    except KeyError:
        return token.encode()


def _special_ids(tokenizer: Any, backend: Any) -> frozenset[int]:
    """Return the ids that the tokenizer itself leaves out with skip_special_tokens."""
    if backend is None:
        return frozenset(tokenizer.all_special_ids)
    added = backend.get_added_tokens_decoder()
    return frozenset(token_id for token_id, token in added.items() if token.special)
