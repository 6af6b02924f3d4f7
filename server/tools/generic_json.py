"""Models of no known family: the answer is JSON that calls a function, fenced or not.

{"name": "f", "arguments": {"a": 1}}
"""

from server.tools.call_format import JsonCallFormat, Layout

GENERIC_JSON = JsonCallFormat(
    name="json",
    openings=("```json", "<tool_call>"),
    closings=("```", "</tool_call>", ",", ";"),
    bare="{[",
    brackets="{[",
    layout=Layout("[", ", ", "]"),
)
