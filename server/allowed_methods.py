"""Which methods a path takes, over all routes that it matches. Pure."""

from starlette.routing import Match
from starlette.types import Scope

# Tried on each path; every route takes one of them.
METHODS = ("DELETE", "GET", "PATCH", "POST", "PUT")


def allowed_methods(scope: Scope) -> tuple[str, ...]:
    """Return the methods of a path, those that the server adds included; () if there is no path.

    Args:
        scope: Of a request to an application; its path is normalised.
    """
    # What stands in for the application while the model is loaded has no routes.
    router = getattr(scope.get("app"), "router", None)
    found = {
        method
        for method in METHODS
        for route in getattr(router, "routes", ())
        if route.matches({**scope, "method": method})[0] is Match.FULL
    }
    if not found:
        return ()
    extra = {"HEAD", "OPTIONS"} if "GET" in found else {"OPTIONS"}
    return tuple(sorted(found | extra))
