"""What the prompt says about tools: in the template's own words, or in ours.

A template that renders functions, calls and results is left to it. One that doesn't (probed once)
gets them as text: functions in the system message, calls and results in messages of the roles that
every template has. Reads the tokenizer only, from any thread.
"""

import hashlib
import json
from collections.abc import Sequence
from typing import Any

from api_schemas import FunctionDefinition
from server.chat_messages import Message

INSTRUCTIONS = """\
You can call functions. Each line between <tools> and </tools> describes one:
<tools>
{functions}
</tools>
To call a function, write its name and its arguments as JSON between these tags, and nothing else:
<tool_call>
{{"name": "function name", "arguments": {{"argument name": "value"}}}}
</tool_call>
Results come back between <tool_response> and </tool_response>. \
If no function helps, answer in plain words."""

# Words that no template holds, so that their presence in a rendering tells something.
_NAME, _RESULT, _DESCRIPTION = "probe_7f3a", "outcome_9c1e", "purpose_4b8d"
_CALL_ID = "c4ll1d000"
_ID_CHARACTERS = 9


def to_template_tool(function: FunctionDefinition) -> dict[str, Any]:
    """Return a function as templates expect it."""
    described: dict[str, Any] = {
        "name": function.name,
        "description": function.description or "",
        "parameters": function.parameters or {"type": "object", "properties": {}},
    }
    return {"type": "function", "function": described}


class ToolPrompting:
    """Tells one model of tools.

    Attributes:
        renders_tools: Whether its template does.
        renders_history: Whether its template renders earlier calls and their results.
        short_ids: Whether ids of calls must have nine characters.
    """

    def __init__(self, tokenizer: Any) -> None:
        """Probe the tokenizer's template.

        Args:
            tokenizer: A `PreTrainedTokenizerBase`; one without a template renders nothing.
        """
        self._tokenizer = tokenizer
        self.short_ids = "[TOOL_CALLS]" in str(getattr(tokenizer, "chat_template", None))
        self.renders_history = self._renders_history({"a": "x"})
        self._takes_texts = self._renders_history('{"a": ')
        self.renders_tools = self.renders_history and self._renders_functions()

    def prepare(
        self, messages: Sequence[Message], functions: Sequence[FunctionDefinition]
    ) -> tuple[list[Message], list[dict[str, Any]] | None]:
        """Return the messages and the tools to hand to the template.

        Args:
            messages: From `to_template_messages`.
            functions: What the model may call.
        """
        if self.renders_tools or (self.renders_history and not functions):
            tools = [to_template_tool(function) for function in functions]
            return [self._adapted(message) for message in messages], tools or None
        written = _join_results([_in_words(message) for message in messages])
        if not functions:
            return written, None
        lines = [json.dumps(to_template_tool(one)["function"]) for one in functions]
        return _with_system(written, INSTRUCTIONS.format(functions="\n".join(lines))), None

    def _adapted(self, message: Message) -> Message:
        """Return a message as the template takes it."""
        if "tool_calls" in message and not self._takes_texts:
            message = _with_objects(message)
        return _with_short_ids(message) if self.short_ids else message

    def _renders_functions(self) -> bool:
        """Return whether the template tells of functions."""
        parameters = {"type": "object", "properties": {"a": {"type": "string"}}}
        function = FunctionDefinition(name=_NAME, description=_DESCRIPTION, parameters=parameters)
        text = self._render([{"role": "user", "content": "a"}], [to_template_tool(function)])
        return _NAME in text and _DESCRIPTION in text

    def _renders_history(self, arguments: dict[str, str] | str) -> bool:
        """Return whether the template tells of calls with such arguments, and of results."""
        function = {"name": _NAME, "arguments": arguments}
        call = {"id": _CALL_ID, "type": "function", "function": function}
        messages: list[Message] = [
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "content": _RESULT, "tool_call_id": _CALL_ID},
        ]
        text = self._render(messages, None)
        return _NAME in text and _RESULT in text

    def _render(self, messages: list[Message], tools: list[dict[str, Any]] | None) -> str:
        """Return a rendering; nothing where the template takes offence."""
        try:
            return str(
                self._tokenizer.apply_chat_template(
                    messages, tools=tools, tokenize=False, add_generation_prompt=True
                )
            )
        except Exception:  # noqa: BLE001 - a template may raise anything
            return ""


def _in_words(message: Message) -> Message:
    """Return a message without anything that only tool templates render."""
    if message["role"] in ("tool", "function"):
        return {"role": "tool", "content": _tagged("tool_response", message["content"])}
    calls = message.get("tool_calls")
    if not calls:
        return message
    lines = [message["content"]] if message["content"] else []
    lines += [_tagged("tool_call", json.dumps(call["function"])) for call in calls]
    rest = {name: value for name, value in message.items() if name != "tool_calls"}
    return {**rest, "content": "\n".join(lines)}


def _tagged(tag: str, text: str) -> str:
    return f"<{tag}>\n{text}\n</{tag}>"


def _join_results(messages: list[Message]) -> list[Message]:
    """Make user messages of results; neighbours become one, so that roles alternate."""
    joined: list[Message] = []
    open_results = False
    for message in messages:
        is_result = message["role"] == "tool"
        if is_result and open_results:
            text = f"{joined[-1]['content']}\n{message['content']}"
            joined[-1] = {"role": "user", "content": text}
        else:
            joined.append({"role": "user", "content": message["content"]} if is_result else message)
        open_results = is_result
    return joined


def _with_system(messages: list[Message], text: str) -> list[Message]:
    """Put a text into the system message, after what the client says there."""
    if messages and messages[0]["role"] in ("system", "developer"):
        own = messages[0]["content"]
        return [{**messages[0], "content": f"{own}\n\n{text}" if own else text}, *messages[1:]]
    return [{"role": "system", "content": text}, *messages]


def _with_objects(message: Message) -> Message:
    """Return a message whose calls have objects as arguments.

    A call that broke off has a text, which is no JSON. A template that goes through the arguments
    would refuse the whole conversation because of what the model wrote once.
    """
    calls = []
    for call in message["tool_calls"]:
        function = call["function"]
        if isinstance(function["arguments"], str):
            function = {**function, "arguments": {"arguments": function["arguments"]}}
        calls.append({**call, "function": function})
    return {**message, "tool_calls": calls}


def _with_short_ids(message: Message) -> Message:
    """Return a message whose call ids have the length that Mistral's templates insist on."""
    changed = dict(message)
    if "tool_call_id" in message:
        changed["tool_call_id"] = short_id(message["tool_call_id"])
    if "tool_calls" in message:
        changed["tool_calls"] = [
            {**call, "id": short_id(call.get("id") or "")} for call in message["tool_calls"]
        ]
    return changed


def short_id(call_id: str) -> str:
    """Return an id of nine letters and digits; equal ids stay equal."""
    if len(call_id) == _ID_CHARACTERS and call_id.isascii() and call_id.isalnum():
        return call_id
    return hashlib.sha256(call_id.encode()).hexdigest()[:_ID_CHARACTERS]
