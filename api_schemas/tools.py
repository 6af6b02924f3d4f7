"""Functions that a model may call: what a request offers, and what it wants done with them.

Source: https://platform.openai.com/docs/api-reference/chat/create, `tools` and `tool_choice`; the
older `functions` and `function_call` come down to the same. Data only.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any, Literal, Self

from pydantic import Field, PlainValidator, WithJsonSchema, model_validator

from api_schemas.base import Boolean, RequestModel, WireModel, field_error

MAX_TOOLS = 512


class FunctionDefinition(RequestModel):
    """A function that the model may call.

    Attributes:
        parameters: JSON schema of its arguments; left out, it takes none.
        strict: Whether a forced call must follow every keyword of the schema.
    """

    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.\-]{1,64}$")]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: Boolean = False


class Tool(RequestModel):
    """A tool; functions are the only kind."""

    type: Literal["function"]
    function: FunctionDefinition


class ToolMode(Enum):
    """What the model is to do about tools."""

    NONE = "none"
    AUTO = "auto"
    REQUIRED = "required"
    NAMED = "named"


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """The field `tool_choice`, in whatever form it came.

    Attributes:
        mode: What to do.
        names: The only functions that may be called; None allows all.
    """

    mode: ToolMode
    names: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class ToolUse:
    """What a request's tools come down to.

    Attributes:
        functions: Those that may be called, in the order of the request.
        mode: What the model is to do; NONE if there are none.
        is_single: Whether at most one call is wanted.
        is_legacy: Whether the answer has the older form of a call.
    """

    functions: tuple[FunctionDefinition, ...] = ()
    mode: ToolMode = ToolMode.NONE
    is_single: bool = False
    is_legacy: bool = False

    @property
    def is_forced(self) -> bool:
        """Whether the answer must be a call."""
        return self.mode in (ToolMode.REQUIRED, ToolMode.NAMED)


def _parse_tool_choice(value: Any) -> ToolChoice:
    """Bring the forms of `tool_choice` into one."""
    if isinstance(value, str) and value in ("none", "auto", "required"):
        return ToolChoice(ToolMode(value))
    if isinstance(value, dict) and value.get("type") == "function":
        return ToolChoice(ToolMode.NAMED, (_function_name(value, "tool_choice.function.name"),))
    if isinstance(value, dict) and value.get("type") == "allowed_tools":
        return _parse_allowed_tools(value.get("allowed_tools", value))
    message = 'tool_choice is "none", "auto", "required", a function or allowed_tools.'
    raise field_error("tool_choice", message)


def _parse_allowed_tools(value: Any) -> ToolChoice:
    """Read which functions may be called, and whether one must be."""
    param = "tool_choice.allowed_tools"
    if not isinstance(value, dict) or value.get("mode") not in ("auto", "required"):
        raise field_error(f"{param}.mode", f'{param}.mode is "auto" or "required".')
    tools = value.get("tools")
    if not isinstance(tools, list) or not tools:
        raise field_error(f"{param}.tools", f"{param}.tools lists functions.")
    if len(tools) > MAX_TOOLS:
        raise field_error(f"{param}.tools", f"{param}.tools has at most {MAX_TOOLS} entries.")
    names = tuple(_function_name(tool, f"{param}.tools") for tool in tools)
    return ToolChoice(ToolMode(value["mode"]), names)


def _function_name(value: Any, param: str) -> str:
    """Return the name in a reference to a function, in either of its two forms."""
    holder = value.get("function", value) if isinstance(value, dict) else None
    name = holder.get("name") if isinstance(holder, dict) else None
    if not isinstance(name, str):
        raise field_error(param, f"{param} names no function.")
    return name


def _parse_function_call(value: Any) -> ToolChoice:
    """Read the older form of `tool_choice`."""
    if isinstance(value, str) and value in ("none", "auto"):
        return ToolChoice(ToolMode(value))
    return ToolChoice(ToolMode.NAMED, (_function_name(value, "function_call"),))


class ToolFields(RequestModel):
    """The fields of a chat request that are about tools."""

    tools: Annotated[list[Tool], Field(max_length=MAX_TOOLS)] = Field(default_factory=list)
    tool_choice: Annotated[
        ToolChoice | None,
        PlainValidator(_parse_tool_choice),
        WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "object"}]}),
    ] = None
    parallel_tool_calls: Boolean = True
    functions: Annotated[list[FunctionDefinition], Field(max_length=MAX_TOOLS)] = Field(
        default_factory=list
    )
    function_call: Annotated[
        ToolChoice | None,
        PlainValidator(_parse_function_call),
        WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "object"}]}),
    ] = None

    @model_validator(mode="after")
    def _check_tools(self) -> Self:
        """Refuse choices between functions that are not there, and names that are there twice."""
        if self.tools and self.functions:
            raise field_error("functions", "tools and functions exclude each other.")
        names = [function.name for function in self._functions()]
        field = "functions" if self.functions else "tools"
        if len(set(names)) < len(names):
            raise field_error(field, f"{field} has two functions of one name.")
        for param in ("tool_choice", "function_call"):
            choice = getattr(self, param)
            if choice is None or choice.mode is ToolMode.NONE:
                continue
            is_lenient = choice.mode is ToolMode.AUTO and "tools" in self.model_fields_set
            if not names and not is_lenient:
                raise field_error(param, f"{param} needs functions to choose from.")
            for name in choice.names or ():
                if name not in names:
                    message = f"{param} names {name[:64]!r}, which is none of the functions."
                    raise field_error(param, message)
        return self

    def tool_use(self) -> ToolUse:
        """Return what the tools and the choice come down to."""
        choice = self.function_call if self.functions else self.tool_choice
        choice = choice or ToolChoice(ToolMode.AUTO)
        functions = tuple(
            function
            for function in self._functions()
            if choice.names is None or function.name in choice.names
        )
        if not functions or choice.mode is ToolMode.NONE:
            return ToolUse()
        is_legacy = bool(self.functions)
        is_single = choice.mode is ToolMode.NAMED or is_legacy or not self.parallel_tool_calls
        return ToolUse(functions, choice.mode, is_single, is_legacy)

    def _functions(self) -> list[FunctionDefinition]:
        return self.functions or [tool.function for tool in self.tools]


class CalledFunction(WireModel):
    """A call's function, or a piece of it.

    Attributes:
        arguments: A JSON text.
    """

    name: str | None = None
    arguments: str


class MadeToolCall(WireModel):
    """A call in an answer.

    Attributes:
        index: Its number; in chunks only.
        id: Names the call; in chunks with its first piece only.
    """

    index: int | None = None
    id: str | None = None
    type: Literal["function"] | None = None
    function: CalledFunction
