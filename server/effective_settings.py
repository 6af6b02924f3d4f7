"""The settings as they are in force, for a person to read: value and where it comes from.

Secrets are counted and never shown. Pure.
"""

from collections.abc import Iterator
from dataclasses import fields
from typing import Any

from server.settings import SECTIONS, Settings

DEFAULT = "default"
Row = tuple[str, str, str]


def all_settings(settings: Settings) -> Iterator[Row]:
    """Yield every setting: section.key, its value as TOML, and its origin."""
    for section in SECTIONS:
        for key, value in _values(getattr(settings, section)):
            name = f"{section}.{key}"
            yield name, as_toml(value), settings.origins.get(name, DEFAULT)
    yield from _secrets(settings)


def changed_settings(settings: Settings) -> Iterator[Row]:
    """Yield the settings that are not the default's, and the secrets."""
    for name, value, origin in all_settings(settings):
        if origin != DEFAULT:
            yield name, value, origin


def as_toml(value: Any) -> str:
    """Return a value as a settings file would hold it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        return f'"{escaped}"'
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(as_toml, value))}]"
    # None is how the engine says that it decides by itself; TOML has no such value.
    return "(decided at the start)" if value is None else str(value)


def _values(section: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(section, dict):
        yield from section.items()
        return
    for entry in fields(section):
        yield entry.name, getattr(section, entry.name)


def _secrets(settings: Settings) -> Iterator[Row]:
    keys_of = {"client keys": settings.keys.clients, "admin keys": settings.keys.admins}
    for name, keys in keys_of.items():
        if keys:
            yield name, "*" * 8, ", ".join(key.name for key in keys)
