"""Llama 3.2, Llama 4 and others: a Python list of calls, with keywords alone.

[f(a=1, b="x"), g()]
"""

import ast
import json
from typing import Any

from server.tools.blocks import Block, ValueBlock
from server.tools.calls import Call, Functions

MAX_CHARACTERS = 100_000
_NAMES = {"true": True, "false": False, "null": None}


class PythonicFormat:
    """See the module."""

    name = "pythonic"
    openings = ("<|python_start|>", "<|python_tag|>")
    closings = ("<|python_end|>",)
    bare = "["

    def block(self) -> Block:
        """See `CallFormat.block`."""
        return ValueBlock("[", "\"'")

    def read(self, block: str, functions: Functions) -> list[Call] | None:
        """See `CallFormat.read`."""
        if len(block) > MAX_CHARACTERS:
            return None
        try:
            tree = ast.parse(block.strip(), mode="eval").body
            calls = [_read_call(item, functions) for item in tree.elts]  # type: ignore[attr-defined]
        except (AttributeError, SyntaxError, ValueError, RecursionError, MemoryError):
            return None
        return calls or None


def _read_call(node: Any, functions: Functions) -> Call:
    name = ast.unparse(node.func)
    if name not in functions or node.args or any(one.arg is None for one in node.keywords):
        raise ValueError("it is no call of a function with keywords")
    arguments = {one.arg: _value(one.value) for one in node.keywords}
    return Call(name, json.dumps(arguments, ensure_ascii=False, allow_nan=False))


def _value(node: ast.expr) -> Any:
    """Return a literal; the words of JSON are among them."""
    if isinstance(node, ast.Name) and node.id in _NAMES:
        return _NAMES[node.id]
    if isinstance(node, ast.List | ast.Tuple):
        return [_value(item) for item in node.elts]
    if isinstance(node, ast.Dict):
        keys = [_value(key) for key in node.keys if key is not None]
        if len(keys) < len(node.keys) or not all(isinstance(key, str) for key in keys):
            raise ValueError("a key is no text")
        return dict(zip(keys, map(_value, node.values), strict=True))
    value = ast.literal_eval(node)
    if value is not None and not isinstance(value, str | int | float):
        raise ValueError("JSON has no such literal")
    return value


PYTHONIC = PythonicFormat()
