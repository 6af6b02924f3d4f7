"""Calls whose arguments are tags: a name, then a key and a text for each argument.

What is no text by the function's schema is JSON.
"""

import re
from dataclasses import dataclass
from functools import partial

from server.tools.blocks import Block, ClosingMarker, WholeBlock
from server.tools.calls import Call, Functions
from server.tools.typed_arguments import typed_arguments

_END = "</tool_call>"


@dataclass(frozen=True, slots=True)
class TaggedFormat:
    """See the module.

    Attributes:
        name: The format's.
        call: Matches what follows the outer opening tag, the closing one included if the end of the
            arguments is not told without it: the function's name, its arguments.
        key: Matches what stands before an argument's value, blanks included; its group is the key.
        value: Matches the rest of the argument and the blanks after it; its group is the value.
    """

    name: str
    call: re.Pattern[str]
    key: re.Pattern[str]
    value: re.Pattern[str]
    openings: tuple[str, ...] = ("<tool_call>",)
    closings: tuple[str, ...] = ()
    bare: str = ""

    def block(self, functions: Functions) -> Block:
        """See `CallFormat.block`."""
        return WholeBlock(ClosingMarker(_END).feed, partial(self._read, functions))

    def _read(self, functions: Functions, text: str) -> list[Call] | None:
        """Return the call in a text; None if it is none."""
        match = self.call.fullmatch(text)
        if match is None or match[1] not in functions:
            return None
        pairs = self._pairs(match[2])
        if pairs is None:
            return None
        return [Call(match[1], typed_arguments(pairs, functions[match[1]]))]

    def _pairs(self, text: str) -> list[tuple[str, str]] | None:
        """Return the keys and values of arguments; None if anything else stands between them."""
        pairs: list[tuple[str, str]] = []
        place, end = 0, len(text.rstrip())
        while place < end:
            # One after the other, each from its place: a model may write anything, and a search, or
            # a pattern for both that may give back a key, would look at the rest again and again.
            key = self.key.match(text, place)
            value = key and self.value.match(text, key.end())
            if not key or not value:
                return None
            pairs.append((key[1].strip(), value[1]))
            place = value.end()
        return pairs
