"""Finding stop strings in text that arrives in pieces, and holding back no more than needed.

Each stop string is a Knuth-Morris-Pratt automaton: its state after a character is the length of
the longest tail of the text that begins the stop string, which is exactly what must be held back.
The match that ends first wins, so the pieces' borders change nothing. Pure; event loop only.
"""

from collections import deque
from collections.abc import Iterable, Sequence


class _Automaton:
    """One stop string and how much of it the text ends with."""

    __slots__ = ("failure", "length", "sees_hidden", "state", "text")

    def __init__(self, text: str, sees_hidden: bool) -> None:
        self.text = text
        self.length = len(text)
        self.sees_hidden = sees_hidden
        self.state = 0
        self.failure = _failure_function(text)

    def advance(self, character: str) -> bool:
        """Take one character; return whether the stop string ends with it."""
        state = self.state
        while state and self.text[state] != character:
            state = self.failure[state - 1]
        if self.text[state] == character:
            state += 1
        self.state = state
        return state == self.length


def _failure_function(text: str) -> list[int]:
    """Return for each prefix the length of its longest proper border."""
    failure = [0] * len(text)
    length = 0
    for position in range(1, len(text)):
        while length and text[position] != text[length]:
            length = failure[length - 1]
        if text[position] == text[length]:
            length += 1
        failure[position] = length
    return failure


class StopStrings:
    """Releases text up to the first stop string.

    A stop string that holds the text of a special token is looked for in the text with special
    tokens, where they are hidden; any other in the text that the client sees.

    Attributes:
        matched: The stop string that ended the text; None until then.
    """

    def __init__(
        self, stops: Sequence[str], *, special_texts: Iterable[str] = (), include_match: bool
    ) -> None:
        """Look for the given stop strings.

        Args:
            stops: Non-empty texts.
            special_texts: The texts of special tokens.
            include_match: Whether the released text keeps the match.
        """
        specials = [text for text in special_texts if text] if stops else []
        self._automata = [
            _Automaton(stop, any(special in stop for special in specials))
            for stop in dict.fromkeys(stops)
        ]
        hidden_lengths = [one.length for one in self._automata if one.sees_hidden]
        self.sees_hidden = bool(hidden_lengths)
        # Whether each of the last characters was visible, as far back as a match may reach.
        self._visible: deque[bool] = deque(maxlen=max(hidden_lengths, default=0))
        self._include_match = include_match
        self._held = ""
        self.matched: str | None = None

    def push(self, text: str, *, hidden: bool = False) -> str:
        """Take more text and return what can be released of it; nothing after a match.

        Args:
            text: The text that follows.
            hidden: Whether the client doesn't see it (a special token).
        """
        if self.matched is not None:
            return ""
        if not self._automata:
            return "" if hidden else text
        for position, character in enumerate(text):
            self._visible.append(not hidden)
            if found := self._advance(character, hidden):
                visible = self._held + ("" if hidden else text[: position + 1])
                return self._finish(found, visible)
        if not hidden:
            self._held += text
        num_held = max(map(self._num_visible, self._automata))
        cut = len(self._held) - num_held
        released, self._held = self._held[:cut], self._held[cut:]
        return released

    def flush(self) -> str:
        """Return the text held back; called when no more comes."""
        released, self._held = self._held, ""
        return released

    def _advance(self, character: str, hidden: bool) -> _Automaton | None:
        """Move all automata; return the longest that matches here."""
        found = None
        for automaton in self._automata:
            if hidden and not automaton.sees_hidden:
                continue
            if automaton.advance(character) and (not found or automaton.length > found.length):
                found = automaton
        return found

    def _num_visible(self, automaton: _Automaton) -> int:
        """Return how many visible characters the automaton's current prefix covers."""
        if not automaton.sees_hidden:
            return automaton.state
        flags = list(self._visible)
        return sum(flags[len(flags) - automaton.state :])

    def _finish(self, automaton: _Automaton, visible: str) -> str:
        """Cut the visible text before the match, or after it."""
        self.matched = automaton.text
        self._held = ""
        before = visible[: len(visible) - self._num_visible(automaton)]
        return before + automaton.text if self._include_match else before
