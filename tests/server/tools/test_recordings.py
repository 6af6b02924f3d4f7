"""Recorded outputs of every format: each is read the same however it arrives.

`recordings.jsonl` holds one output a line, special tokens between «», and what is to be read in it;
what a line leaves out is empty. All functions that are called are known here but `nobody`.
"""

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from api_schemas import FunctionDefinition
from server.message_parts import MessageParser, Part, ReasoningPart, join_parts
from server.reasoning.markers import MARKERS, Opening
from server.reasoning.parser import ReasoningParser
from server.setting_values import TOOL_PARSERS
from server.tools.call_parser import CallParser, CallRules
from server.tools.harmony import HarmonyParser
from server.tools.registry import FORMATS
from tests.server.tools.readings import calls_of, pieces, text_of

Recording = dict[str, Any]

LINES = (Path(__file__).parent / "recordings.jsonl").read_text().splitlines()
RECORDINGS: list[Recording] = [json.loads(line) for line in LINES]
NUM_RANDOM_SPLITS = 10


def takes(**kinds: str) -> dict[str, Any]:
    """Parameters of these types."""
    return {"type": "object", "properties": {name: {"type": kinds[name]} for name in kinds}}


FUNCTIONS = {
    name: FunctionDefinition(name=name, parameters=parameters)
    for name, parameters in {
        "get_weather": takes(city="string", days="integer"),
        "note": takes(text="string"),
        "lists": takes(items="array"),
        "now": takes(),
    }.items()
}


def make_parser(recording: Recording) -> MessageParser:
    rules = CallRules(FUNCTIONS)
    if recording["format"] == "harmony":
        return HarmonyParser(rules, shows_reasoning=True)
    calls = CallParser(FORMATS[recording["format"]], rules)
    if "markers" not in recording:
        return calls
    opening = Opening[recording["opening"].upper()]
    return ReasoningParser(MARKERS[recording["markers"]], opening, calls, shown=True)


def read_split(recording: Recording, places: set[int]) -> list[Part]:
    """Read an output that is cut at these places; special tokens are never cut."""
    parser = make_parser(recording)
    parts: list[Part] = []
    start = 0
    for special, text in pieces(recording["text"]):
        if special:
            parts += parser.special(text)
            continue
        end = start + len(text)
        inside = [place for place in sorted(places) if start < place < end]
        for first, last in zip([start, *inside], [*inside, end], strict=True):
            parts += parser.text(text[first - start : last - start])
        start = end
    return join_parts(parts + parser.finish())


def splits(num_characters: int) -> Iterator[set[int]]:
    """Every cut in two, every character by itself, and cuts into any number of pieces."""
    chance = random.Random(num_characters)
    yield from ({place} for place in range(1, num_characters))
    yield set(range(num_characters))
    for _ in range(NUM_RANDOM_SPLITS):
        share = chance.random()
        yield {place for place in range(num_characters) if chance.random() < share}


@pytest.mark.parametrize("recording", RECORDINGS, ids=lambda one: f"{one['format']}-{one['text']}")
def test_a_recording_is_read_the_same_under_every_split(recording):
    whole = read_split(recording, set())
    reasoning = "".join(part.text for part in whole if isinstance(part, ReasoningPart))
    assert calls_of(whole) == [tuple(call) for call in recording.get("calls", [])]
    assert text_of(whole) == recording.get("content", "")
    assert reasoning == recording.get("reasoning", "")
    for places in splits(len(recording["text"])):
        assert read_split(recording, places) == whole, places


def test_there_are_recordings_of_every_format_and_every_kind_of_reasoning():
    assert len(RECORDINGS) >= 200
    assert {one["format"] for one in RECORDINGS} == set(TOOL_PARSERS) - {"auto"}
    assert {one["markers"] for one in RECORDINGS if "markers" in one} == set(MARKERS)
