"""Token by token to text: the pieces, joined, are what decoding all tokens at once gives.

A byte-level vocabulary is decoded exactly, through its bytes and an incremental UTF-8 decoder. For
any other the tokenizer decodes a short window twice, with and without the new token, and the
difference is the new text. Bytes that only begin a character are held; a genuine U+FFFD is not.
One exception: where a run of <0xNN> tokens is broken, tokenizers turn all of it, even characters
that were complete, into U+FFFD; here what was complete has been sent and stays.
Holds the state of one choice; event loop only.
"""

import codecs

from server.vocabulary import Vocabulary

# More held tokens than this are no unfinished character but noise.
MAX_HELD_TOKENS = 32


class IncrementalDetokenizer:
    """Turns the tokens of one choice into text as they come."""

    def __init__(self, vocabulary: Vocabulary, *, skip_special_tokens: bool) -> None:
        """Start with no tokens.

        Args:
            vocabulary: The tokenizer's tokens.
            skip_special_tokens: Leave special tokens out of the text.
        """
        self._vocabulary = vocabulary
        self._skip_special_tokens = skip_special_tokens
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._context: list[int] = []
        self._context_text = ""
        self._held: list[int] = []

    def push(self, token_id: int) -> str:
        """Take one token and return the text that is complete with it, often all of its own."""
        if self._skip_special_tokens and self._vocabulary.is_special(token_id):
            return ""
        if self._vocabulary.is_byte_level:
            return self._utf8.decode(self._vocabulary.token_bytes(token_id))
        self._held.append(token_id)
        if len(self._held) <= MAX_HELD_TOKENS and ends_inside_character(self._held_bytes()):
            return ""
        return self._release()

    def flush(self) -> str:
        """Return what is held: an unfinished character at the end becomes U+FFFD."""
        if self._vocabulary.is_byte_level:
            return self._utf8.decode(b"", final=True)
        return self._release() if self._held else ""

    def _held_bytes(self) -> bytes:
        """Return the bytes of the held tokens."""
        return b"".join(map(self._vocabulary.token_bytes, self._held))

    def _release(self) -> str:
        """Decode the held tokens after their context, and make them the new context."""
        window = self._context + self._held
        text = self._decode(window)
        if text.startswith(self._context_text):
            new_text = text[len(self._context_text) :]
        else:
            # Broken bytes after the context changed how the tokenizer reads the context itself.
            new_text = self._decode(self._held)
        held_text = self._decode(self._held)
        if held_text.strip():
            self._context, self._context_text = self._held, held_text
        else:
            # Blanks alone would be taken for the beginning of a text and dropped.
            self._context, self._context_text = window, text
        self._held = []
        return new_text

    def _decode(self, token_ids: list[int]) -> str:
        return self._vocabulary.decode(token_ids, skip_special_tokens=self._skip_special_tokens)


def ends_inside_character(data: bytes) -> bool:
    """Return whether the last bytes begin a UTF-8 character that more bytes could complete."""
    for length in range(1, min(3, len(data)) + 1):
        tail = data[-length:]
        if tail[0] & 0xC0 == 0x80:
            continue
        try:
            tail.decode("utf-8")
        except UnicodeDecodeError as error:
            return error.reason == "unexpected end of data"
        return False
    return False
