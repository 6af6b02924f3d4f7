"""The description of request bodies in /openapi.json.

Bodies are read by `server.request_body` and not by the framework, which would accept NaN and hold
the event loop; so their schemas are added here. Pure.
"""

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel

from api_schemas import ErrorResponse
from api_schemas.endpoints import REQUEST_BODIES

REF_TEMPLATE = "#/components/schemas/{model}"
_FRAMEWORK_ERRORS = ("HTTPValidationError", "ValidationError")


def describe_body(*models: type[BaseModel]) -> dict[str, Any]:
    """Return the part of a route's description that names its body, which is one of the models."""
    forms = [{"$ref": REF_TEMPLATE.format(model=model.__name__)} for model in models]
    schema: dict[str, Any] = forms[0] if len(forms) == 1 else {"anyOf": forms}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def install_openapi(app: FastAPI) -> None:
    """Let the application describe the bodies it reads by itself."""

    def describe() -> dict[str, Any]:
        if app.openapi_schema is None:
            document = get_openapi(title=app.title, version=app.version, routes=app.routes)
            app.openapi_schema = _with_errors(_with_bodies(document))
        return app.openapi_schema

    app.openapi = describe  # type: ignore[method-assign]


def _with_bodies(document: dict[str, Any]) -> dict[str, Any]:
    """Add the body schemas and what they refer to."""
    schemas = document.setdefault("components", {}).setdefault("schemas", {})
    models: list[type[BaseModel]] = [ErrorResponse, *(body for _, body in REQUEST_BODIES)]
    for body in models:
        schema = body.model_json_schema(ref_template=REF_TEMPLATE)
        schemas.update(schema.pop("$defs", {}))
        schemas[body.__name__] = schema
    return document


def _with_errors(document: dict[str, Any]) -> dict[str, Any]:
    """Put the 400 of this server in the place of the framework's 422, which it never sends."""
    schema = {"$ref": REF_TEMPLATE.format(model=ErrorResponse.__name__)}
    error = {"description": "Bad Request", "content": {"application/json": {"schema": schema}}}
    for path in document["paths"].values():
        for operation in path.values():
            if operation["responses"].pop("422", None) is not None:
                operation["responses"]["400"] = error
    for name in _FRAMEWORK_ERRORS:
        document["components"]["schemas"].pop(name, None)
    return document
