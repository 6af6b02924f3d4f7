"""Mistral: after a special token a list of JSON objects, or a name and the arguments.

[TOOL_CALLS][{"name": "f", "arguments": {"a": 1}}]
[TOOL_CALLS]f[ARGS]{"a": 1}[TOOL_CALLS]g[CALL_ID]12ab34cd5[ARGS]{}
"""

import re

from server.tools.blocks import Block, BlockState, Extent
from server.tools.call_format import Layout
from server.tools.calls import Call, Functions, check_object, read_json_calls

_NAMED = re.compile(r"\s*([\w.\-]+)(?:\[CALL_ID\]\w*)?(?:\[ARGS\])?\s*(\{.*)", re.DOTALL)
_MARKERS = ("[ARGS]", "[CALL_ID]")
_MAX_HEAD = 128


class _NamedBlock:
    """A name, markers, and an object; or a list."""

    def __init__(self) -> None:
        self._head = ""
        self._value: Extent | None = None

    def feed(self, text: str) -> BlockState:
        """See `Block.feed`."""
        if self._value is not None:
            return self._value.feed(text) if len(text) == 1 else BlockState.FAILED
        if text == ("{" if self._head.strip() else "["):
            self._value = Extent()
            return self._value.feed(text)
        self._head += text
        fits = text in _MARKERS or (len(text) == 1 and (text.isalnum() or text in "_-.[] \n"))
        return BlockState.MORE if fits and len(self._head) < _MAX_HEAD else BlockState.FAILED


class MistralFormat:
    """See the module."""

    name = "mistral"
    openings = ("[TOOL_CALLS]",)
    closings: tuple[str, ...] = ()
    bare = ""
    layout = Layout("[TOOL_CALLS][", ", ", "]")

    def block(self) -> Block:
        """See `CallFormat.block`."""
        return _NamedBlock()

    def read(self, block: str, functions: Functions) -> list[Call] | None:
        """See `CallFormat.read`."""
        match = _NAMED.fullmatch(block)
        if match is None:
            return read_json_calls(block, functions)
        if match[1] not in functions:
            return None
        try:
            return [Call(match[1], check_object(match[2]))]
        except (ValueError, RecursionError):
            return None


MISTRAL = MistralFormat()
