"""Llama 3: the answer is a JSON object, after a special token or not; several are set apart.

{"name": "f", "parameters": {"a": 1}}; {"name": "g", "parameters": {}}
"""

from server.tools.call_format import JsonCallFormat, Layout

LLAMA_JSON = JsonCallFormat(
    name="llama_json",
    openings=("<|python_tag|>",),
    closings=(";",),
    bare="{",
    layout=Layout(between="; ", key="parameters"),
)
