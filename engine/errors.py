"""Every error the engine raises or delivers, as one tree.

    EngineError
    ├── ClientError                  the caller can mend it
    │   ├── InvalidRequestError      a value is wrong; names the parameter
    │   ├── PromptTooLongError       the prompt does not fit the context or the cache
    │   ├── DuplicateRequestError    the request id is in use
    │   ├── GrammarFailedError       the grammar of an answer gave up while it ran
    │   └── QueueFullError           too many requests wait; carries retry_after_seconds
    └── ServerError                  the caller cannot mend it
        ├── EngineStoppingError      the engine takes no new requests
        ├── EngineDeadError          the loop died; its cause is chained
        ├── RequestFailedError       this request failed while it ran
        ├── QueueTimeoutError        this request did not start in the time it was given
        ├── DeadlineExceededError    this request did not end in the time it was given
        ├── UnsupportedModelError    the model cannot run on paged attention
        ├── UnsupportedConfigError   a configuration field is not supported here; names it
        └── CacheTooSmallError       the memory holds too few blocks

Owned by no thread. The server maps each leaf to one HTTP answer.
"""


class EngineError(Exception):
    """Base of all errors raised by the engine."""


class ClientError(EngineError):
    """A request that its sender can correct."""


class ServerError(EngineError):
    """A condition that the sender of a request cannot correct."""


class InvalidRequestError(ClientError, ValueError):
    """A request argument has the wrong type or lies outside its range.

    Attributes:
        param: Name of the argument.
    """

    def __init__(self, message: str, *, param: str) -> None:
        """Store the text and the name of the argument it is about."""
        super().__init__(message)
        self.param = param


class PromptTooLongError(ClientError, ValueError):
    """The prompt, or the prompt plus its answer, exceeds what one request may hold.

    Attributes:
        num_prompt_tokens: Length of the prompt, in tokens.
        num_new_tokens: Answer tokens asked for, or None when the prompt alone is too long.
        max_model_tokens: Positions one request may use, in tokens.
    """

    def __init__(
        self, *, num_prompt_tokens: int, num_new_tokens: int | None, max_model_tokens: int
    ) -> None:
        """Build the text from the three numbers."""
        asked = "" if num_new_tokens is None else f" and {num_new_tokens} for the answer"
        super().__init__(
            f"This model's context is {max_model_tokens} tokens; "
            f"the request has {num_prompt_tokens} in the prompt{asked}."
        )
        self.num_prompt_tokens = num_prompt_tokens
        self.num_new_tokens = num_new_tokens
        self.max_model_tokens = max_model_tokens


class DuplicateRequestError(ClientError, ValueError):
    """A request with this id has not ended yet."""

    def __init__(self, request_id: str) -> None:
        """Name the id."""
        super().__init__(
            f"request id {request_id!r} is in use; ids must differ until a request ends"
        )
        self.request_id = request_id


class GrammarFailedError(ClientError, ValueError):
    """A grammar could not be followed to its end: it is too complex, or leaves no token."""


class QueueFullError(ClientError):
    """As many requests wait as max_queue_size allows.

    Attributes:
        retry_after_seconds: When a place is likely to be free, in seconds.
    """

    def __init__(self, *, num_waiting: int, retry_after_seconds: float) -> None:
        """Store the estimate made from the queue."""
        super().__init__(
            f"{num_waiting} requests are waiting and the queue takes no more; "
            f"try again in {retry_after_seconds:.0f} s"
        )
        self.num_waiting = num_waiting
        self.retry_after_seconds = retry_after_seconds


class EngineStoppingError(ServerError, RuntimeError):
    """The engine is stopping or stopped and accepts no request."""


class EngineDeadError(ServerError, RuntimeError):
    """The engine loop ended by an error; `__cause__` is that error."""

    @classmethod
    def of(cls, cause: BaseException) -> "EngineDeadError":
        """Return the error that tells of a death by this cause."""
        # What is no Exception mostly has no text, or one that says little without its name.
        error = cls(f"the engine died: {cause if isinstance(cause, Exception) else repr(cause)}")
        error.__cause__ = cause
        return error


class RequestFailedError(ServerError, RuntimeError):
    """One request failed while it ran; the others were not touched."""


class DeadlineExceededError(ServerError, TimeoutError):
    """A request did not end in the time it was given.

    Attributes:
        deadline_seconds: That time, from its submission on.
    """

    def __init__(self, deadline_seconds: float) -> None:
        """Name the time."""
        super().__init__(f"the request did not end within its {deadline_seconds:g} s")
        self.deadline_seconds = deadline_seconds


class QueueTimeoutError(ServerError, TimeoutError):
    """A request did not start in the time it was given.

    Attributes:
        queue_seconds: That time, from its submission on.
    """

    def __init__(self, queue_seconds: float) -> None:
        """Name the time."""
        super().__init__(f"the request did not start within its {queue_seconds:g} s")
        self.queue_seconds = queue_seconds


class UnsupportedModelError(ServerError, ValueError):
    """The model's attention cannot be run over a paged cache."""


class UnsupportedConfigError(ServerError, ValueError):
    """A configuration field is set to something this build or device does not do.

    Attributes:
        field: Name of the field.
    """

    def __init__(self, message: str, *, field: str) -> None:
        """Store the text and the name of the field it is about."""
        super().__init__(message)
        self.field = field


class CacheTooSmallError(ServerError, RuntimeError):
    """The memory left for the cache holds too few blocks to serve a request."""
