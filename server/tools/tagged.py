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
        argument: Finds one argument in these: its key, its value.
    """

    name: str
    call: re.Pattern[str]
    argument: re.Pattern[str]
    openings: tuple[str, ...] = ("<tool_call>",)
    closings: tuple[str, ...] = ()
    bare: str = ""

    def block(self, functions: Functions) -> Block:
        """See `CallFormat.block`."""
        return WholeBlock(ClosingMarker(_END).feed, partial(self._read, functions))

    def _read(self, functions: Functions, text: str) -> list[Call] | None:
        """Return the call in a text; None if it is none."""
        match = self.call.fullmatch(text)
        if match is None or match[1] not in functions or self.argument.sub("", match[2]).strip():
            return None
        pairs = [(key.strip(), value) for key, value in self.argument.findall(match[2])]
        return [Call(match[1], typed_arguments(pairs, functions[match[1]]))]
