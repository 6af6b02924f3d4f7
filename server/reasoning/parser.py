"""Cuts the reasoning off the beginning of an answer; the rest goes to another parser.

Reasoning stands first or nowhere: a marker further on is text. Blanks around the markers belong to
neither side. Event loop only.
"""

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
        self._held = ""
        self._has_begun = False
        self._num_characters = 0
        self.num_reasoning_characters = 0

    def text(self, text: str) -> list[Part]:
        """See `MessageParser.text`."""
        if self._is_over():
            return self._rest.text(text)
        parts: list[Part] = []
        for position, character in enumerate(text):
            self._num_characters += 1
            parts += self._character(character)
            if self._is_over():
                return parts + self._rest.text(text[position + 1 :])
        return parts

    def special(self, text: str) -> list[Part]:
        """See `MessageParser.special`."""
        if self._state is _State.BEFORE and text == self._markers.opening:
            self._state, self._held = _State.INSIDE, ""
            self._count()
            return []
        if self._state is _State.INSIDE and text == self._markers.closing:
            self._state = _State.AFTER
            held, self._held = self._held.rstrip(), ""
            self._count()
            return self._reasoning(held)
        if self._state is _State.INSIDE:
            return []
        return [*self._leave(), *self._rest.special(text)]

    def finish(self) -> list[Part]:
        """See `MessageParser.finish`."""
        if self._state is _State.INSIDE:
            held, self._held = self._held.rstrip(), ""
            self._count()
            return [*self._reasoning(held), *self._rest.finish()]
        return [*self._leave(), *self._rest.finish()]

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

    def _before(self, character: str) -> list[Part]:
        self._held += character
        begun = self._held.lstrip()
        if begun == self._markers.opening:
            self._state, self._held = _State.INSIDE, ""
            self._count()
            return []
        if self._markers.opening.startswith(begun):
            return []
        return self._leave()

    def _inside(self, character: str) -> list[Part]:
        """Hold what may be the closing marker, and the blanks before it."""
        self._count()
        self._held += character
        closing = self._markers.closing
        if self._held.endswith(closing):
            self._state = _State.AFTER
            held, self._held = self._held.removesuffix(closing).rstrip(), ""
            return self._reasoning(held)
        if not character.isspace() and character not in closing:
            released, self._held = self._held, ""
            return self._reasoning(released)
        keep = next(n for n in range(len(closing), -1, -1) if self._held.endswith(closing[:n]))
        cut = len(self._held[: len(self._held) - keep].rstrip())
        released, self._held = self._held[:cut], self._held[cut:]
        return self._reasoning(released)

    def _reasoning(self, text: str) -> list[Part]:
        if not self._has_begun:
            text = text.lstrip()
        self._has_begun = self._has_begun or bool(text)
        return [ReasoningPart(text)] if text and self._shown else []

    def _leave(self) -> list[Part]:
        """Go over to content, with what was held back."""
        held, self._held = ("" if self._state is _State.AFTER else self._held), ""
        self._state = _State.CONTENT
        return self._rest.text(held)

    def _count(self) -> None:
        self.num_reasoning_characters = max(self._num_characters, 1)
