"""Finds calls in a text that comes in pieces, and gives back to the letter what is none.

    TEXT   blanks, and what may become a marker, are held; all else is passed on
      |  a marker, or a bracket where the text begins or behind a call
    BLOCK  the format finds the end of the call; then it is read
      |  read: the call's parts     |  not read: the block is text
      v                             v
    TEXT                          TEXT

Everything is decided character by character, so pieces may be cut anywhere. Event loop only.
"""

from dataclasses import dataclass

from server.message_parts import CallArguments, CallStart, Part, TextPart, join_parts
from server.tools.blocks import MAX_BLOCK_CHARACTERS, Block, BlockState
from server.tools.call_format import CallFormat
from server.tools.calls import Functions, escape_surrogates
from server.tools.forced_calls import ForcedCalls

MAX_HELD_BLANKS = 64


@dataclass(frozen=True, slots=True)
class CallRules:
    """What a request wants of the calls in its answer.

    Attributes:
        functions: Those that may be called, by name.
        is_single: Whether all after the first call is dropped.
        is_forced: Whether a grammar lays the calls out, so that their arguments can be passed on
            before they are complete.
    """

    functions: Functions
    is_single: bool = False
    is_forced: bool = False


class CallParser:
    """Cuts one answer into text and calls; a `MessageParser`."""

    def __init__(self, call_format: CallFormat, rules: CallRules) -> None:
        """Start before the first character."""
        self._format = call_format
        self._rules = rules
        self._num_calls = 0
        self._held = ""
        self._has_text = False  # content has been passed on
        self._may_be_bare = bool(call_format.bare)
        self._after_call = False
        self._block: Block | None = None
        self._num_read = 0
        self._read: list[str] = []  # the block as the format reads it
        self._seen: list[str] = []  # the opening and the block as the client would see them
        self._forced: ForcedCalls | None = None

    def text(self, text: str) -> list[Part]:
        """See `MessageParser.text`."""
        parts: list[Part] = []
        for character in text:
            parts += self._character(character)
        return join_parts(parts)

    def special(self, text: str) -> list[Part]:
        """See `MessageParser.special`."""
        if self._is_over():
            return []
        if self._block is not None:
            if text in self._format.openings:
                return [*self._give_up(), *self._open("")]
            return self._feed(text, visible="")
        if text in self._format.openings:
            return self._open_special()
        if self._after_call and text in self._format.closings and not self._held.strip():
            self._held = ""
        return []

    def finish(self) -> list[Part]:
        """See `MessageParser.finish`."""
        if self._is_over():
            return []
        if self._block is None:
            return join_parts(self._release(self._held, is_last=True))
        return join_parts(self._end_block())

    def _is_over(self) -> bool:
        return self._rules.is_single and self._after_call

    def _character(self, character: str) -> list[Part]:
        if self._is_over():
            return []
        if self._block is not None:
            return self._feed(character, visible=character)
        if self._bare_may_begin() and character in self._format.bare:
            return self._open_bare(character)
        self._held += character
        return self._search()

    def _bare_may_begin(self) -> bool:
        """Return whether a bracket begins a call: where the text begins, and behind a call."""
        return (self._may_be_bare or self._after_call) and not self._held.strip()

    def _search(self) -> list[Part]:
        """Look for a marker at the end of what is held; release what can't be part of one."""
        markers = self._format.openings
        if self._after_call:
            markers += self._format.closings
        for start in range(len(self._held) + 1):
            tail = self._held[start:].lstrip()
            if tail and tail in markers:
                before, seen = self._held[:start], self._held[start:]
                self._held = ""
                parts = self._release(before)
                return parts if tail in self._closing_only() else [*parts, *self._open(seen)]
            if any(marker.startswith(tail) for marker in markers):
                if not tail and len(self._held) - start > MAX_HELD_BLANKS:
                    start = len(self._held)
                before, self._held = self._held[:start], self._held[start:]
                return self._release(before)
        raise AssertionError("an empty tail begins every marker")

    def _closing_only(self) -> tuple[str, ...]:
        openings = self._format.openings
        return tuple(one for one in self._format.closings if one not in openings)

    def _release(self, text: str, *, is_last: bool = False) -> list[Part]:
        """Pass text on; blanks between calls, and after the last one, are none."""
        if not self._has_text and self._num_calls:
            text = text.lstrip()
        if is_last and self._num_calls and not text.strip():
            return []
        if not text:
            return []
        if text.strip():
            self._may_be_bare = False
            self._after_call = False
        self._has_text = True
        return [TextPart(text)]

    def _open_special(self) -> list[Part]:
        """Begin a block at a marker that the client would not see, with the blanks before it."""
        held, self._held = self._held, ""
        if held.strip():
            return [*self._release(held), *self._open("")]
        return self._open(held)

    def _open_bare(self, character: str) -> list[Part]:
        held, self._held = self._held, ""
        return [*self._open(held), *self._feed(character, visible=character)]

    def _open(self, seen: str) -> list[Part]:
        """Begin a block; `seen` is what the client would see of its opening."""
        self._block = self._format.block()
        self._num_read, self._read, self._seen = 0, [], [seen]
        self._forced = ForcedCalls(self._num_calls) if self._rules.is_forced else None
        return []

    def _feed(self, text: str, *, visible: str) -> list[Part]:
        assert self._block is not None
        state = self._block.feed(text)
        self._num_read += len(text)
        self._read.append(text)
        self._seen.append(visible)
        parts: list[Part] = []
        if self._forced is not None and visible:
            parts = self._forced.feed(visible)
        if state is BlockState.FAILED or self._num_read > MAX_BLOCK_CHARACTERS:
            return [*parts, *self._give_up(retry=visible)]
        if state is BlockState.DONE:
            return [*parts, *self._end_block()]
        return parts

    def _end_block(self) -> list[Part]:
        """Read the block, or what there is of it."""
        if self._forced is not None and self._forced.num_calls > self._num_calls:
            self._num_calls = self._forced.num_calls
            return self._close()
        calls = self._format.read("".join(self._read), self._rules.functions)
        if calls is None:
            return self._give_up()
        parts: list[Part] = []
        for call in calls[: 1 if self._rules.is_single else None]:
            parts.append(CallStart(self._num_calls, call.name))
            parts.append(CallArguments(self._num_calls, escape_surrogates(call.arguments)))
            self._num_calls += 1
        return [*parts, *self._close()]

    def _close(self) -> list[Part]:
        self._block = None
        self._after_call = True
        return []

    def _give_up(self, *, retry: str = "") -> list[Part]:
        """Take the block for text; its last character may begin something else."""
        seen, self._block = "".join(self._seen), None
        cut = seen.removesuffix(retry) if retry else seen
        self._may_be_bare = False
        parts = self._release(cut)
        self._held = ""
        if retry:
            self._held = retry
            parts += self._search()
        return parts
