"""Keeps the record of each request, and tells of it when it has ended.

The layer stands outside of authentication, so that refused requests are counted, too. Pure ASGI;
event loop only.
"""

import json
from collections.abc import Callable
from functools import partial
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from server.request_log import request_fields
from server.request_record import RequestRecord, set_current_record
from server.sse import DONE
from server.state import REQUEST_ID_SCOPE

TIMINGS_HEADER = "x-request-timings"
OTHER_PATH = "other"

Observer = Callable[[RequestRecord, str], None]


class RequestTracking:
    """Makes a record for each request; a client that wants to know gets its timings."""

    def __init__(self, app: ASGIApp, *, observers: list[Observer]) -> None:
        """Wrap an application.

        Args:
            app: It.
            observers: Told of each request that has ended, with the template of its path.
        """
        self._app = app
        self._observers = observers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on and look how it ends."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = scope.get(REQUEST_ID_SCOPE, "")
        headers = Headers(scope=scope)
        record = RequestRecord(request_id, scope["method"], scope["path"])
        record.traceparent = headers.get("traceparent", "")[:256]
        set_current_record(record)
        wants_timings = TIMINGS_HEADER in headers

        async def watch(message: Message) -> None:
            if message["type"] == "http.response.start":
                record.status = message["status"]
            await send(with_timings(message, record) if wants_timings else message)

        try:
            await self._app(scope, receive, watch)
        except BaseException:
            record.status = record.status or 500
            raise
        finally:
            record.when_over(partial(self._tell, record, template_of(scope)))
            record.release()

    def _tell(self, record: RequestRecord, path: str) -> None:
        for observe in self._observers:
            observe(record, path)


def template_of(scope: Scope) -> str:
    """Return the path of the route that answered; one name for all that no route answers."""
    return str(getattr(scope.get("route"), "path", OTHER_PATH))


def with_timings(message: Message, record: RequestRecord) -> Message:
    """Say how long a request took: in a header, and before the end of a stream in a comment."""
    if message["type"] == "http.response.start":
        MutableHeaders(scope=message)["Server-Timing"] = ", ".join(
            f"{name.removesuffix('_ms')};dur={value}" for name, value in _timings(record).items()
        )
    elif message.get("body") == DONE:
        comment = f": timings {json.dumps(_timings(record))}\n\n".encode()
        return {**message, "body": comment + DONE}
    return message


def _timings(record: RequestRecord) -> dict[str, Any]:
    fields = request_fields(record, "")
    return {
        name: fields[name] for name in fields if name.endswith("_ms") and fields[name] is not None
    }
