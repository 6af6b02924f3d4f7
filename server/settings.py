"""The settings of a server: six sections, one frozen dataclass each.

Order: defaults < file < environment < command line. Unknown keys are errors. `load_settings` puts
them together; what a value must look like stands in `server.setting_values`, and what is read from
the environment in `server.environment`.
"""

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from server.keys import KeyRing
from server.setting_values import (
    ACTIVATIONS,
    DEVICE_PATTERN,
    DTYPES,
    ENGINE_FAILURE_POLICIES,
    HTTP_PARSERS,
    LOG_FORMATS,
    LOG_LEVELS,
    METRICS_PREFIXES,
    OVERLOAD_STATUSES,
    POOLINGS,
    REASONING_PARSERS,
    SAMPLING_DEFAULTS,
    TOOL_PARSERS,
    WEIGHTS,
    SettingsError,
    build_section,
    check_at_least,
    check_choice,
)

SECTIONS = ("model", "engine", "server", "batches", "security", "telemetry")


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """Which model is served and under which names.

    Attributes:
        path: Local folder or hub name; empty serves the default model.
        served_names: Names clients may use, first is the one listed; empty derives one from path.
        revision: Hub revision of every file of the model.
        dtype: "auto", "float32", "bfloat16" or "float16"; auto is float32 on a CPU.
        weights: What linear layers and embedding are stored as on a CPU: "fp32" (as loaded),
            "bf16x3" (needs a processor with a tile unit), "bf16", "int8" or "int4"; auto is bf16 if
            that loses nothing, else as loaded.
        activations: What weights of 8 and 4 bits are multiplied with on a CPU: "fp32", or "int8",
            which is faster and nearly as exact; see docs/quantisation.md.
        fusion: Compute known modules, and a whole decoder of the usual structure, in one call of
            the compiled kernels. Without, the model's own Hugging Face forward and torch's
            attention compute, which is slower and there to compare with; weights that are packed
            stay so, module by module.
        device: "auto", "cpu", "cuda" or "cuda:N".
        chat_template: File with a chat template that replaces the tokenizer's own.
        allow_auto_map: Serve a model whose config names code of its own, with transformers' code
            in its place; the model's own is never run.
        max_model_tokens: Upper bound on prompt plus answer, 0 takes the model's own.
        pooling: What embeddings are made of: "mean" or "last" of a text's last hidden states;
            "none" refuses to make any.
        sampling_defaults: "model" takes defaults from generation_config.json as far as it names
            any, "openai" takes temperature 1, top_p 1 and no top_k.
    """

    path: str = ""
    served_names: tuple[str, ...] = ()
    revision: str = ""
    dtype: str = "auto"
    weights: str = "auto"
    activations: str = "fp32"
    fusion: bool = True
    device: str = "auto"
    chat_template: str = ""
    allow_auto_map: bool = False
    max_model_tokens: int = 0
    pooling: str = "mean"
    sampling_defaults: str = "model"


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Where the server listens and how much one request may ask for.

    Attributes:
        host: Address to bind.
        port: TCP port; 0 takes a free one.
        http_parser: "httptools" or "h11", which is slower and written in Python.
        max_body_bytes: Largest request body, in bytes.
        max_header_bytes: Largest request line and headers together, in bytes.
        max_headers: Most headers of a request.
        max_connections: Most open connections; further ones get 503 at once. 0 is unlimited.
        max_choices: Largest n.
        max_prompts: Most prompts in one completions request.
        max_messages: Most messages in one chat request.
        max_top_logprobs: Most alternatives per position.
        max_stop_strings: Most stop strings.
        tool_parser: How the model writes calls of functions; "auto" tells it from the chat
            template. Others are hermes, llama_json, pythonic, mistral, deepseek, granite, phi,
            qwen_coder, glm, harmony and json.
        reasoning_parser: What the model writes around its reasoning, which answers then carry
            apart; "auto" tells it from the chat template, "none" leaves it in the text. Others are
            think, mistral, cohere, seed and thought.
        queue_timeout_seconds: How long a request may wait for its first step; 0 is for ever.
        request_timeout_seconds: How long a request may take from its arrival on; 0 is for ever.
        receive_timeout_seconds: How long a client may take to send a whole request.
        send_timeout_seconds: How long a client may keep its connection full before it is cut.
        keep_alive_seconds: Idle connections are closed after this.
        max_stored_responses: Responses that are kept, in memory, for those who come back to them;
            0 keeps none.
        max_stored_bytes: What they may take together.
        shutdown_timeout_seconds: How long running streams may finish after SIGTERM.
        hang_timeout_seconds: An engine that makes no step for so long while requests run counts
            as hung, and the process ends; 0 waits for ever.
        engine_failure: What an engine's death leads to: "exit" ends the process with a status that
            is not 0, "restart" starts the engine again, "stay" answers 503 until somebody
            comes, or an engine that hung goes on.
        overload_status: 429 or 503, the status of what is refused because the queue is full.
        allow_origins: Origins whose pages may call the API from a browser; none by default.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    http_parser: str = "httptools"
    max_body_bytes: int = 8 * 1024 * 1024
    max_header_bytes: int = 64 * 1024
    max_headers: int = 128
    max_connections: int = 0
    max_choices: int = 16
    max_prompts: int = 128
    max_messages: int = 4096
    max_top_logprobs: int = 20
    max_stop_strings: int = 16
    tool_parser: str = "auto"
    reasoning_parser: str = "auto"
    queue_timeout_seconds: float = 0.0
    request_timeout_seconds: float = 0.0
    receive_timeout_seconds: float = 60.0
    send_timeout_seconds: float = 60.0
    keep_alive_seconds: int = 75
    max_stored_responses: int = 256
    max_stored_bytes: int = 64 * 1024 * 1024
    shutdown_timeout_seconds: float = 30.0
    hang_timeout_seconds: float = 120.0
    engine_failure: str = "exit"
    overload_status: int = 429
    allow_origins: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class BatchSettings:
    """What files and batches may take.

    Attributes:
        folder: Where they are kept; empty keeps none and runs no batches.
        max_file_bytes: Largest file of a client.
        max_total_bytes: What all files may take together.
        max_requests: Most requests in a batch.
        num_at_once: Requests of batches that are answered at a time while nobody else asks; with
            engine.scheduler_type = "priority" also beside others, whom they give way to.
    """

    folder: str = ""
    max_file_bytes: int = 64 * 1024 * 1024
    max_total_bytes: int = 1024 * 1024 * 1024
    max_requests: int = 10_000
    num_at_once: int = 8


@dataclass(frozen=True, slots=True)
class SecuritySettings:
    """Who may ask. The keys themselves come from files or the environment, never from here.

    Attributes:
        api_keys_file: File of client keys, one in a line, as `KEY`, `NAME KEY` or, in either form,
            sha256:HEX in place of the key. A # at the start of a line or after a blank begins a
            comment. Files, batches and stored responses belong to the name, to the key itself if
            it has none. Further keys come from SLIPSTREAM_API_KEYS; no key and no name may stand
            twice, those of /admin included.
        admin_keys_file: The same for the keys of /admin; further ones from SLIPSTREAM_ADMIN_KEYS.
        allow_unauthenticated: Listen on an address that others reach although there is no key.
        public_metrics: Let /metrics be read without a key.
        share_prefixes: Whether clients with different keys share the prefix cache. They can tell
            from the time to the first token what others have asked.
    """

    api_keys_file: str = ""
    admin_keys_file: str = ""
    allow_unauthenticated: bool = False
    public_metrics: bool = False
    share_prefixes: bool = False


@dataclass(frozen=True, slots=True)
class TelemetrySettings:
    """What the server tells of itself. None of it holds text of prompts or answers.

    Attributes:
        log_level: Level of the slipstream loggers: debug, info, warning, error or critical.
        log_format: "text", or "json" for one JSON object in a line.
        log_requests: Write one line for each request that has ended.
        metrics: Serve /metrics.
        metrics_prefix: "slipstream", or "vllm" to serve the common measures under the names of
            vLLM's dashboards as well.
        otlp_endpoint: URL that traces are sent to, as in http://collector:4318/v1/traces; needs
            the extra "otel". Empty sends none.
    """

    log_level: str = "info"
    log_format: str = "text"
    log_requests: bool = False
    metrics: bool = True
    metrics_prefix: str = "slipstream"
    otlp_endpoint: str = ""


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings of a server.

    Attributes:
        model: The [model] section.
        engine: The [engine] section: fields of `ContinuousBatchingConfig` by name.
        server: The [server] section.
        batches: The [batches] section.
        security: The [security] section.
        telemetry: The [telemetry] section.
        keys: Who may ask, from files and the environment; holds hashes only.
        origins: Where the settings that are not defaults come from, by section.key.
    """

    model: ModelSettings = field(default_factory=ModelSettings)
    engine: dict[str, Any] = field(default_factory=dict)
    server: ServerSettings = field(default_factory=ServerSettings)
    batches: BatchSettings = field(default_factory=BatchSettings)
    security: SecuritySettings = field(default_factory=SecuritySettings)
    telemetry: TelemetrySettings = field(default_factory=TelemetrySettings)
    keys: KeyRing = field(default_factory=KeyRing)
    origins: Mapping[str, str] = field(default_factory=dict, compare=False)


def load_settings(
    path: Path | None = None,
    overrides: Iterable[str] = (),
    environment: Mapping[str, Any] | None = None,
) -> Settings:
    """Return the settings of a file, the environment and `section.key=value` on top of it.

    The keys of [engine] are checked where the engine's configuration is built, not here.

    Args:
        path: A TOML file, or None for the defaults alone.
        overrides: Later ones win. A value is read as TOML; what is not TOML is taken as text.
        environment: Values by section.key, from `server.environment.read_settings`.

    Raises:
        SettingsError: One line that names the place, the key and what to write.
    """
    sections = {} if path is None else _read_file(path)
    place = "settings" if path is None else str(path)
    origins = {f"{section}.{key}": place for section, values in sections.items() for key in values}
    for name, value in (environment or {}).items():
        section, _, key = name.partition(".")
        sections.setdefault(section, {})[key] = value
        origins[name] = "environment"
    for override in overrides:
        section, key, value = _parse_override(override)
        sections.setdefault(section, {})[key] = value
        origins[f"{section}.{key}"] = "command line"
    unknown = [name for name in sections if name not in SECTIONS]
    if unknown:
        raise SettingsError(
            f"{place}: unknown section [{unknown[0]}]; the sections are "
            + ", ".join(f"[{name}]" for name in SECTIONS)
        )
    settings = Settings(
        model=build_section(ModelSettings, "model", sections.get("model", {})),
        engine=sections.get("engine", {}),
        server=build_section(ServerSettings, "server", sections.get("server", {})),
        batches=build_section(BatchSettings, "batches", sections.get("batches", {})),
        security=build_section(SecuritySettings, "security", sections.get("security", {})),
        telemetry=build_section(TelemetrySettings, "telemetry", sections.get("telemetry", {})),
        origins=origins,
    )
    _validate(settings)
    return settings


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
    return section, key, parse_value(value)


def parse_value(text: str) -> Any:
    """Return a value as TOML reads it; what is not TOML is text."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text.strip()


def _validate(settings: Settings) -> None:
    model, server, telemetry = settings.model, settings.server, settings.telemetry
    check_choice("model.dtype", model.dtype, DTYPES)
    check_choice("model.weights", model.weights, WEIGHTS)
    check_choice("model.activations", model.activations, ACTIVATIONS)
    check_choice("model.sampling_defaults", model.sampling_defaults, SAMPLING_DEFAULTS)
    check_choice("model.pooling", model.pooling, POOLINGS)
    check_choice("server.http_parser", server.http_parser, HTTP_PARSERS)
    check_choice("server.engine_failure", server.engine_failure, ENGINE_FAILURE_POLICIES)
    check_choice("server.tool_parser", server.tool_parser, TOOL_PARSERS)
    check_choice("server.reasoning_parser", server.reasoning_parser, REASONING_PARSERS)
    check_choice("server.overload_status", server.overload_status, OVERLOAD_STATUSES)
    check_choice("telemetry.log_format", telemetry.log_format, LOG_FORMATS)
    check_choice("telemetry.metrics_prefix", telemetry.metrics_prefix, METRICS_PREFIXES)
    check_choice("telemetry.log_level", telemetry.log_level, LOG_LEVELS)
    if not DEVICE_PATTERN.fullmatch(model.device):
        raise SettingsError(f"model.device is {model.device!r}; write auto, cpu, cuda or cuda:0")
    if not 0 <= server.port <= 65535:
        raise SettingsError(f"server.port is {server.port}; write a number from 0 to 65535")
    if model.max_model_tokens < 0:
        raise SettingsError(
            f"model.max_model_tokens is {model.max_model_tokens}; write 0 for the model's own limit"
        )
    for limit in ("max_file_bytes", "max_total_bytes", "max_requests", "num_at_once"):
        check_at_least(f"batches.{limit}", getattr(settings.batches, limit), 1)
    for key, least in _LEAST.items():
        check_at_least(f"server.{key}", getattr(server, key), least)


_LEAST = {
    "max_body_bytes": 1,
    "max_header_bytes": 1024,
    "max_headers": 8,
    "max_connections": 0,
    "max_choices": 1,
    "max_prompts": 1,
    "max_messages": 1,
    "max_top_logprobs": 0,
    "max_stop_strings": 0,
    "max_stored_responses": 0,
    "max_stored_bytes": 0,
    "keep_alive_seconds": 1,
    "queue_timeout_seconds": 0,
    "request_timeout_seconds": 0,
    "receive_timeout_seconds": 0.01,
    "send_timeout_seconds": 0.01,
    "shutdown_timeout_seconds": 0,
    "hang_timeout_seconds": 0,
}
