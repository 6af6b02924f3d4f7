"""What the value of a setting must look like, and what to say of one that does not. Pure."""

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any, TypeVar, get_args, get_origin

DTYPES = ("auto", "float32", "bfloat16", "float16")
WEIGHTS = ("auto", "fp32", "bf16x3", "bf16", "int8", "int4")
ACTIVATIONS = ("fp32", "int8")
TOOL_PARSERS = (
    "auto",
    "hermes",
    "llama_json",
    "pythonic",
    "mistral",
    "deepseek",
    "granite",
    "phi",
    "qwen_coder",
    "glm",
    "harmony",
    "json",
)
REASONING_PARSERS = ("auto", "none", "think", "mistral", "cohere", "seed", "thought")
SAMPLING_DEFAULTS = ("model", "openai")
LOG_LEVELS = ("debug", "info", "warning", "error", "critical")
POOLINGS = ("mean", "last", "none")
LOG_FORMATS = ("text", "json")
HTTP_PARSERS = ("httptools", "h11")
ENGINE_FAILURE_POLICIES = ("exit", "restart", "stay")
OVERLOAD_STATUSES = (429, 503)
METRICS_PREFIXES = ("slipstream", "vllm")
DEVICE_PATTERN = re.compile(r"auto|cpu|cuda(:\d+)?")

SectionT = TypeVar("SectionT")


class SettingsError(ValueError):
    """A settings file, variable or argument is wrong; the text says where and what to write."""


def unknown_key_message(section: str, key: str, known: Iterable[str]) -> str:
    """Return one line that says a key does not exist and which one may have been meant."""
    names = sorted(known)
    close = difflib.get_close_matches(key, names, n=1)
    hint = f"did you mean {close[0]}?" if close else "known are " + ", ".join(names)
    return f"{section}.{key} is not a setting; {hint}"


def build_section(kind: type[SectionT], section: str, values: Mapping[str, Any]) -> SectionT:
    """Return a section's dataclass from values as TOML has them.

    Raises:
        SettingsError: A key does not exist, or its value has the wrong type.
    """
    kinds = {item.name: item.type for item in fields(kind)}  # type: ignore[arg-type]
    for key in values:
        if key not in kinds:
            raise SettingsError(unknown_key_message(section, key, kinds))
    return kind(**{key: _convert(f"{section}.{key}", kinds[key], values[key]) for key in values})


def _convert(name: str, kind: Any, value: Any) -> Any:
    """Return a TOML value as the type of its field; the few types that occur, nothing clever."""
    if get_origin(kind) is tuple:
        item_kind = get_args(kind)[0]
        items = value.split(",") if isinstance(value, str) else value
        if isinstance(items, list | tuple) and all(isinstance(item, item_kind) for item in items):
            return tuple(items)
        raise SettingsError(f'{name} is {value!r}; write a list, as in ["a", "b"]')
    if kind is float and type(value) is int:
        return float(value)
    if kind is str and isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    if type(value) is not kind:
        wanted = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}
        raise SettingsError(f"{name} is {value!r}; write {wanted[kind]}")
    return value


def check_choice(name: str, value: str | int, choices: tuple[str | int, ...]) -> None:
    """Raise SettingsError unless the value is one of the choices."""
    if value not in choices:
        raise SettingsError(f"{name} is {value!r}; write one of {', '.join(map(str, choices))}")


def check_at_least(name: str, value: float, least: float) -> None:
    """Raise SettingsError unless the value is a number that is large enough."""
    if not value >= least:  # also refuses nan
        raise SettingsError(f"{name} is {value}; write {least} or more")
