"""Putting the chunks of a stream together again, to what the whole answer would have been."""

import json
from typing import Any

Object = dict[str, Any]

# They name one answer, or tell of the state of the cache.
OF_ONE_ANSWER = ("id", "created", "object")


def join_stream(raw: bytes) -> Object:
    """Return the whole answer that a stream with `include_usage` spells out."""
    *frames, done, rest = raw.split(b"\n\n")
    assert (done, rest) == (b"data: [DONE]", b"")
    chunks = [json.loads(frame.removeprefix(b"data: ")) for frame in frames]
    assert not any("error" in chunk for chunk in chunks)
    *chunks, last = chunks
    assert last["choices"] == [], "the usage comes last"
    whole: Object = {"usage": last["usage"]}
    choices: dict[int, Object] = {}
    for chunk in chunks:
        assert [chunk[name] for name in ("id", "created")] == [last["id"], last["created"]]
        assert chunk["usage"] is None
        for name in chunk.keys() - {"choices", "usage", *OF_ONE_ANSWER}:
            assert whole.setdefault(name, chunk[name]) == chunk[name]
        for piece in chunk["choices"]:
            _add(choices.setdefault(piece["index"], {}), piece)
    whole["choices"] = [_closed(choices[index]) for index in sorted(choices)]
    return whole


def comparable(whole: Object) -> Object:
    """Return a whole answer without what two equal ones differ in."""
    whole = {name: value for name, value in whole.items() if name not in OF_ONE_ANSWER}
    whole["usage"]["prompt_tokens_details"].pop("cached_tokens")
    for choice in whole["choices"]:
        for call in choice.get("message", {}).get("tool_calls", ()):
            assert call.pop("id")
    return whole


def _add(choice: Object, piece: Object) -> None:
    """Add what a chunk says of a choice."""
    assert choice.get("finish_reason") is None, "a chunk came after the last one"
    for name, value in piece.items():
        if name == "delta":
            _add_delta(choice.setdefault("message", {}), value)
        elif name == "logprobs":
            choice[name] = _joined_logprobs(choice.get(name), value)
        elif name == "text":
            choice[name] = choice.get(name, "") + value
        elif name == "token_ids":
            choice[name] = choice.get(name, []) + value
        else:
            choice[name] = value


def _add_delta(message: Object, delta: Object) -> None:
    for name, value in delta.items():
        if name == "tool_calls":
            for part in value:
                calls = message.setdefault(name, [])
                if part["index"] == len(calls):
                    calls.append({"id": part["id"], "type": part["type"], "function": {}})
                _add_function(calls[part["index"]]["function"], part["function"])
        elif name == "function_call":
            _add_function(message.setdefault(name, {}), value)
        elif name == "role":
            message[name] = value
        else:
            message[name] = (message.get(name) or "") + value


def _add_function(function: Object, part: Object) -> None:
    for name, value in part.items():
        function[name] = function.get(name, "") + value


def _joined_logprobs(before: Object | None, piece: Object | None) -> Object | None:
    if before is None or piece is None:
        return before or piece
    return {
        name: value if before[name] is None else before[name] + value
        for name, value in piece.items()
    }


def _closed(choice: Object) -> Object:
    """Give a choice the keys that a whole answer has in any case."""
    assert choice["finish_reason"] is not None
    message = choice.get("message")
    if message is not None:
        if not message["content"] and {"tool_calls", "function_call"} & message.keys():
            message["content"] = None
        message["refusal"] = None
    return choice
