"""Hermes, Qwen and whoever is told nothing else: a JSON object between two markers.

<tool_call>
{"name": "f", "arguments": {"a": 1}}
</tool_call>
"""

from server.tools.call_format import JsonCallFormat, Layout

HERMES = JsonCallFormat(
    name="hermes",
    openings=("<tool_call>",),
    closings=("</tool_call>",),
    layout=Layout("<tool_call>\n", "\n</tool_call>\n<tool_call>\n", "\n</tool_call>"),
)
