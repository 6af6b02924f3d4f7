"""Keeps a client's text from becoming a control token of the chat.

Whatever a client says in a chat (contents, names, tool calls and descriptions, variables of the
template, keys of objects among them) is marked before the template sees it: a private character on
each side of what spells a control token, and one behind a text that ends in the beginning of a
token, so that what follows cannot complete it. A template that prints an object as Python or ASCII
JSON spells the marks out; they are found again in that form. Marked spellings are encoded as
ordinary text; what the template itself writes is encoded as it is. Reads the tokenizer only, from
any thread.
"""

import json
import re
from typing import Any

from transformers.utils.chat_template_utils import encode_marked_chat, mark_control_tokens


class ControlTokens:
    """The control tokens of a tokenizer and its chat template."""

    def __init__(self, tokenizer: Any) -> None:
        """Find them.

        Args:
            tokenizer: A `PreTrainedTokenizerBase`.
        """
        self._tokenizer = tokenizer
        self.texts = _control_texts(tokenizer)
        longest_first = sorted(self.texts, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")
        # Words that happen to begin like a token that is a word itself (GLM has "sop") are left.
        signs = [text for text in self.texts if not text[0].isalnum()]
        self._begun = tuple(sorted({text[:end] for text in signs for end in range(1, len(text))}))
        # The library's own marks, which its encoder looks for.
        self._opening, _, self._closing = mark_control_tokens("x", re.compile("x"))
        self._spelled = {
            spelled(mark)[1:-1]: mark
            for mark in (self._opening, self._closing)
            for spelled in (repr, json.dumps)
        }
        self._spellings = re.compile("|".join(map(re.escape, self._spelled)))

    def mark(self, value: Any) -> Any:
        """Return a JSON value whose texts, keys included, can spell no control token."""
        if isinstance(value, str):
            marked: str = mark_control_tokens(value, self._pattern)
            # A client that itself spells a mark out means these characters.
            marked = self._spellings.sub(lambda m: m[0][0] + self._opening + m[0][1:], marked)
            return marked + self._opening if marked.endswith(self._begun) else marked
        if isinstance(value, dict):
            return {self.mark(key): self.mark(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.mark(item) for item in value]
        return value

    def gather(self, text: str) -> str:
        """Return a rendered text in which every mark is a mark again."""
        return self._spellings.sub(lambda m: self._spelled[m[0]], text)

    def unmark(self, text: str) -> str:
        """Return a rendered text without the marks."""
        return text.replace(self._opening, "").replace(self._closing, "")

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a rendered text.

        Raises:
            ValueError: The tokenizer makes a control token of ordinary text.
        """
        return list(encode_marked_chat(self._tokenizer, text))


def _control_texts(tokenizer: Any) -> frozenset[str]:
    """Return the added tokens that are special or that the template speaks of.

    Others, such as runs of blanks, are ordinary vocabulary.
    """
    template = str(getattr(tokenizer, "chat_template", None) or "")
    named = set(getattr(tokenizer, "chat_control_tokens", None) or ())
    return frozenset(
        token.content
        for token in tokenizer.added_tokens_decoder.values()
        if token.special
        or token.content in named
        or (token.content in template and not token.content.isspace())
    )
