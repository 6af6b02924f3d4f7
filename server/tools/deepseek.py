"""DeepSeek V3 and later: calls between special tokens; the arguments are fenced in the older form.

    <|calls begin|><|call begin|>f<|sep|>{"a": 1}<|call end|><|calls end|>
    <|calls begin|><|call begin|>function<|sep|>f
    ```json
    {"a": 1}
    ```<|call end|><|calls end|>

with the family's own bars and blanks in the markers.
"""

import re

from server.tools.blocks import Block, ClosedBlock
from server.tools.calls import Call, Functions, check_object


def _marker(*words: str) -> str:
    """Return a marker: wide bars around, low lines between."""
    return "<\uff5c" + "\u2581".join(words) + "\uff5c>"


BEGIN = _marker("tool", "calls", "begin")
END = _marker("tool", "calls", "end")
_SEPARATOR = _marker("tool", "sep")
_CALL = re.compile(
    _marker("tool", "call", "begin")
    + rf"(?:function{_SEPARATOR}([\w.\-]+)\s*```json\s*(.*?)\s*```"
    + rf"|([\w.\-]+)\s*{_SEPARATOR}(.*?))\s*(?:{_marker('tool', 'call', 'end')}|$)",
    re.DOTALL,
)


class DeepSeekFormat:
    """See the module."""

    name = "deepseek"
    openings = (BEGIN,)
    closings: tuple[str, ...] = ()
    bare = ""

    def block(self) -> Block:
        """See `CallFormat.block`."""
        return ClosedBlock(END)

    def read(self, block: str, functions: Functions) -> list[Call] | None:
        """See `CallFormat.read`."""
        calls = []
        place = 0
        body = block.removesuffix(END)
        for match in _CALL.finditer(body):
            name, arguments = match[1] or match[3], match[2] or match[4]
            if name not in functions or body[place : match.start()].strip():
                return None
            try:
                calls.append(Call(name, check_object(arguments)))
            except (ValueError, RecursionError):
                return None
            place = match.end()
        return calls if calls and not body[place:].strip() else None


DEEPSEEK = DeepSeekFormat()
