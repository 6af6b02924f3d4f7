"""Qwen3-Coder: functions and parameters as tags; what is no text by the schema is JSON.

<tool_call>
<function=f>
<parameter=a>
1
</parameter>
</function>
</tool_call>
"""

import re

from server.tools.blocks import Block, ClosedBlock
from server.tools.calls import Call, Functions
from server.tools.typed_arguments import typed_arguments

_FUNCTION = re.compile(r"\s*<function=([\w.\-]+)>(.*?)</function>\s*", re.DOTALL)
_PARAMETER = re.compile(r"\s*<parameter=([^>\n]+)>\n?(.*?)\n?</parameter>\s*", re.DOTALL)
_END = "</tool_call>"


class QwenCoderFormat:
    """See the module."""

    name = "qwen_coder"
    openings = ("<tool_call>",)
    closings: tuple[str, ...] = ()
    bare = ""

    def block(self) -> Block:
        """See `CallFormat.block`."""
        return ClosedBlock(_END)

    def read(self, block: str, functions: Functions) -> list[Call] | None:
        """See `CallFormat.read`."""
        match = _FUNCTION.fullmatch(block.removesuffix(_END))
        if match is None or match[1] not in functions or _PARAMETER.sub("", match[2]).strip():
            return None
        pairs = _PARAMETER.findall(match[2])
        return [Call(match[1], typed_arguments(pairs, functions[match[1]]))]


QWEN_CODER = QwenCoderFormat()
