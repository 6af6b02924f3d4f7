"""Running requests as objects of their own. Data only."""

from typing import Literal

from api_schemas.base import WireModel


class CancelledRequests(WireModel):
    """What a cancellation by id has ended.

    Attributes:
        id: The id that was given.
        num_cancelled: How many requests it stood for.
    """

    id: str
    object: Literal["request.cancelled"] = "request.cancelled"
    num_cancelled: int
