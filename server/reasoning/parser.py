"""Cuts the reasoning off the beginning of an answer; the rest goes to another parser.

Reasoning stands first or nowhere: a marker further on is text. Blanks around the markers belong to
neither side. Event loop only.
"""

import re
from enum import Enum

from server.message_parts import MessageParser, Part, ReasoningPart
from server.reasoning.markers import Opening, ReasoningMarkers


class _State(Enum):
    BEFORE = "nothing but blanks and the beginning of a marker has come"
    INSIDE = "reasoning"
    AFTER = "blanks between the closing marker and the content"
    CONTENT = "all that comes is content"


class ReasoningParser:
    """Splits one answer.

    Attributes:
        num_reasoning_characters: Visible characters up to the end of the closing marker; of all
            the text so far while it has not come. 0 where there is no reasoning.
    """

    def __init__(
        self, markers: ReasoningMarkers, opening: Opening, rest: MessageParser, *, shown: bool
    ) -> None:
        """Start before the first character.

        Args:
            markers: The family's.
            opening: What the prompt says.
            rest: Gets the content.
            shown: Whether the reasoning is part of the answer.
        """
        self._markers = markers
        self._rest = rest
        self._shown = shown
        self._state = {
            Opening.INSIDE: _State.INSIDE,
            Opening.POSSIBLE: _State.BEFORE,
            Opening.CLOSED: _State.CONTENT,
        }[opening]
        self._plain = re.compile(f"[^{re.escape(markers.closing[0])}]+")
        self._blanks: list[str] = []  # that a marker may follow
        self._held = ""  # the beginning of a marker
        self._has_begun = False
        self._num_characters = 0
        self.num_reasoning_characters = 0

    def text(self, text: str) -> list[Part]:
        """See `MessageParser.text`."""
        if self._is_over():
            return self._rest.text(text)
        parts: list[Part] = []
        place = 0
        while place < len(text):
            run = self._run(text, place)
            self._num_characters += len(run) or 1
            parts += self._inside(run) if run else self._character(text[place])
            place += len(run) or 1
            if self._is_over():
                return parts + self._rest.text(text[place:])
        return parts

    def special(self, text: str) -> list[Part]:
        """See `MessageParser.special`."""
        if self._state is _State.BEFORE and text == self._markers.opening:
            self._begin()
            return []
        if self._state is _State.INSIDE and text == self._markers.closing:
            self._state = _State.AFTER
            self._count()
            return self._reasoning(self._take().rstrip())
        if self._state is _State.INSIDE:
            return []
        return [*self._leave(), *self._rest.special(text)]

    def finish(self) -> list[Part]:
        """See `MessageParser.finish`."""
        if self._state is _State.INSIDE:
            self._count()
            return [*self._reasoning(self._take().rstrip()), *self._rest.finish()]
        return [*self._leave(), *self._rest.finish()]

    @property
    def is_complete(self) -> bool:
        """See `MessageParser.is_complete`."""
        return self._rest.is_complete

    def _is_over(self) -> bool:
        return self._state is _State.CONTENT

    def _character(self, character: str) -> list[Part]:
        if self._state is _State.BEFORE:
            return self._before(character)
        if self._state is _State.INSIDE:
            return self._inside(character)
        if character.isspace():
            return []
        self._state = _State.CONTENT
        return self._rest.text(character)

    def _run(self, text: str, place: int) -> str:
        """Return the characters from a place on that are reasoning, or blanks in it."""
        if self._state is not _State.INSIDE or self._held:
            return ""
        plain = self._plain.match(text, place)
        return "" if plain is None else plain[0]

    def _before(self, character: str) -> list[Part]:
        if character.isspace() and not self._held:
            self._blanks.append(character)
            return []
        self._held += character
        if self._held == self._markers.opening:
            self._begin()
            return []
        return [] if self._markers.opening.startswith(self._held) else self._leave()

    def _begin(self) -> None:
        """Take what follows for reasoning."""
        self._state = _State.INSIDE
        self._take()
        self._count()

    def _inside(self, text: str) -> list[Part]:
        """Hold what may be the closing marker, and the blanks before it."""
        self._count()
        text, closing = self._held + text, self._markers.closing
        if text == closing:
            self._state = _State.AFTER
            self._take()
            return []
        keep = 0
        if closing[0] in text:
            keep = next(n for n in range(len(closing), -1, -1) if text.endswith(closing[:n]))
        text, self._held = text[: len(text) - keep], text[len(text) - keep :]
        said = text.rstrip()
        released = "".join([*self._blanks, said]) if said else ""
        if said:
            self._blanks.clear()
        self._blanks.append(text[len(said) :])
        return self._reasoning(released)

    def _take(self) -> str:
        """Empty what is held."""
        held = "".join([*self._blanks, self._held])
        self._blanks.clear()
        self._held = ""
        return held

    def _reasoning(self, text: str) -> list[Part]:
        if not self._has_begun:
            text = text.lstrip()
        self._has_begun = self._has_begun or bool(text)
        return [ReasoningPart(text)] if text and self._shown else []

    def _leave(self) -> list[Part]:
        """Go over to content, with what was held back."""
        held = self._take()
        self._state = _State.CONTENT
        return self._rest.text(held)

    def _count(self) -> None:
        self.num_reasoning_characters = max(self._num_characters, 1)
