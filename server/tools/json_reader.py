"""Reads JSON as it comes and says at each character whether it can still be JSON. Pure.

    {"a": [1, {}]}
    O     O  C O..     OPENS, CLOSES and COMMA are what gives a text its structure

Strict: what it takes is the beginning of a JSON text, and nothing else is.
"""

import re
from enum import Enum

# Deeper than any arguments that mean something, and not too deep for any client's parser.
MAX_DEPTH = 128
BLANKS = " \t\r\n"
_DIGITS = "0123456789"
_HEX = "0123456789abcdefABCDEF"
_ESCAPED = '"\\/bfnrt'
_LITERALS = {"t": "rue", "f": "alse", "n": "ull"}
# What may follow in a number, by the part of it that has come: a sign, the whole digits (none after
# a leading 0), the point, the digits behind it, the e, its sign, its digits.
_NUMBERS = {
    "-": {"0": "0", "123456789": "1"},
    "0": {".": ".", "eE": "e"},
    "1": {_DIGITS: "1", ".": ".", "eE": "e"},
    ".": {_DIGITS: "f"},
    "f": {_DIGITS: "f", "eE": "e"},
    "e": {"+-": "s", _DIGITS: "x"},
    "s": {_DIGITS: "x"},
    "x": {_DIGITS: "x"},
}
_WHOLE_NUMBERS = "01fx"
_PLAIN = re.compile(r'[^"\\\x00-\x1f]+')


class JsonMark(Enum):
    """What a character is."""

    OPENS = "it begins an object or a list"
    CLOSES = "it ends one"
    COMMA = "it stands between two members"
    INSIDE = "it is part of a key or a value, or stands around one"
    WRONG = "no JSON goes on like this"


class JsonReader:
    """Reads one object or list, and blanks around it.

    Attributes:
        depth: How many objects and lists are open.
        is_whole: Whether the last one is closed again.
    """

    def __init__(self, brackets: str = "{[") -> None:
        """Start before the first character.

        Args:
            brackets: What the text may begin with.
        """
        self._brackets = brackets
        self._open: list[str] = []  # what closes them
        self._next = self._begin
        self._behind_text = self._colon
        self._rest = ""  # of a literal
        self._number = ""
        self._num_hex = 0
        self.is_whole = False

    @property
    def depth(self) -> int:
        """See the class."""
        return len(self._open)

    def feed(self, character: str) -> JsonMark:
        """Take one character; none follows a wrong one."""
        return self._next(character)

    def run(self, text: str, place: int) -> str:
        """Return the characters from a place on that need not be fed: those inside of a text."""
        plain = _PLAIN.match(text, place) if self._next == self._text else None
        return "" if plain is None else plain[0]

    def _begin(self, character: str) -> JsonMark:
        if character in self._brackets:
            return self._value(character)
        return JsonMark.INSIDE if character in BLANKS else JsonMark.WRONG

    def _value(self, character: str) -> JsonMark:
        if character in BLANKS:
            return JsonMark.INSIDE
        if character in "{[":
            return self._opens(character)
        if character == '"':
            self._next, self._behind_text = self._text, self._behind_value
        elif character in _LITERALS:
            self._next, self._rest = self._literal, _LITERALS[character]
        elif character == "-" or character in _DIGITS:
            self._next = self._digits
            self._number = character if character in "-0" else "1"
        else:
            return JsonMark.WRONG
        return JsonMark.INSIDE

    def _opens(self, character: str) -> JsonMark:
        if len(self._open) == MAX_DEPTH:
            return JsonMark.WRONG
        self._open.append("}" if character == "{" else "]")
        self._next = self._first_key if character == "{" else self._first_item
        return JsonMark.OPENS

    def _first_key(self, character: str) -> JsonMark:
        return self._closes() if character == "}" else self._key(character)

    def _first_item(self, character: str) -> JsonMark:
        if character == "]":
            return self._closes()
        return self._value(character)

    def _key(self, character: str) -> JsonMark:
        if character == '"':
            self._next, self._behind_text = self._text, self._colon
            return JsonMark.INSIDE
        return JsonMark.INSIDE if character in BLANKS else JsonMark.WRONG

    def _colon(self, character: str) -> JsonMark:
        if character == ":":
            self._next = self._value
            return JsonMark.INSIDE
        return JsonMark.INSIDE if character in BLANKS else JsonMark.WRONG

    def _text(self, character: str) -> JsonMark:
        if character == '"':
            self._next = self._behind_text
        elif character == "\\":
            self._next = self._escape
        elif character < " ":
            return JsonMark.WRONG
        return JsonMark.INSIDE

    def _escape(self, character: str) -> JsonMark:
        if character == "u":
            self._next, self._num_hex = self._hex, 4
            return JsonMark.INSIDE
        self._next = self._text
        return JsonMark.INSIDE if character in _ESCAPED else JsonMark.WRONG

    def _hex(self, character: str) -> JsonMark:
        self._num_hex -= 1
        if not self._num_hex:
            self._next = self._text
        return JsonMark.INSIDE if character in _HEX else JsonMark.WRONG

    def _literal(self, character: str) -> JsonMark:
        if character != self._rest[0]:
            return JsonMark.WRONG
        self._rest = self._rest[1:]
        if not self._rest:
            self._next = self._behind_value
        return JsonMark.INSIDE

    def _digits(self, character: str) -> JsonMark:
        for characters, part in _NUMBERS[self._number].items():
            if character in characters:
                self._number = part
                return JsonMark.INSIDE
        return self._behind_value(character) if self._number in _WHOLE_NUMBERS else JsonMark.WRONG

    def _behind_value(self, character: str) -> JsonMark:
        if character == ",":
            self._next = self._key if self._open[-1] == "}" else self._value
            return JsonMark.COMMA
        if character == self._open[-1]:
            return self._closes()
        self._next = self._behind_value
        return JsonMark.INSIDE if character in BLANKS else JsonMark.WRONG

    def _closes(self) -> JsonMark:
        self._open.pop()
        self.is_whole = not self._open
        self._next = self._end if self.is_whole else self._behind_value
        return JsonMark.CLOSES

    def _end(self, character: str) -> JsonMark:
        return JsonMark.INSIDE if character in BLANKS else JsonMark.WRONG
