"""What keeps a server from starting, each with a text that says in one line what to do.

These end the command with that line; errors of single requests are the engine's own.
"""


class StartupError(Exception):
    """The server cannot start; the text says why and what to do."""


class ModelUnavailableError(StartupError):
    """The model is not here and cannot be fetched, or cannot be served."""


class AddressError(StartupError):
    """The server cannot listen where it was told to."""
