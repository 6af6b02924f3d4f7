"""The layers that surround whatever answers: the application, and its stand-in while it loads."""

from collections.abc import Sequence
from typing import Any

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

from server.access import Authentication
from server.messages.errors import MessageErrors
from server.middleware import ErrorBoundary, PathRules, RequestId
from server.settings import Settings
from server.tracking import Observer, RequestTracking
from server.turns import Turns

EXPOSED_HEADERS = ("Retry-After", "Server-Timing", "X-Ignored-Params", "X-Request-Id")

Layer = tuple[Any, dict[str, Any]]


def outer_layers(settings: Settings, observers: Sequence[Observer] = ()) -> list[Layer]:
    """Return the layers that every request passes, the innermost first, with their options.

    Args:
        settings: What the operator set.
        observers: Told of each request that has ended.
    """
    layers: list[Layer] = [
        (
            Authentication,
            {"keys": settings.keys, "public_metrics": settings.security.public_metrics},
        ),
        (RequestTracking, {"observers": list(observers)}),
        (PathRules, {}),
        (ErrorBoundary, {}),
        (MessageErrors, {}),
        (RequestId, {}),
    ]
    if settings.server.allow_origins:
        options = {
            "allow_origins": settings.server.allow_origins,
            "allow_methods": ("*",),
            "allow_headers": ("*",),
            "expose_headers": EXPOSED_HEADERS,
        }
        layers.append((CORSMiddleware, options))
    layers.append((Turns, {}))
    return layers


def surround(app: ASGIApp, settings: Settings) -> ASGIApp:
    """Return an application with these layers around it."""
    for layer, options in outer_layers(settings):
        app = layer(app, **options)
    return app
