"""Mistral: after a special token a list of JSON objects, or a name and the arguments.

[TOOL_CALLS][{"name": "f", "arguments": {"a": 1}}]
[TOOL_CALLS]f[ARGS]{"a": 1}[TOOL_CALLS]g[CALL_ID]12ab34cd5[ARGS]{}
"""

import re

from server.tools.blocks import FAILED, HELD, Block, ObjectBlock, Step
from server.tools.call_format import Layout
from server.tools.calls import Functions
from server.tools.json_calls import JsonBlock

_HEAD = re.compile(r"\s*([\w.\-]+)(?:\[CALL_ID\]\w*)?(?:\[ARGS\])?\s*")
_MARKERS = ("[ARGS]", "[CALL_ID]")
_MAX_HEAD = 128


class _MistralBlock:
    """A name, markers, and an object; or a list."""

    def __init__(self, functions: Functions) -> None:
        self._functions = functions
        self._head = ""
        self._value: Block | None = None

    def feed(self, text: str) -> Step:
        """See `Block.feed`."""
        if self._value is None and text == ("{" if self._head.strip() else "["):
            self._value = self._begin_value(text)
        if self._value is not None:
            return self._value.feed(text)
        self._head += text
        fits = text in _MARKERS or (len(text) == 1 and (text.isalnum() or text in "_-.[] \n"))
        return HELD if fits and len(self._head) < _MAX_HEAD else FAILED

    def run(self, text: str, place: int) -> str:
        """See `Block.run`."""
        return "" if self._value is None else self._value.run(text, place)

    def finish(self) -> Step:
        """See `Block.finish`."""
        return FAILED

    def _begin_value(self, bracket: str) -> Block:
        if bracket == "[":
            return JsonBlock("[", self._functions)
        head = _HEAD.fullmatch(self._head)
        return ObjectBlock(head[1] if head is not None else "", self._functions)


class MistralFormat:
    """See the module."""

    name = "mistral"
    openings = ("[TOOL_CALLS]",)
    closings: tuple[str, ...] = ()
    bare = ""
    layout = Layout("[TOOL_CALLS][", ", ", "]")

    def block(self, functions: Functions) -> Block:
        """See `CallFormat.block`."""
        return _MistralBlock(functions)


MISTRAL = MistralFormat()
