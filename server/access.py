"""Which paths need which key, in one table, and the layer that holds it.

Everything that the table does not name needs a client's key: a route that somebody forgets here is
closed, not open. Only `scope["path"]` is looked at, after `PathRules` has brought it into the one
form that routing sees, too; URLs rebuilt from a Host header are what such checks are tricked with.
Without any key configured, everything but /admin is open.

Pure ASGI; event loop only.
"""

from enum import Enum

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from server.error_handlers import describe_error
from server.keys import Key, KeyRing, find_key
from server.request_errors import AuthenticationError, ForbiddenError
from server.request_record import current_record


class Access(Enum):
    """Who may call a path."""

    PUBLIC = "public"
    CLIENT = "client"
    ADMIN = "admin"


# What a load balancer asks, which has no key. Each is there under /v1, too.
PUBLIC_PATHS = frozenset({"/health", "/live", "/ping", "/ready"})
METRICS_PATH = "/metrics"
ADMIN_PREFIX = "/admin"


def access_of(path: str, *, public_metrics: bool = False) -> Access:
    """Return who may call a path.

    Args:
        path: Normalised, as routing sees it.
        public_metrics: Whether /metrics is open.
    """
    if path == ADMIN_PREFIX or path.startswith(f"{ADMIN_PREFIX}/"):
        return Access.ADMIN
    if path.removeprefix("/v1") in PUBLIC_PATHS:
        return Access.PUBLIC
    if path == METRICS_PATH and public_metrics:
        return Access.PUBLIC
    return Access.CLIENT


class Authentication:
    """Lets pass who has the key that a path needs, and notes whose it was."""

    def __init__(self, app: ASGIApp, *, keys: KeyRing, public_metrics: bool) -> None:
        """Wrap an application."""
        self._app = app
        self._keys = keys
        self._public_metrics = public_metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer 401 or 403 in place of the application, or note the key and go on."""
        if scope["type"] == "http":
            try:
                key = self._check(scope)
            except (AuthenticationError, ForbiddenError) as error:
                await describe_error(error).response()(scope, receive, send)
                return
            scope.setdefault("state", {})["key"] = key
            record = current_record()
            if record is not None:
                record.key = key
        elif scope["type"] != "lifespan":
            return  # nothing else is served here
        await self._app(scope, receive, send)

    def _check(self, scope: Scope) -> Key | None:
        """Return the key of a request, None if it needs none.

        Raises:
            AuthenticationError: There is no key, or it is wrong.
            ForbiddenError: The path is closed to this key.
        """
        access = access_of(scope["path"], public_metrics=self._public_metrics)
        if access is Access.PUBLIC:
            return None
        presented = presented_key(Headers(scope=scope))
        client = find_key(self._keys.clients, presented)
        admin = find_key(self._keys.admins, presented)
        if access is Access.ADMIN:
            if admin is not None:
                return admin
            if client is not None or not self._keys.admins:
                raise ForbiddenError
            raise AuthenticationError
        if self._keys.clients and admin is None and client is None:
            raise AuthenticationError
        return client or admin


def presented_key(headers: Headers) -> bytes:
    """Return what a request presents as its key: a bearer token, or x-api-key."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and token:
        return token.strip().encode()
    return headers.get("x-api-key", "").strip().encode()


def key_of(scope: Scope) -> Key | None:
    """Return the key that a request came with."""
    key = scope.get("state", {}).get("key")
    return key if isinstance(key, Key) else None
