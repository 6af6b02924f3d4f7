"""What every wire model shares: its pydantic configuration and the number types of JSON.

`WireModel` is what the server sends, `RequestModel` what it reads. A request treats an explicit
null as an absent field, keeps the names of fields it doesn't know so that they can be reported,
and refuses by name what `api_schemas.support` lists as refused. Never does any input or output.
"""

from collections.abc import Iterable
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, Strict, model_validator
from pydantic_core import PydanticCustomError

from api_schemas.field_support import FieldSupport, Handling

# JSON numbers and booleans are not converted into each other: `true` is no number, "1" neither.
Integer = Annotated[int, Strict()]
Number = Annotated[float, Strict(), Field(allow_inf_nan=False)]
Boolean = Annotated[bool, Strict()]
TokenId = Annotated[int, Strict(), Field(ge=0, lt=2**31)]

MAX_METADATA = 16
MAX_METADATA_KEY = 64
MAX_METADATA_VALUE = 512


def _check_metadata(value: dict[str, str]) -> dict[str, str]:
    """Refuse more, or longer, pairs than the API keeps."""
    problem = ""
    if len(value) > MAX_METADATA:
        problem = f"has at most {MAX_METADATA} keys"
    elif any(len(key) > MAX_METADATA_KEY for key in value):
        problem = f"has keys of at most {MAX_METADATA_KEY} characters"
    elif any(len(text) > MAX_METADATA_VALUE for text in value.values()):
        problem = f"has values of at most {MAX_METADATA_VALUE} characters"
    if problem:
        raise PydanticCustomError("metadata", "metadata {problem}", {"problem": problem})
    return value


Metadata = Annotated[dict[str, str], AfterValidator(_check_metadata)]


class WireModel(BaseModel):
    """A JSON object that the server sends or reads."""

    model_config = ConfigDict(extra="ignore", protected_namespaces=(), frozen=True)


class RequestModel(BaseModel):
    """A JSON object that a client sends; null means absent and unknown names are kept aside."""

    model_config = ConfigDict(extra="allow", protected_namespaces=(), frozen=True)

    support: ClassVar[tuple[FieldSupport, ...]] = ()

    @model_validator(mode="before")
    @classmethod
    def _drop_nulls_and_refuse(cls, data: Any) -> Any:
        """Remove null fields and refuse the known ones that are not implemented."""
        if not isinstance(data, dict):
            return data
        present = {name: value for name, value in data.items() if value is not None}
        for entry in cls.support:
            if entry.name in present:
                _check_supported(entry, present)
        return present

    def ignored_names(self) -> list[str]:
        """Return the names of the given fields, of objects in it too, that are not known."""
        names = sorted(self.model_extra or ())
        for name in type(self).model_fields:
            value = getattr(self, name)
            if isinstance(value, RequestModel):
                names += [f"{name}.{inner}" for inner in value.ignored_names()]
        return names


def _check_supported(entry: FieldSupport, present: dict[str, Any]) -> None:
    """Raise if a refused field has a value that would change the answer; else forget it."""
    if entry.handling is not Handling.REFUSED:
        return
    if not _is_neutral(present[entry.name], entry.neutral):
        raise field_error(entry.name, f"{entry.name} is not supported by this server.{entry.hint}")
    del present[entry.name]


def _is_neutral(value: Any, neutral: Iterable[Any]) -> bool:
    """Return whether a value equals one that asks for nothing; false is not 0 here."""
    return any(
        value == candidate and isinstance(value, bool) == isinstance(candidate, bool)
        for candidate in neutral
    )


def field_error(param: str, message: str) -> PydanticCustomError:
    """Make a validation error about one field, raised from a check of a whole object.

    Args:
        param: The field's path, as the client knows it.
        message: What is wrong and what to do.
    """
    return PydanticCustomError("request", "{message}", {"param": param, "message": message})
