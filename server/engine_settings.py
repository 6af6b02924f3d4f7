"""The [engine] section: fields of the engine's own configuration, by name. Pure."""

import dataclasses

from engine import ContinuousBatchingConfig
from server.setting_values import SettingsError, unknown_key_message
from server.settings import Settings


def engine_config(settings: Settings) -> ContinuousBatchingConfig:
    """Return the engine's configuration from the [engine] section.

    Raises:
        SettingsError: A key does not exist; names the one that may have been meant.
    """
    known = {field.name for field in dataclasses.fields(ContinuousBatchingConfig)}
    for key in settings.engine:
        if key not in known:
            raise SettingsError(unknown_key_message("engine", key, known))
    return ContinuousBatchingConfig(**settings.engine)
