"""`slipstream config`: print the settings in force and where each comes from, and stop."""

import dataclasses

from server.console import output_console
from server.effective_settings import all_settings
from server.engine_settings import engine_config
from server.settings import Settings


def run(settings: Settings) -> int:
    """Print every setting as `section.key = value  # origin`; return 0.

    Raises:
        SettingsError: A key of [engine] does not exist.
    """
    config = engine_config(settings)
    values = {entry.name: getattr(config, entry.name) for entry in dataclasses.fields(config)}
    console = output_console()
    for name, value, origin in all_settings(dataclasses.replace(settings, engine=values)):
        console.print(f"{name} = {value}  # {origin}", markup=False)
    return 0
