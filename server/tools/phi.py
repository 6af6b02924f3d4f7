"""Phi 4: a list of JSON objects between two markers, or after a word.

<|tool_call|>[{"name": "f", "arguments": {"a": 1}}]<|/tool_call|>
functools[{"name": "f", "arguments": {"a": 1}}]
"""

from server.tools.call_format import JsonCallFormat, Layout

PHI = JsonCallFormat(
    name="phi",
    openings=("<|tool_call|>", "functools"),
    closings=("<|/tool_call|>",),
    brackets="[{",
    layout=Layout("<|tool_call|>[", ", ", "]<|/tool_call|>"),
)
