"""The body of every error, whatever its status.

Source: https://platform.openai.com/docs/guides/error-codes; all four keys are always there.
"""

from api_schemas.base import WireModel


class ErrorObject(WireModel):
    """What went wrong.

    Attributes:
        type: The family, such as invalid_request_error.
        param: Path of the field that is wrong, if it is one.
        code: A slug that programs can compare, if there is one.
    """

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorResponse(WireModel):
    """The body of an error, and the event that ends a broken stream."""

    error: ErrorObject
