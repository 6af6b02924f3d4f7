"""`slipstream serve`: from settings to a server that answers, in the order in which things fail.

    local model ─► listen ─► other models ─► weights ─► tokenizer ─► cache ─► warm-up ─► token
                   /live 200, everything else 503                                        /ready
                             "fetching"       "loading"

The command has checked the address before it imports this module, whose imports alone take
seconds. Each failure becomes one `StartupError`; engine errors are caught for that only.
"""

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fastapi import FastAPI
from transformers import AutoTokenizer, PreTrainedTokenizerBase
from transformers.utils import logging as transformers_logging

import engine
from engine import (
    ContinuousBatchingConfig,
    ContinuousBatchingManager,
    EngineError,
    PagedModel,
)
from server.app import create_app
from server.console import (
    configure_logging,
    error_console,
    print_configuration,
    print_listening,
    print_notice,
)
from server.default_model import DEFAULT_MODEL
from server.effective_settings import changed_settings
from server.engine_settings import engine_config
from server.environment import cache_folder
from server.loading import LoadingApp
from server.model_store import StoredModel, find_model, is_fetched
from server.serving import run as run_server
from server.serving import settle_memory
from server.settings import Settings
from server.startup_errors import ModelUnavailableError, StartupError


def run(settings: Settings) -> int:
    """Serve until SIGINT or SIGTERM and return the exit status.

    Raises:
        SettingsError: A key of [engine] does not exist or holds a value of the wrong kind.
        StartupError: One line that says what keeps the server from starting and what to do.
    """
    configure_logging(settings.telemetry.log_level, settings.telemetry.log_format)
    if not error_console().is_terminal:
        transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    config = engine_config(settings)
    stored = None if is_fetched(settings.model) else find_model(settings.model, cache_folder())
    launch = Launch(settings, stored, config)
    app = LoadingApp(settings, launch.load, launch.announce, launch.stage)
    try:
        status = run_server(app, settings.server, launch.open)
    finally:
        launch.close()
    if isinstance(app.error, EngineError):
        raise StartupError(str(app.error)) from app.error
    if app.error is not None:
        raise app.error
    return status


class Launch:
    """What is made on the way to a server that answers."""

    def __init__(
        self, settings: Settings, stored: StoredModel | None, config: ContinuousBatchingConfig
    ) -> None:
        """Remember what to make of which model, None if that is still to be found."""
        self._settings = settings
        self._stored = stored
        self._config = config
        self._manager: ContinuousBatchingManager | None = None
        self._address = ("", 0)

    def open(self, host: str, port: int) -> None:
        """Note where the server listens, and say that it does; on the event loop."""
        self._address = (host, port)
        name = self._settings.model.path or DEFAULT_MODEL.name
        print_notice(f"{self.stage()} {name}; port {port} is open, and /ready says when")

    def stage(self) -> str:
        """Return what is being done before requests are taken; on any thread."""
        return "fetching" if self._stored is None else "loading"

    def load(self) -> FastAPI:
        """Load everything and return the application; on the thread that loads.

        Raises:
            StartupError: See `run`.
        """
        if self._stored is None:
            self._stored = find_model(self._settings.model, cache_folder())
        self._settings = settings = _with_model(self._settings, self._stored)
        with _startup_errors():
            model = _load(settings, self._stored)
            tokenizer = load_tokenizer(settings, self._stored)
            self._manager = model.init_continuous_batching(continuous_batching_config=self._config)
        resolved = self._manager.resolved_config.describe()
        print_configuration([*changed_settings(settings), *resolved])
        return create_app(settings, model, self._manager, tokenizer)

    def announce(self) -> None:
        """Say that requests are taken, and how to send one; on the event loop."""
        settle_memory()
        print_listening(*self._address, model_name=self._settings.model.served_names[0])

    def close(self) -> None:
        """Give back what the engine holds."""
        if self._manager is not None:
            self._manager.destroy()


def load_tokenizer(settings: Settings, stored: StoredModel) -> PreTrainedTokenizerBase:
    """Return the model's tokenizer, with the chat template of the settings if they name one.

    Raises:
        ModelUnavailableError: The folder has no tokenizer, or the template cannot be read.
    """
    template = settings.model.chat_template
    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
            stored.folder, trust_remote_code=False
        )
    except Exception as error:
        # As with weights; some of what the library raises is a plain Exception.
        raise ModelUnavailableError(
            f"{stored.folder} has no tokenizer that can be read: {error}"
        ) from error
    if template:
        try:
            tokenizer.chat_template = Path(template).read_text(encoding="utf-8")
        except OSError as error:
            raise ModelUnavailableError(
                f"the chat template {template} cannot be read: {error.strerror}"
            ) from error
    return tokenizer


def _with_model(settings: Settings, stored: StoredModel) -> Settings:
    """Return the settings with the model's folder and the names it is served under filled in."""
    names = settings.model.served_names or (stored.name,)
    model = dataclasses.replace(settings.model, path=str(stored.folder), served_names=names)
    return dataclasses.replace(settings, model=model)


def _load(settings: Settings, stored: StoredModel) -> PagedModel:
    try:
        return engine.load(
            stored.source,
            dtype=settings.model.dtype,
            device=settings.model.device,
            max_model_tokens=settings.model.max_model_tokens or None,
            weights=settings.model.weights,
            activations=settings.model.activations,
            use_fusion=settings.model.fusion,
        )
    except EngineError:
        raise
    except Exception as error:
        # A damaged file makes each library raise errors of its own kind.
        raise ModelUnavailableError(f"{stored.source} cannot be loaded: {error}") from error


@contextmanager
def _startup_errors() -> Iterator[None]:
    """Let an engine error of the block end the command with its text alone."""
    try:
        yield
    except EngineError as error:
        raise StartupError(str(error)) from error
