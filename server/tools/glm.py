"""GLM 4.5 and later: a name, then keys and values as tags; what is no text by the schema is JSON.

<tool_call>f
<arg_key>a</arg_key>
<arg_value>1</arg_value>
</tool_call>
"""

import re

from server.tools.blocks import Block, ClosedBlock
from server.tools.calls import Call, Functions
from server.tools.typed_arguments import typed_arguments

_CALL = re.compile(r"\s*([\w.\-]+)\s*(.*)", re.DOTALL)
_ARGUMENT = re.compile(r"\s*<arg_key>(.*?)</arg_key>\s*<arg_value>(.*?)</arg_value>\s*", re.DOTALL)
_END = "</tool_call>"


class GlmFormat:
    """See the module."""

    name = "glm"
    openings = ("<tool_call>",)
    closings: tuple[str, ...] = ()
    bare = ""

    def block(self) -> Block:
        """See `CallFormat.block`."""
        return ClosedBlock(_END)

    def read(self, block: str, functions: Functions) -> list[Call] | None:
        """See `CallFormat.read`."""
        match = _CALL.fullmatch(block.removesuffix(_END))
        if match is None or match[1] not in functions or _ARGUMENT.sub("", match[2]).strip():
            return None
        pairs = [(key.strip(), value) for key, value in _ARGUMENT.findall(match[2])]
        return [Call(match[1], typed_arguments(pairs, functions[match[1]]))]


GLM = GlmFormat()
