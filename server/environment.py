"""The only module that touches environment variables.

A setting `section.key` is SLIPSTREAM_SECTION_KEY there. Secrets, which are no settings, have
variables of their own. Variables that begin with SLIPSTREAM_ and mean nothing are errors, as
unknown keys of a file are; an empty one counts as absent.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from server.keys import Key, KeyFormatError, KeyRing, parse_keys
from server.setting_values import SettingsError
from server.settings import SECTIONS, SecuritySettings, parse_value

PREFIX = "SLIPSTREAM_"
# Secret variables: several keys are separated by commas or line breaks.
CLIENT_KEYS = ("SLIPSTREAM_API_KEY", "SLIPSTREAM_API_KEYS")
ADMIN_KEYS = ("SLIPSTREAM_ADMIN_KEY", "SLIPSTREAM_ADMIN_KEYS")
# Read elsewhere: the folder of the default model, and the package index of the installer.
OTHERS = ("SLIPSTREAM_CACHE", "SLIPSTREAM_TORCH_INDEX")
# A tenth of a millisecond or so, longer than the gaps between the operations of a step.
SPIN_COUNT = "10000"


def read_settings(variables: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """Return the settings that the environment holds, by section.key.

    Raises:
        SettingsError: A variable begins like ours and is none of ours.
    """
    found = {}
    for variable, text in sorted(variables.items()):
        if not variable.startswith(PREFIX) or not text:
            continue
        if variable in (*CLIENT_KEYS, *ADMIN_KEYS, *OTHERS):
            continue
        section, _, key = variable.removeprefix(PREFIX).lower().partition("_")
        if section not in SECTIONS or not key:
            raise SettingsError(
                f"{variable} means nothing; write {PREFIX}SECTION_KEY, as in "
                f"{PREFIX}SERVER_PORT, or one of {', '.join((*CLIENT_KEYS, *ADMIN_KEYS, *OTHERS))}"
            )
        found[f"{section}.{key}"] = parse_value(text)
    return found


def read_keys(settings: SecuritySettings, variables: Mapping[str, str] = os.environ) -> KeyRing:
    """Return the keys of the files that the settings name and of the environment, hashed.

    Raises:
        SettingsError: A file or a key cannot be read, or a key or a name stands in two places; the
            text never holds a key.
    """
    try:
        return KeyRing(
            clients=_keys_of(
                "security.api_keys_file", settings.api_keys_file, CLIENT_KEYS, variables
            ),
            admins=_keys_of(
                "security.admin_keys_file", settings.admin_keys_file, ADMIN_KEYS, variables
            ),
        )
    except KeyFormatError as error:
        raise SettingsError(str(error)) from None


def _keys_of(
    setting: str, path: str, names: tuple[str, ...], variables: Mapping[str, str]
) -> tuple[Key, ...]:
    """Return the keys of a file and of variables."""
    keys: list[Key] = []
    if path:
        try:
            lines = Path(path).expanduser().read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "it is no UTF-8 text"
            raise SettingsError(f"{setting}: {path} cannot be read: {reason}") from None
        keys += parse_keys(lines, origin=path)
        if not keys:
            raise SettingsError(f"{setting}: {path} holds no key")
    for name in names:
        lines = variables.get(name, "").replace(",", "\n").splitlines()
        keys += parse_keys(lines, origin=name)
    return tuple(keys)


def cache_folder() -> Path:
    """Return where downloaded models are kept; the folder may not exist yet."""
    own = os.environ.get("SLIPSTREAM_CACHE")
    if own:
        return Path(own).expanduser().absolute()
    shared = os.environ.get("XDG_CACHE_HOME")
    return (Path(shared) if shared else Path.home() / ".cache").expanduser() / "slipstream"


def child_environment(**extra: str) -> dict[str, str]:
    """Return this process's environment with additions and without secrets, for a child."""
    secrets = {*CLIENT_KEYS, *ADMIN_KEYS}
    kept = {name: value for name, value in os.environ.items() if name not in secrets}
    return {**kept, **extra}


def calm_worker_threads() -> None:
    """Let the tensor library's threads sleep soon after work; call before it is imported.

    By default they spin for milliseconds, and where anything else wants the cores, the server's own
    event loop included, everybody waits for a thread that does nothing: a start took three times
    the processor time. What the operator set stays.
    """
    os.environ.setdefault("GOMP_SPINCOUNT", SPIN_COUNT)
