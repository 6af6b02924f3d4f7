"""`slipstream serve`: from settings to a server that answers, in the order in which things fail.

    model folder ─► weights ─► tokenizer ─► cache and configuration ─► warm-up ─► listen

The command has checked the address before it imports this module, whose imports alone take
seconds. Each failure becomes one `StartupError`; engine errors are caught for that only.
"""

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from transformers import AutoTokenizer, PreTrainedTokenizerBase
from transformers.utils import logging as transformers_logging

import engine
from engine import EngineError, PagedModel
from server.app import create_app
from server.console import (
    configure_logging,
    error_console,
    print_configuration,
    print_listening,
    print_notice,
)
from server.effective_settings import changed_settings
from server.engine_settings import engine_config
from server.environment import cache_folder
from server.model_store import StoredModel, find_model
from server.serving import run as run_server
from server.settings import Settings
from server.startup_errors import ModelUnavailableError, StartupError


def run(settings: Settings) -> int:
    """Serve until SIGINT or SIGTERM and return the exit status.

    Raises:
        SettingsError: A key of [engine] does not exist or holds a value of the wrong kind.
        StartupError: One line that says what keeps the server from starting and what to do.
    """
    configure_logging(settings.telemetry.log_level)
    if not error_console().is_terminal:
        transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    config = engine_config(settings)
    stored = find_model(settings.model, cache_folder())
    settings = _with_model(settings, stored)
    print_notice(f"loading {stored.name}")
    with _startup_errors():
        model = _load(settings, stored)
        tokenizer = load_tokenizer(settings, stored)
        manager = model.init_continuous_batching(continuous_batching_config=config)
    print_configuration([*changed_settings(settings), *manager.resolved_config.describe()])
    name = settings.model.served_names[0]
    try:
        app = create_app(settings, model, manager, tokenizer)
        # The application starts and warms up the engine, and stops it at the end.
        return run_server(app, settings.server, partial(print_listening, model_name=name))
    finally:
        manager.destroy()


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
    except (OSError, ValueError) as error:
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
            stored.folder,
            dtype=settings.model.dtype,
            device=settings.model.device,
            max_model_tokens=settings.model.max_model_tokens or None,
            weights=settings.model.weights,
        )
    except OSError as error:
        raise ModelUnavailableError(f"{stored.folder} cannot be loaded: {error}") from error


@contextmanager
def _startup_errors() -> Iterator[None]:
    """Let an engine error of the block end the command with its text alone."""
    try:
        yield
    except EngineError as error:
        raise StartupError(str(error)) from error
