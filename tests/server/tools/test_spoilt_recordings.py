"""Recorded outputs that break off, or have a wrong character, at any place.

However a spoilt output is cut, the same is read in it, which is why a streamed answer and a whole
one are equal. What of it is no call is text: nothing is lost but blanks around calls and members of
a call that mean nothing, and nothing is made up.
"""

import random
import re
from collections.abc import Iterator

import pytest

from server.message_parts import CallStart, Part
from tests.server.tools.readings import SPECIAL, calls_of, text_of, visible
from tests.server.tools.test_recordings import RECORDINGS, Recording, read_split

WRONG = ["\n", "\x00", '"', "\\", "{", "}", "[", "]", ",", ":", "<", "-", "0", " ", "é", "🦙"]
NUM_SPOILT = 80
# How many places of an output go by until the next is tried.
STRIDES = [pytest.param(8, id="some"), pytest.param(1, id="all", marks=pytest.mark.long)]
REWRITTEN = ("pythonic", "qwen_coder", "glm")
# Stands in no recording, is a letter, and thus fits into any text or name.
STRANGE = "Ж"
# Special tokens and ids of calls are shown nowhere, nor are members that mean nothing.
HIDDEN = re.compile(r"«.*?»|\[CALL_ID\]\w+|\"(?:arguments|parameters)\"", re.DOTALL)
# Nor is what stands between the messages of channels.
HEADERS = re.compile(r"«(?!<\|message\|>).*?»[^«]*|«.*?»", re.DOTALL)


def name_of(recording: Recording) -> str:
    return f"{recording['format']}-{recording['text']}"


def changed(recording: Recording, text: str) -> Recording:
    return {**recording, "text": text}


def agreed(recording: Recording, chance: random.Random) -> list[Part]:
    """What is read in it, whole and in random pieces."""
    whole = read_split(recording, set())
    share = chance.random()
    cuts = {place for place in range(len(recording["text"])) if chance.random() < share}
    assert read_split(recording, cuts) == whole
    return whole


def places(text: str, hidden: re.Pattern[str] = SPECIAL) -> Iterator[int]:
    """The places of characters that a client may see, in order."""
    ends = [match.span() for match in hidden.finditer(text)]
    yield from (at for at in range(len(text)) if not any(a <= at < b for a, b in ends))


def in_order(parts: list[Part], text: str) -> bool:
    """Whether all that is said stands in a text, in this order; {} is said for no arguments."""
    letters = iter(text)
    said = (part.text for part in parts if not isinstance(part, CallStart))
    return all(letter in letters for piece in said if piece != "{}" for letter in piece)


def shown(parts: list[Part]) -> str:
    """All that is said, in its order."""
    return "".join(part.name if isinstance(part, CallStart) else part.text for part in parts)


def some(found: Iterator[int], stride: int) -> list[int]:
    """One in so many places; which ones differs from output to output."""
    at_hand = list(found)
    return at_hand[len(at_hand) % stride :: stride]


@pytest.mark.parametrize("stride", STRIDES)
@pytest.mark.parametrize("recording", RECORDINGS, ids=name_of)
def test_an_output_that_breaks_off_anywhere(recording, stride):
    chance = random.Random(recording["text"])
    for end in some(places(recording["text"]), stride):
        cut = changed(recording, recording["text"][:end])
        parts = agreed(cut, chance)
        calls = calls_of(parts)
        known = recording.get("calls", [])
        assert [name for name, _ in calls] == [name for name, _ in known[: len(calls)]]
        for (_, arguments), (_, whole) in zip(calls, known, strict=False):
            assert whole.startswith(arguments)
        if not calls and "markers" not in recording and recording["format"] != "harmony":
            assert text_of(parts) == visible(cut["text"])


@pytest.mark.parametrize("stride", STRIDES)
@pytest.mark.parametrize("recording", RECORDINGS, ids=name_of)
def test_an_output_with_any_wrong_character(recording, stride):
    chance = random.Random(recording["text"])
    text = recording["text"]
    at_hand = list(places(text))
    for _ in range(min(NUM_SPOILT, len(at_hand)) // stride):
        place = chance.choice(at_hand)
        spoilt = changed(recording, text[:place] + chance.choice(WRONG) + text[place + 1 :])
        parts = agreed(spoilt, chance)
        if recording["format"] not in REWRITTEN:
            assert in_order(parts, visible(spoilt["text"]))


@pytest.mark.parametrize("stride", STRIDES)
@pytest.mark.parametrize("recording", RECORDINGS, ids=name_of)
def test_a_strange_letter_is_found_again_wherever_it_stands(recording, stride):
    text = recording["text"]
    hidden = HEADERS if recording["format"] == "harmony" else HIDDEN
    for place in some(places(text, hidden), stride):
        strange = changed(recording, text[:place] + STRANGE + text[place + 1 :])
        assert STRANGE in shown(read_split(strange, set())), place
