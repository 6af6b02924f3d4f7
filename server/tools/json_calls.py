"""Calls that are JSON: an object, or a list of them. Pure.

    [{"name": "f", "arguments": {"a": 1}}, {"name": "g"}]
      <----------> <-------------------->  members of a call
      held         passed on as it comes

Of members that say the same twice the first counts. A list, an object or a text that calls nothing
is read to its end all the same, so that nothing in it is taken for a call.
"""

import json

from server.tools.blocks import CALL, DONE, FAILED, HELD, BlockState, ObjectBlock, Step
from server.tools.calls import Call, Functions, check_object
from server.tools.json_reader import BLANKS, JsonMark, JsonReader

_ARGUMENTS = ("arguments", "parameters")
_DECODER = json.JSONDecoder()


class JsonBlock:
    """Reads one value; a `Block`."""

    def __init__(self, brackets: str, functions: Functions) -> None:
        """Start before the blanks that may come first.

        Args:
            brackets: What the value may begin with.
            functions: What may be called.
        """
        self._functions = functions
        self._json = JsonReader(brackets)
        self._base = 1  # how deep the members of calls are; 2 in a list
        self._depth = 1  # how deep those of the call at hand are, inside of "function" too
        self._member: list[str] = []  # what has come of one
        self._name: str | None = None
        self._arguments: str | None = None
        self._value: ObjectBlock | None = None  # the arguments, while they are passed on
        self._is_told = False
        self._is_refused = False
        self._num_calls = 0

    def feed(self, text: str) -> Step:
        """See `Block.feed`."""
        if self._value is not None:
            return self._in_value(self._value, text)
        mark = self._json.feed(text) if len(text) == 1 else JsonMark.WRONG
        if mark is JsonMark.WRONG:
            return FAILED
        if self._is_refused:
            return self._step()
        if mark is JsonMark.OPENS:
            return self._opens(text)
        if mark is JsonMark.CLOSES:
            return self._closes(text)
        if self._json.depth < self._depth:  # between the calls of a list
            self._is_refused = mark is JsonMark.INSIDE and text not in BLANKS
        elif mark is JsonMark.COMMA and self._json.depth == self._depth:
            self._end_member()
        else:
            self._keep(text)
        return self._step()

    def run(self, text: str, place: int) -> str:
        """See `Block.run`."""
        return "" if self._value is None else self._value.run(text, place)

    def finish(self) -> Step:
        """See `Block.finish`."""
        return FAILED

    def _step(self) -> Step:
        if self._is_refused and self._json.is_whole:
            return FAILED
        return CALL if self._is_told else HELD

    def _keep(self, text: str) -> None:
        if not self._is_told:
            self._member.append(text)

    def _opens(self, text: str) -> Step:
        depth = self._json.depth
        if depth == 1 and text == "[":
            self._base = self._depth = 2
        elif depth == self._base:
            self._name = self._arguments = None
            self._is_refused = text == "["
        elif depth == self._depth + 1 and text == "{" and not self._is_told:
            return self._opens_member()
        else:
            self._keep(text)
        return self._step()

    def _opens_member(self) -> Step:
        """Begin an object that a member of the call is."""
        key, _ = _DECODER.raw_decode("".join(self._member).lstrip(BLANKS))
        if self._name is not None and self._arguments is None and key in _ARGUMENTS:
            self._member.clear()
            self._value = ObjectBlock(self._name, self._functions)
            return self._value.feed("{")
        if key == "function" and self._name is None:
            self._depth += 1
            self._member.clear()
        else:
            self._keep("{")
        return HELD

    def _in_value(self, value: ObjectBlock, text: str) -> Step:
        """Pass arguments on; what stands around them sees their brackets alone."""
        step = value.feed(text)
        if step.state is BlockState.DONE:
            self._value, self._is_told = None, True
            self._json.feed("}")
            return step._replace(state=BlockState.CALL)
        return step

    def _closes(self, text: str) -> Step:
        depth = self._json.depth
        if depth >= self._depth:
            self._keep(text)
            return self._step()
        if depth < self._base - 1:
            return DONE if self._num_calls else FAILED
        self._end_member()
        if self._depth > self._base:
            self._depth -= 1
        elif not self._is_refused:
            return self._end_call()
        return self._step()

    def _end_member(self) -> None:
        """Read a member; one of a call that was told of says nothing new."""
        text = "".join(self._member).strip(BLANKS)
        self._member.clear()
        if not text:
            return
        key, place = _DECODER.raw_decode(text)
        value = text[place:].lstrip(BLANKS).removeprefix(":").strip(BLANKS)
        if key == "name" and self._name is None:
            self._name = json.loads(value) if value.startswith('"') else None
            self._is_refused = self._name not in self._functions
        elif key in _ARGUMENTS and self._arguments is None:
            self._arguments = value

    def _end_call(self) -> Step:
        state = BlockState.DONE if self._json.is_whole else BlockState.CALL
        self._num_calls += 1
        if self._is_told:
            self._is_told = False
            return Step(state)
        try:
            return Step(state, (self._whole_call(),))
        except ValueError:
            self._is_refused = True
            return self._step()

    def _whole_call(self) -> Call:
        """Return a call whose arguments could not be passed on as they came."""
        if self._name is None:
            raise ValueError("it calls nothing")
        arguments = self._arguments or "{}"
        if arguments.startswith('"'):  # the text of an object, as the wire has it
            arguments = json.loads(arguments) or "{}"
        elif arguments == "null":
            arguments = "{}"
        return Call(self._name, check_object(arguments))
