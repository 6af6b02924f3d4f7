"""Calls that a grammar has forced: their layout is known, so arguments are passed on as they come.

    {"name": "f", "arguments": {...}}      in any number, with anything between them
     <---- header -----------><-args->

Event loop only.
"""

import re

from server.message_parts import CallArguments, CallStart, Part
from server.tools.blocks import BlockState, Extent

_HEADER = re.compile(r'\{"name": "([^"\\]+)", "(?:arguments|parameters)": $')


class ForcedCalls:
    """Reads the block of one or more calls, one character at a time.

    Attributes:
        num_calls: Calls that have begun.
    """

    def __init__(self, num_calls: int) -> None:
        """Start before a block.

        Args:
            num_calls: Calls that earlier blocks held.
        """
        self.num_calls = num_calls
        self._header = ""
        self._arguments: Extent | None = None

    def feed(self, character: str) -> list[Part]:
        """Take one character and return what it adds to the answer."""
        if self._arguments is not None:
            state = self._arguments.feed(character)
            if state is not BlockState.MORE:
                self._arguments = None
            return [CallArguments(self.num_calls - 1, character)]
        self._header += character
        match = _HEADER.search(self._header) if character == " " else None
        if match is None:
            return []
        self._header = ""
        self._arguments = Extent()
        self.num_calls += 1
        return [CallStart(self.num_calls - 1, match[1])]
