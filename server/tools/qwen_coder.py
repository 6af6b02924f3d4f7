"""Qwen3-Coder: functions and parameters as tags; what is no text by the schema is JSON.

<tool_call>
<function=f>
<parameter=a>
1
</parameter>
</function>
</tool_call>
"""

import json
import re
from typing import Any

from server.tools.blocks import Block, ClosedBlock
from server.tools.calls import Call, Functions

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
        kinds = _kinds(functions[match[1]].parameters or {})
        arguments = {
            name: _value(text, kinds.get(name)) for name, text in _PARAMETER.findall(match[2])
        }
        return [Call(match[1], json.dumps(arguments, ensure_ascii=False))]


def _kinds(schema: dict[str, Any]) -> dict[str, Any]:
    """Return what the schema says of the type of each parameter."""
    properties = schema.get("properties")
    if not isinstance(properties, dict):
        return {}
    return {
        name: entry.get("type") for name, entry in properties.items() if isinstance(entry, dict)
    }


def _value(text: str, kind: Any) -> Any:
    """Return a parameter's value; what is no JSON is a text."""
    if kind == "string":
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


QWEN_CODER = QwenCoderFormat()
