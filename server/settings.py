"""The settings of a server: one TOML file, three sections, one frozen dataclass each.

Order: defaults < file < `--set section.key=value`. Unknown keys are errors. This is the only module
that touches environment variables: it reads secrets and the cache folder from there, and sets how
the threads of the tensor library wait.
"""

import difflib
import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin

SECTIONS = ("model", "engine", "server")
DTYPES = ("auto", "float32", "bfloat16", "float16")
SAMPLING_DEFAULTS = ("model", "openai")
LOG_LEVELS = ("debug", "info", "warning", "error", "critical")
# A tenth of a millisecond or so, longer than the gaps between the operations of a step.
SPIN_COUNT = "10000"
DEVICE_PATTERN = re.compile(r"auto|cpu|cuda(:\d+)?")


SectionT = TypeVar("SectionT", "ModelSettings", "ServerSettings")


class SettingsError(ValueError):
    """A settings file or a --set argument is wrong; the text says where and what to write."""


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """Which model is served and under which names.

    Attributes:
        path: Local folder or hub name; empty serves the default model.
        served_names: Names clients may use, first is the one listed; empty derives one from path.
        revision: Hub revision of every file of the model.
        dtype: "auto", "float32", "bfloat16" or "float16"; auto is float32 on a CPU.
        device: "auto", "cpu", "cuda" or "cuda:N".
        chat_template: File with a chat template that replaces the tokenizer's own.
        max_model_tokens: Upper bound on prompt plus answer, 0 takes the model's own.
        sampling_defaults: "model" takes defaults from generation_config.json, "openai" takes
            temperature 1 and top_p 1.
    """

    path: str = ""
    served_names: tuple[str, ...] = ()
    revision: str = ""
    dtype: str = "auto"
    device: str = "auto"
    chat_template: str = ""
    max_model_tokens: int = 0
    sampling_defaults: str = "model"


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Where the server listens and how much one request may ask for.

    Attributes:
        host: Address to bind.
        port: TCP port; 0 takes a free one.
        max_body_bytes: Largest request body.
        max_choices: Largest n.
        max_prompts: Most prompts in one completions request.
        max_top_logprobs: Most alternatives per position.
        max_stop_strings: Most stop strings.
        shutdown_timeout_seconds: How long running streams may finish after SIGTERM.
        keep_alive_seconds: Idle connections are closed after this.
        allow_origins: CORS origins.
        log_level: Level of the slipstream loggers.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    max_body_bytes: int = 8 * 1024 * 1024
    max_choices: int = 16
    max_prompts: int = 128
    max_top_logprobs: int = 20
    max_stop_strings: int = 16
    shutdown_timeout_seconds: float = 30.0
    keep_alive_seconds: int = 75
    allow_origins: tuple[str, ...] = ("*",)
    log_level: str = "info"


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings of a server.

    Attributes:
        model: The [model] section.
        engine: The [engine] section: fields of `ContinuousBatchingConfig` by name.
        server: The [server] section.
    """

    model: ModelSettings = field(default_factory=ModelSettings)
    engine: dict[str, Any] = field(default_factory=dict)
    server: ServerSettings = field(default_factory=ServerSettings)


def load_settings(path: Path | None = None, overrides: Iterable[str] = ()) -> Settings:
    """Return the settings of a file with `section.key=value` overrides on top of it.

    The keys of [engine] are checked where the engine's configuration is built, not here.

    Args:
        path: A TOML file, or None for the defaults alone.
        overrides: Later ones win. A value is read as TOML; what is not TOML is taken as text.

    Raises:
        SettingsError: One line that names the place, the key and what to write.
    """
    sections = {} if path is None else _read_file(path)
    for override in overrides:
        section, key, value = _parse_override(override)
        sections.setdefault(section, {})[key] = value
    origin = "settings" if path is None else str(path)
    unknown = [name for name in sections if name not in SECTIONS]
    if unknown:
        raise SettingsError(
            f"{origin}: unknown section [{unknown[0]}]; the sections are "
            + ", ".join(f"[{name}]" for name in SECTIONS)
        )
    settings = Settings(
        model=_build(ModelSettings, "model", sections.get("model", {})),
        engine=sections.get("engine", {}),
        server=_build(ServerSettings, "server", sections.get("server", {})),
    )
    _validate(settings)
    return settings


def cache_folder() -> Path:
    """Return where downloaded and converted models are kept; the folder may not exist yet."""
    own = os.environ.get("SLIPSTREAM_CACHE")
    if own:
        return Path(own).expanduser().absolute()
    shared = os.environ.get("XDG_CACHE_HOME")
    return (Path(shared) if shared else Path.home() / ".cache").expanduser() / "slipstream"


def child_environment(**extra: str) -> dict[str, str]:
    """Return this process's environment with additions, for a child process."""
    return {**os.environ, **extra}


def calm_worker_threads() -> None:
    """Let the tensor library's threads sleep soon after work; call before it is imported.

    By default they spin for milliseconds, and where anything else wants the cores, the server's own
    event loop included, everybody waits for a thread that does nothing: a start took three times
    the processor time. What the operator set stays.
    """
    os.environ.setdefault("GOMP_SPINCOUNT", SPIN_COUNT)


def unknown_key_message(section: str, key: str, known: Iterable[str]) -> str:
    """Return one line that says a key does not exist and which one may have been meant."""
    names = sorted(known)
    close = difflib.get_close_matches(key, names, n=1)
    hint = f"did you mean {close[0]}?" if close else "known are " + ", ".join(names)
    return f"{section}.{key} is not a setting; {hint}"


def _read_file(path: Path) -> dict[str, dict[str, Any]]:
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise SettingsError(f"{path} does not exist; give --config an existing TOML file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path} cannot be read: {error}") from None
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"{path} is not valid TOML: {error}") from None
    for name, section in content.items():
        if not isinstance(section, dict):
            raise SettingsError(f"{path}: {name} stands outside a section; put it under [server]")
    return content


def _parse_override(text: str) -> tuple[str, str, Any]:
    name, equals, value = text.partition("=")
    section, dot, key = name.strip().partition(".")
    if not (equals and dot and section and key):
        raise SettingsError(f"--set {text}: write section.key=value, as in engine.page_size=32")
    try:
        return section, key, tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return section, key, value.strip()


def _build(kind: type[SectionT], section: str, values: Mapping[str, Any]) -> SectionT:
    kinds = {item.name: item.type for item in fields(kind)}
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


def _validate(settings: Settings) -> None:
    model, server = settings.model, settings.server
    _check_choice("model.dtype", model.dtype, DTYPES)
    _check_choice("model.sampling_defaults", model.sampling_defaults, SAMPLING_DEFAULTS)
    _check_choice("server.log_level", server.log_level, LOG_LEVELS)
    if not DEVICE_PATTERN.fullmatch(model.device):
        raise SettingsError(f"model.device is {model.device!r}; write auto, cpu, cuda or cuda:0")
    if not 0 <= server.port <= 65535:
        raise SettingsError(f"server.port is {server.port}; write a number from 0 to 65535")
    if model.max_model_tokens < 0:
        raise SettingsError(
            f"model.max_model_tokens is {model.max_model_tokens}; write 0 for the model's own limit"
        )
    for key in ("max_body_bytes", "max_choices", "max_prompts", "keep_alive_seconds"):
        _check_at_least(f"server.{key}", getattr(server, key), 1)
    for key in ("max_top_logprobs", "max_stop_strings", "shutdown_timeout_seconds"):
        _check_at_least(f"server.{key}", getattr(server, key), 0)


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise SettingsError(f"{name} is {value!r}; write one of {', '.join(choices)}")


def _check_at_least(name: str, value: float, least: int) -> None:
    if not value >= least:  # also refuses nan
        raise SettingsError(f"{name} is {value}; write {least} or more")
