"""The Batch API: /v1/batches and what lies below it."""

from fastapi import APIRouter, Query, Request

from api_schemas import Batch, BatchList, BatchRequest
from server.openapi import describe_body
from server.owners import owner_of
from server.pages import take_page
from server.request_body import read_body
from server.routes.files import batches_of
from server.state import state_of

router = APIRouter(tags=["batches"])


@router.post("/batches", openapi_extra=describe_body(BatchRequest))
async def create_batch(request: Request) -> Batch:
    """Begin to answer a file's requests when there is room."""
    batches = batches_of(request)
    max_bytes = state_of(request).settings.server.max_body_bytes
    body = await read_body(request, BatchRequest, max_bytes=max_bytes)
    return await batches.create(owner_of(request), body)


@router.get("/batches")
async def list_batches(
    request: Request, after: str | None = None, limit: int = Query(default=20, ge=1, le=100)
) -> BatchList:
    """List the batches, the newest first, a page at a time."""
    found = await batches_of(request).records.list(owner_of(request))
    page = take_page(found, after=after, limit=limit)
    return BatchList(
        data=page.entries, first_id=page.first_id, last_id=page.last_id, has_more=page.has_more
    )


@router.get("/batches/{batch_id}")
async def get_batch(request: Request, batch_id: str) -> Batch:
    """Return a batch as it is now."""
    return await batches_of(request).records.get(owner_of(request), batch_id)


@router.post("/batches/{batch_id}/cancel")
async def cancel_batch(request: Request, batch_id: str) -> Batch:
    """Stop a batch; what has been answered stays."""
    return await batches_of(request).cancel(owner_of(request), batch_id)
