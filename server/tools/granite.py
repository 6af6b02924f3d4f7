"""Granite 3: a list of JSON objects after a marker.

<|tool_call|>[{"name": "f", "arguments": {"a": 1}}]
"""

from server.tools.call_format import JsonCallFormat, Layout

GRANITE = JsonCallFormat(
    name="granite",
    openings=("<|tool_call|>", "<tool_call>"),
    closings=("</tool_call>",),
    brackets="[{",
    layout=Layout("<|tool_call|>[", ", ", "]"),
)
