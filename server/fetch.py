"""`slipstream fetch`: prepare the default model ahead of time, as an image build does."""

from server.console import output_console
from server.default_model import prepare_default_model
from server.environment import cache_folder
from server.settings import Settings


def run(settings: Settings) -> int:
    """Download, unpack and verify the default model, then print its folder; return 0.

    Raises:
        StartupError: One line that says what is missing and what to do.
    """
    del settings  # nothing in them concerns the default model
    output_console().print(str(prepare_default_model(cache_folder(), verify=True)))
    return 0
