"""DeepSeek V3 and later: calls between special tokens; the arguments are fenced in the older form.

    <|calls begin|><|call begin|>f<|sep|>{"a": 1}<|call end|><|calls end|>
    <|calls begin|><|call begin|>function<|sep|>f
    ```json
    {"a": 1}
    ```<|call end|><|calls end|>

with the family's own bars and blanks in the markers.
"""

import re

from server.tools.blocks import CALL, DONE, FAILED, HELD, Block, BlockState, ObjectBlock, Step
from server.tools.calls import Functions


def _marker(*words: str) -> str:
    """Return a marker: wide bars around, low lines between."""
    return "<\uff5c" + "\u2581".join(words) + "\uff5c>"


BEGIN = _marker("tool", "calls", "begin")
END = _marker("tool", "calls", "end")
_CALL_END = _marker("tool", "call", "end")
_SEPARATOR = _marker("tool", "sep")
_HEAD = re.compile(
    rf"\s*{_marker('tool', 'call', 'begin')}"
    rf"(?:function{_SEPARATOR}([\w.\-]+)\s*(```json)\s*|([\w.\-]+)\s*{_SEPARATOR}\s*)"
)
_MAX_HEAD = 512


class _DeepSeekBlock:
    """Calls, each with a head, arguments and a tail; then the end."""

    def __init__(self, functions: Functions) -> None:
        self._functions = functions
        self._num_calls = 0
        self._head = ""
        self._arguments: ObjectBlock | None = None
        self._fence = ""
        self._tail: str | None = None

    def feed(self, text: str) -> Step:
        """See `Block.feed`."""
        if self._arguments is not None:
            return self._in_arguments(text)
        step = HELD
        for character in text:
            step = self._in_head(character) if self._tail is None else self._in_tail(character)
            if step is FAILED:
                break
        return step

    def run(self, text: str, place: int) -> str:
        """See `Block.run`."""
        return "" if self._arguments is None else self._arguments.run(text, place)

    def finish(self) -> Step:
        """See `Block.finish`."""
        return FAILED

    def _in_head(self, character: str) -> Step:
        if character == "{":
            return self._begin_arguments()
        self._head += character
        if self._head.endswith(END):
            return DONE if self._num_calls and self._head.strip() == END else FAILED
        return HELD if len(self._head) < _MAX_HEAD else FAILED

    def _begin_arguments(self) -> Step:
        head = _HEAD.fullmatch(self._head)
        if head is None:
            return FAILED
        self._fence = "```" if head[2] else ""
        self._arguments = ObjectBlock(head[1] or head[3], self._functions)
        return self._arguments.feed("{")

    def _in_arguments(self, text: str) -> Step:
        assert self._arguments is not None
        step = self._arguments.feed(text)
        if step.state is BlockState.DONE:
            self._arguments, self._tail = None, ""
            self._num_calls += 1
            return step._replace(state=BlockState.CALL)
        return step

    def _in_tail(self, character: str) -> Step:
        """Read the end of a call; where all calls end, its own may be missing."""
        assert self._tail is not None
        if character.isspace() and self._tail in ("", self._fence):
            return CALL
        self._tail += character
        if self._tail == self._fence + END:
            return DONE
        if self._tail == self._fence + _CALL_END:
            self._head, self._tail = "", None
            return CALL
        ends = (self._fence + _CALL_END, self._fence + END)
        return CALL if any(one.startswith(self._tail) for one in ends) else FAILED


class DeepSeekFormat:
    """See the module."""

    name = "deepseek"
    openings = (BEGIN,)
    closings: tuple[str, ...] = ()
    bare = ""

    def block(self, functions: Functions) -> Block:
        """See `CallFormat.block`."""
        return _DeepSeekBlock(functions)


DEEPSEEK = DeepSeekFormat()
