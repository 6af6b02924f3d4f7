"""Errors that the HTTP side itself finds in a request.

Raised before the engine is asked. `server.error_handlers` turns them into answers, together with
the engine's own. Texts are for the client: no paths, no representations of our objects.
"""


class RequestError(Exception):
    """A request that is answered with an error status.

    Attributes:
        status: The HTTP status.
        param: Path of the field that is wrong, if it is one.
        code: A slug for programs.
    """

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str = "invalid_value",
        status: int = 400,
    ) -> None:
        """Store the text and what it is about."""
        super().__init__(message)
        self.status = status
        self.param = param
        self.code = code


class ContextLengthError(RequestError):
    """The prompt, or the prompt plus the answer asked for, is longer than the context."""

    def __init__(
        self, *, num_prompt_tokens: int, num_new_tokens: int | None, max_tokens: int, param: str
    ) -> None:
        """Build the text from the numbers.

        Args:
            num_prompt_tokens: Length of the prompt, in tokens.
            num_new_tokens: Answer tokens asked for; None when the prompt alone is too long.
            max_tokens: Positions one request may use, in tokens.
            param: The field that holds the prompt.
        """
        asked = ""
        if num_new_tokens is not None:
            asked = f" and max_tokens asks for {num_new_tokens} for the answer"
        super().__init__(
            f"This model's maximum context length is {max_tokens} tokens; "
            f"the request has {num_prompt_tokens} in {param}{asked}.",
            param=param,
            code="context_length_exceeded",
        )


class ModelNotFoundError(RequestError):
    """The model is none of the served names."""

    def __init__(self, model: str, served_names: tuple[str, ...]) -> None:
        """Name what was asked for and what there is."""
        super().__init__(
            f"The model {model[:128]!r} does not exist here; served: {', '.join(served_names)}.",
            param="model",
            code="model_not_found",
            status=404,
        )


class AuthenticationError(RequestError):
    """The request has no key, or one that opens nothing here."""

    def __init__(self) -> None:
        """Say how a key is given, and nothing of the one that was."""
        super().__init__(
            "A valid API key is needed: send it as Authorization: Bearer KEY, or as x-api-key.",
            code="invalid_api_key",
            status=401,
        )


class ForbiddenError(RequestError):
    """The path is not for this key."""

    def __init__(self) -> None:
        """Say what would open it."""
        super().__init__(
            "This path needs an administrator's key.", code="permission_denied", status=403
        )


class LoadingError(RequestError):
    """The model is still being loaded."""

    def __init__(self) -> None:
        """Say so."""
        super().__init__(
            "The model is being loaded; send the request again.", code="model_loading", status=503
        )


class DrainingError(RequestError):
    """The server is shutting down and takes no new request."""

    def __init__(self) -> None:
        """Say so."""
        super().__init__(
            "The server is shutting down; send the request again.", code="draining", status=503
        )


class RequestCancelledError(RequestError):
    """Somebody has ended the request by its id."""

    def __init__(self) -> None:
        """Say so, with a status that clients do not answer with a second try."""
        super().__init__("The request was cancelled.", code="request_cancelled", status=499)
