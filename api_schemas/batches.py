"""Files and batches: many requests in a file, answered when there is room.

Source: https://platform.openai.com/docs/api-reference/batch and .../files. Data only.
"""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from api_schemas.base import Metadata, RequestModel, WireModel
from api_schemas.field_support import FieldSupport, refused, supported

BatchEndpoint = Literal[
    "/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses"
]
BatchStatus = Literal[
    "validating",
    "failed",
    "in_progress",
    "finalizing",
    "completed",
    "expired",
    "cancelling",
    "cancelled",
]
FilePurpose = Literal["batch", "batch_output"]


class FileObject(WireModel):
    """A file that is kept here."""

    id: str
    object: Literal["file"] = "file"
    bytes: int
    created_at: int
    expires_at: None = None
    filename: str
    purpose: FilePurpose
    status: Literal["processed"] = "processed"


class FileList(WireModel):
    """A page of files."""

    object: Literal["list"] = "list"
    data: list[FileObject]
    first_id: str | None
    last_id: str | None
    has_more: bool


class DeletedFile(WireModel):
    """What is left of a deleted file."""

    id: str
    object: Literal["file"] = "file"
    deleted: Literal[True] = True


class BatchRequest(RequestModel):
    """A request to answer a file's requests.

    Attributes:
        input_file_id: A file of JSON lines.
        endpoint: Where all of them go.
    """

    support: ClassVar[tuple[FieldSupport, ...]] = (
        *supported(
            input_file_id="JSON lines with custom_id, method, url and body",
            endpoint="/v1/chat/completions, /v1/completions, /v1/embeddings, /v1/responses",
            completion_window="24h; what is not answered by then expires",
            metadata="echoed",
        ),
        refused("output_expires_after", hint=" Files stay until they are deleted."),
    )

    input_file_id: Annotated[str, Field(max_length=128)]
    endpoint: BatchEndpoint
    completion_window: Literal["24h"]
    metadata: Metadata | None = None


class BatchError(WireModel):
    """What is wrong with a line of an input file."""

    code: str
    line: int | None
    message: str
    param: str | None


class BatchErrors(WireModel):
    """What is wrong with an input file."""

    object: Literal["list"] = "list"
    data: list[BatchError]


class RequestCounts(WireModel):
    """How far a batch has come."""

    total: int
    completed: int
    failed: int


class Batch(WireModel):
    """A batch, in whatever condition it is. Times are in seconds since 1970."""

    id: str
    object: Literal["batch"] = "batch"
    endpoint: BatchEndpoint
    errors: BatchErrors | None = None
    input_file_id: str
    completion_window: Literal["24h"] = "24h"
    status: BatchStatus
    output_file_id: str | None = None
    error_file_id: str | None = None
    created_at: int
    in_progress_at: int | None = None
    expires_at: int
    finalizing_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    cancelling_at: int | None = None
    cancelled_at: int | None = None
    request_counts: RequestCounts
    metadata: dict[str, str] | None = None


class BatchList(WireModel):
    """A page of batches."""

    object: Literal["list"] = "list"
    data: list[Batch]
    first_id: str | None
    last_id: str | None
    has_more: bool


class BatchReply(WireModel):
    """How a request of a batch was answered."""

    status_code: int
    request_id: str
    body: dict[str, Any]


class BatchLineError(WireModel):
    """Why a request of a batch was not answered."""

    code: str
    message: str


class BatchOutputLine(WireModel):
    """One line of an output or error file."""

    id: str
    custom_id: str
    response: BatchReply | None
    error: BatchLineError | None
