"""Whose a thing is that a client leaves here: the name of the key that it came with. Pure."""

from starlette.requests import Request

from server.access import key_of


def owner_of(request: Request) -> str:
    """Return the owner of what a request makes; without keys everything is everybody's."""
    key = key_of(request.scope)
    return "" if key is None else key.name


def owned_label(request: Request, label: str) -> str:
    """Return a label that a client has chosen, apart from equal ones of other keys."""
    return f"{owner_of(request)}\0{label}"
