"""Llama 3.2, Llama 4 and others: a Python list of calls, with keywords alone.

[f(a=1, b="x"), g()]
"""

import ast
import json
import warnings
from functools import partial
from typing import Any

from server.tools.blocks import Block, BlockState, WholeBlock
from server.tools.calls import Call, Functions, is_deeper
from server.tools.json_reader import MAX_DEPTH

MAX_CHARACTERS = 100_000
_PAIRS = {"{": "}", "[": "]", "(": ")"}
_NAMES = {"true": True, "false": False, "null": None}


class PythonicFormat:
    """See the module."""

    name = "pythonic"
    openings = ("<|python_start|>", "<|python_tag|>")
    closings = ("<|python_end|>",)
    bare = "["

    def block(self, functions: Functions) -> Block:
        """See `CallFormat.block`."""
        return WholeBlock(_ListEnd().feed, partial(_read, functions))


class _ListEnd:
    """Finds the end of a list; brackets in texts don't count."""

    def __init__(self) -> None:
        self._open: list[str] = []
        self._quote = ""
        self._escaped = False

    def feed(self, text: str) -> BlockState:
        """Take one character, or fail at a special token; see `WholeBlock`."""
        if len(text) != 1:
            return BlockState.FAILED
        if self._quote:
            self._in_text(text)
        elif not self._open:
            if text == "[":
                self._open.append("]")
            elif not text.isspace():
                return BlockState.FAILED
        elif text in "\"'":
            self._quote = text
        elif text in _PAIRS:
            self._open.append(_PAIRS[text])
        elif text in "}])":
            if self._open.pop() != text:
                return BlockState.FAILED
            return BlockState.HELD if self._open else BlockState.DONE
        return BlockState.HELD

    def _in_text(self, character: str) -> None:
        if self._escaped:
            self._escaped = False
        elif character == "\\":
            self._escaped = True
        elif character == self._quote:
            self._quote = ""


def _read(functions: Functions, text: str) -> list[Call] | None:
    """Return the calls in a list; None if it is none of calls."""
    if len(text) > MAX_CHARACTERS:
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what the model writes: 1if, "\d"
            tree = ast.parse(text.strip(), mode="eval").body
        calls = [_read_call(item, functions) for item in tree.elts]  # type: ignore[attr-defined]
    except (AttributeError, SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    return calls or None


def _read_call(node: Any, functions: Functions) -> Call:
    name = ast.unparse(node.func)
    if name not in functions or node.args or any(one.arg is None for one in node.keywords):
        raise ValueError("it is no call of a function with keywords")
    arguments = {one.arg: _value(one.value) for one in node.keywords}
    if is_deeper(arguments, MAX_DEPTH):
        raise ValueError("it is too deep")
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
