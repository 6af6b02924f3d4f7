"""The Files API: /v1/files and what lies below it."""

from typing import Literal

from fastapi import APIRouter, Query, Request, Response
from starlette.datastructures import UploadFile
from starlette.responses import FileResponse

from api_schemas import DeletedFile, FileList, FileObject
from server.batches.service import BatchService
from server.owners import owner_of
from server.pages import take_page
from server.request_body import bound_body
from server.request_errors import RequestError
from server.state import state_of

router = APIRouter(tags=["batches"])

MULTIPART = "multipart/form-data"
# What the form holds beside the file.
FORM_BYTES = 64 * 1024
FORM_DESCRIPTION = {
    "requestBody": {
        "required": True,
        "content": {
            MULTIPART: {
                "schema": {
                    "type": "object",
                    "required": ["file", "purpose"],
                    "properties": {
                        "file": {"type": "string", "format": "binary"},
                        "purpose": {"type": "string", "enum": ["batch"]},
                    },
                }
            }
        },
    }
}


def batches_of(request: Request) -> BatchService:
    """Return the part of the server that keeps files.

    Raises:
        RequestError: This server keeps none.
    """
    batches = state_of(request).batches
    if batches is None:
        message = "This server keeps no files and runs no batches: batches.folder is not set."
        raise RequestError(message, code="unsupported_endpoint")
    return batches


@router.post("/files", openapi_extra=FORM_DESCRIPTION)
async def create_file(request: Request) -> FileObject:
    """Keep a file of requests for a batch."""
    batches = batches_of(request)
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != MULTIPART:
        message = f"A file is sent as {MULTIPART}."
        raise RequestError(message, code="unsupported_media_type", status=415)
    max_bytes = state_of(request).settings.batches.max_file_bytes
    bounded = bound_body(request, max_bytes + FORM_BYTES)
    async with bounded.form(max_files=1, max_fields=16, max_part_size=FORM_BYTES) as form:
        upload, purpose = form.get("file"), form.get("purpose")
        if not isinstance(upload, UploadFile):
            raise RequestError("file is missing.", param="file", code="missing_required_parameter")
        if purpose != "batch":
            message = "purpose is batch; this server keeps files for nothing else."
            raise RequestError(message, param="purpose")
        name = (upload.filename or "file")[:255]
        return await batches.files.add(owner_of(request), name, upload.file)


@router.get("/files")
async def list_files(
    request: Request,
    after: str | None = None,
    limit: int = Query(default=100, ge=1, le=10_000),
    order: Literal["asc", "desc"] = "desc",
    purpose: str | None = None,
) -> FileList:
    """List the files, the newest first, a page at a time."""
    files = await batches_of(request).files.list(owner_of(request))
    files = [file for file in files if purpose in (None, file.purpose)]
    page = take_page(files if order == "desc" else files[::-1], after=after, limit=limit)
    return FileList(
        data=page.entries, first_id=page.first_id, last_id=page.last_id, has_more=page.has_more
    )


@router.get("/files/{file_id}")
async def get_file(request: Request, file_id: str) -> FileObject:
    """Describe a file."""
    return await batches_of(request).files.get(owner_of(request), file_id)


@router.delete("/files/{file_id}")
async def delete_file(request: Request, file_id: str) -> DeletedFile:
    """Forget a file."""
    await batches_of(request).files.delete(owner_of(request), file_id)
    return DeletedFile(id=file_id)


@router.get("/files/{file_id}/content")
async def get_file_content(request: Request, file_id: str) -> Response:
    """Return a file as it is."""
    files = batches_of(request).files
    described = await files.get(owner_of(request), file_id)
    path = files.path_of(described.id)
    return FileResponse(path, media_type="application/octet-stream")
