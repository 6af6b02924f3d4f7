"""Finds calls in a text that comes in pieces, and gives back to the letter what is none.

    TEXT   blanks, and what may become a marker, are held; all else is passed on
      |  a marker, or a bracket where the text begins or behind a call
    BLOCK  held until the format tells of a call, whose arguments are passed on as they come
      |  the call ends    |  it is none, or breaks off: what belongs to no call that was told of
      v                   v  is text, from the first wrong character on where one has begun
    TEXT                TEXT

Everything is decided character by character, so pieces may be cut anywhere. Event loop only.
"""

import re
from dataclasses import dataclass

from server.message_parts import CallArguments, CallStart, Part, TextPart, join_parts
from server.tools.blocks import FAILED, Block, BlockState, Step
from server.tools.call_format import CallFormat
from server.tools.calls import Functions, escape_surrogates

MAX_HELD_BLANKS = 64
MAX_HELD_CHARACTERS = 1_000_000


@dataclass(frozen=True, slots=True)
class CallRules:
    """What a request wants of the calls in its answer.

    Attributes:
        functions: Those that may be called, by name.
        is_single: Whether all after the first call is dropped.
        is_forced: Whether the answer is calls and nothing else, so that a call which breaks off is
            no text.
    """

    functions: Functions
    is_single: bool = False
    is_forced: bool = False


def _without(*markers: str) -> re.Pattern[str]:
    """Return what matches a text in which none of these begins."""
    return re.compile(f"[^{re.escape(''.join(marker[0] for marker in markers))}]+")


class CallNumbers:
    """Makes parts of the steps of blocks, the calls of an answer numbered.

    Attributes:
        num_calls: Calls that have begun.
    """

    def __init__(self, *, is_single: bool) -> None:
        """Start before the first call; see `CallRules.is_single`."""
        self._is_single = is_single
        self.num_calls = 0

    def parts(self, step: Step) -> list[Part]:
        """Return what a step adds to the answer."""
        if not step.calls:
            return self.more(step.arguments) if step.arguments else []
        parts: list[Part] = []
        for call in step.calls[: 1 if self._is_single else None]:
            parts.append(CallStart(self.num_calls, call.name))
            parts.append(CallArguments(self.num_calls, escape_surrogates(call.arguments)))
            self.num_calls += 1
        return parts

    def more(self, arguments: str) -> list[Part]:
        """Return what more arguments of the last call add."""
        return [CallArguments(self.num_calls - 1, arguments)]

    def is_over(self, state: BlockState) -> bool:
        """Return whether nothing after a step counts."""
        return self._is_single and self.num_calls > 0 and state is not BlockState.CALL


class CallParser:
    """Cuts one answer into text and calls; a `MessageParser`."""

    def __init__(self, call_format: CallFormat, rules: CallRules) -> None:
        """Start before the first character."""
        self._format = call_format
        # What begins no marker; where a call may begin without one, or has just ended, other things
        # mean something, too.
        self._plain = _without(*call_format.openings)
        self._bland = _without(*call_format.openings, *call_format.closings, *call_format.bare)
        self._functions = rules.functions
        self._numbers = CallNumbers(is_single=rules.is_single)
        self._is_forced = rules.is_forced
        self._is_over = False
        self._held = ""
        self._has_text = False  # content has been passed on
        self._may_be_bare = bool(call_format.bare)
        self._after_call = False
        self._block: Block | None = None
        self._seen: list[str] = []  # what the client would see of the block, while it is held
        self._num_seen = 0  # characters that the block has taken since, hidden ones too

    def text(self, text: str) -> list[Part]:
        """See `MessageParser.text`."""
        parts: list[Part] = []
        place = 0
        while place < len(text):
            if self._block is not None:
                run = self._block.run(text, place)
                parts += self._numbers.more(run) if run else self._character(text[place])
            else:
                run = self._run(text, place)
                parts += self._pass_on(run) if run else self._character(text[place])
            place += len(run) or 1
        return join_parts(parts)

    def special(self, text: str) -> list[Part]:
        """See `MessageParser.special`."""
        if self._is_over:
            return []
        if self._block is not None:
            if text not in self._format.openings:
                return self._feed(text, visible="")
            return [*self._take(FAILED, visible=""), *self._open("")]
        if text in self._format.openings:
            return self._open_special()
        if self._after_call and text in self._format.closings and not self._held.strip():
            self._held = ""
        return []

    def finish(self) -> list[Part]:
        """See `MessageParser.finish`."""
        if self._is_over:
            return []
        parts: list[Part] = []
        if self._block is not None:
            step = self._block.finish()
            parts = self._numbers.parts(step)
            self._held = "".join(self._seen) if step.state is BlockState.FAILED else ""
        rest = "" if self._is_forced else self._held
        return join_parts([*parts, *self._release(rest, is_last=True)])

    @property
    def is_complete(self) -> bool:
        """See `MessageParser.is_complete`; a forced answer ends by itself."""
        return self._is_over and not self._is_forced

    def _character(self, character: str) -> list[Part]:
        if self._is_over:
            return []
        if self._block is not None:
            return self._feed(character, visible=character)
        if self._bare_may_begin() and character in self._format.bare:
            return self._open_bare(character)
        self._held += character
        return self._search()

    def _run(self, text: str, place: int) -> str:
        """Return the characters from a place on that are part of no call and of no marker."""
        if self._is_over or self._held.strip():
            return ""
        wary = self._may_be_bare or self._after_call
        plain = (self._bland if wary else self._plain).match(text, place)
        return "" if plain is None else plain[0]

    def _pass_on(self, run: str) -> list[Part]:
        """Release a run of text but for the blanks at its end, which a call may follow."""
        run = self._held + run
        end = len(run.rstrip())
        end += (len(run) - end) // (MAX_HELD_BLANKS + 1) * (MAX_HELD_BLANKS + 1)
        self._held = run[end:]
        return self._release(run[:end])

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
        if not self._has_text and self._numbers.num_calls:
            text = text.lstrip()
        if is_last and self._numbers.num_calls and not text.strip():
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
        self._block = self._format.block(self._functions)
        self._seen = [seen]
        self._num_seen = 0
        return []

    def _feed(self, text: str, *, visible: str) -> list[Part]:
        assert self._block is not None
        step = self._block.feed(text)
        self._num_seen += len(text)
        if step.state is BlockState.HELD and self._num_seen > MAX_HELD_CHARACTERS:
            step = FAILED
        return self._take(step, visible=visible)

    def _take(self, step: Step, *, visible: str) -> list[Part]:
        """Do what a block says; `visible` is what the client would see of its last text."""
        parts = self._numbers.parts(step)
        self._is_over = self._numbers.is_over(step.state)
        if self._is_over:
            self._block = None
            return parts
        match step.state:
            case BlockState.HELD:
                self._seen.append(visible)
            case BlockState.FAILED:
                parts += self._give_up(retry=visible)
            case BlockState.CALL:
                self._seen, self._num_seen = [], 0
            case BlockState.DONE:
                self._block, self._after_call = None, True
        return parts

    def _give_up(self, *, retry: str) -> list[Part]:
        """Take what is held for text; the last character may begin something else."""
        seen, self._block = "".join(self._seen), None
        self._may_be_bare = self._after_call = False
        parts = self._release(seen)
        self._held = retry
        return [*parts, *self._search()] if retry else parts
