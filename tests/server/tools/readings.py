"""Reading a recorded answer in every way in which it may arrive."""

import re
from collections.abc import Callable, Iterator
from functools import partial

from server.message_parts import CallArguments, CallStart, MessageParser, Part, TextPart, join_parts

# In recordings, a special token that the client would not see stands between these.
SPECIAL = re.compile("\u00ab(.*?)\u00bb", re.DOTALL)


def pieces(recording: str) -> list[tuple[bool, str]]:
    """Cut a recording into (special, text)."""
    found = []
    start = 0
    for match in SPECIAL.finditer(recording):
        found += [(False, recording[start : match.start()]), (True, match[1])]
        start = match.end()
    return [*found, (False, recording[start:])]


def visible(recording: str) -> str:
    """What the client would see of it as text."""
    return SPECIAL.sub("", recording)


def cuts(text: str) -> Iterator[list[str]]:
    """Every cut in two, every cut into pieces of one size, and the whole."""
    for place in range(len(text) + 1):
        yield [text[:place], text[place:]]
    for size in range(1, 9):
        yield [text[start : start + size] for start in range(0, len(text), size)]


def read(parser: MessageParser, recording: str, cut: Callable[[str], list[str]]) -> list[Part]:
    """Read a recording whose text comes in pieces."""
    parts: list[Part] = []
    for special, text in pieces(recording):
        if special:
            parts += parser.special(text)
        else:
            for piece in cut(text):
                parts += parser.text(piece)
    return join_parts(parts + parser.finish())


def cut_one(which: str, cut: list[str], text: str) -> list[str]:
    """Cut one of the texts and leave the others."""
    return cut if text == which else [text]


def every_reading(make: Callable[[], MessageParser], recording: str) -> list[Part]:
    """Read it in every way; all must agree."""
    whole = read(make(), recording, lambda text: [text])
    longest = max((text for special, text in pieces(recording) if not special), key=len)
    for cut in cuts(longest):
        found = read(make(), recording, partial(cut_one, longest, cut))
        assert found == whole, cut
    assert read(make(), recording, list) == whole
    return whole


def calls_of(parts: list[Part]) -> list[tuple[str, str]]:
    """The names and arguments of the calls."""
    names = [part.name for part in parts if isinstance(part, CallStart)]
    assert [part.index for part in parts if isinstance(part, CallStart)] == list(range(len(names)))
    arguments = [""] * len(names)
    for part in parts:
        if isinstance(part, CallArguments):
            arguments[part.index] += part.text
    return list(zip(names, arguments, strict=True))


def text_of(parts: list[Part]) -> str:
    """The content."""
    return "".join(part.text for part in parts if isinstance(part, TextPart))
