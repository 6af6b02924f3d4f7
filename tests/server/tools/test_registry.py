"""Telling a family from its template: small templates with each family's own words."""

import pytest

from server.tools.deepseek import BEGIN
from server.tools.registry import FORMATS, find_format

TOLD = {
    "mistral": "{{ '[AVAILABLE_TOOLS]' }}{{ '[TOOL_CALLS][' }}",
    "deepseek": BEGIN,
    "phi": "<|tool|> <|tool_call|> <|/tool_call|>",
    "granite": "<|tool_call|>[",
    "qwen_coder": "<tool_call>\n<function=name>",
    "glm": "<tool_call>name\n<arg_key>",
    "hermes": '<tool_call>\n{"name": <function-name>}\n</tool_call>',
    "pythonic": "[func_name1(params_name1=params_value1), func_name2(params)]",
    "llama_json": '<|start_header_id|> {"name": function name, "parameters": dictionary}',
    "json": "{{ tools }}",
}


@pytest.mark.parametrize("name", TOLD)
def test_a_template_that_renders_tools_tells_its_family(name):
    assert find_format("auto", TOLD[name], renders_tools=True) is FORMATS[name]
    assert find_format("auto", TOLD[name], renders_tools=False) is FORMATS["hermes"]
    assert find_format("granite", TOLD[name], renders_tools=True) is FORMATS["granite"]


def test_every_family_is_told_by_something():
    assert set(TOLD) == set(FORMATS)
