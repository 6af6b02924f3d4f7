"""The reader takes what begins a JSON text, character by character, and nothing else."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.tools.calls import load_json
from server.tools.json_reader import MAX_DEPTH, JsonMark, JsonReader

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
LAYOUTS = st.sampled_from([{}, {"indent": 2}, {"separators": (",", ":")}, {"ensure_ascii": False}])
LETTERS = st.sampled_from('{}[],:"\\ \n\x00-+.e01tfn') | st.characters()
# What follows one of these, and how it may go on at the earliest.
BROKEN = [
    ('{"a": ', "N'}],:+.aTI\x00"),
    ('{"a": 1', "]x\"'+-{["),
    ('{"a": 0', "0123456789x]"),
    ('{"a": -', '-+.eE} "'),
    ('{"a": 1.', ".eE}, -"),
    ('{"a": 1e', "e.}, "),
    ('{"a": 1e+', "+-e.}, "),
    ('{"a": 1.5', '.-+u"'),
    ('{"a": t', "te}1 "),
    ('{"a": "', "\n\t\x00\x1f"),
    ('{"a": "\\', "'ax0U\n"),
    ('{"a": "\\u00', 'g"}\\ '),
    ('{"a"', ',}"1'),
    ("{", "'a1,:]["),
    ('{"a": 1,', "},1'{"),
    ("[", "},:'"),
    ("[1,", "],}"),
    ("[1", "}:"),
    ("{}", '{}[],1x"'),
    ("", "x1\"'}]"),
]


def is_json(text: str) -> bool:
    try:
        return isinstance(load_json(text), dict | list)
    except ValueError:
        return False


def marks(text: str) -> list[JsonMark]:
    reader = JsonReader()
    return [reader.feed(character) for character in text]


@settings(max_examples=300, deadline=None)
@given(value=VALUES, layout=LAYOUTS)
def test_whatever_is_json_is_taken_and_its_end_is_known(value, layout):
    text = json.dumps([value], **layout)
    reader = JsonReader()
    for place, character in enumerate(text):
        assert not reader.is_whole, place
        assert reader.feed(character) is not JsonMark.WRONG, place
    assert reader.is_whole
    assert reader.depth == 0


@settings(max_examples=500, deadline=None)
@given(value=VALUES, place=st.integers(0, 60), letter=LETTERS)
def test_a_spoilt_text_is_taken_if_it_still_is_json(value, place, letter):
    text = json.dumps([value], ensure_ascii=False)
    text = text[:place] + letter + text[place + 1 :]
    reader = JsonReader()
    taken = all(reader.feed(character) is not JsonMark.WRONG for character in text)
    assert (taken and reader.is_whole) == is_json(text)


@pytest.mark.parametrize(("begun", "wrong"), BROKEN)
def test_the_first_wrong_character_is_told(begun, wrong):
    assert JsonMark.WRONG not in marks(begun)
    for character in wrong:
        assert marks(begun + character)[-1] is JsonMark.WRONG, character


def test_marks_give_a_text_its_structure():
    kinds = {JsonMark.OPENS: "(", JsonMark.CLOSES: ")", JsonMark.COMMA: ",", JsonMark.INSIDE: "."}
    text = ' {"a,}": [1, {}], "b": -2.5e3 , "c": [] }\n'
    found = "".join(kinds[mark] for mark in marks(text))
    assert found == ".(.......(.,.()),.............,......().)."


@settings(max_examples=200, deadline=None)
@given(value=VALUES)
def test_what_changes_nothing_may_be_left_out(value):
    text = json.dumps([value], ensure_ascii=False)
    reader = JsonReader()
    place = 0
    passed = ""
    while place < len(text):
        run = reader.run(text, place)
        assert run or reader.feed(text[place]) is not JsonMark.WRONG
        passed += run or text[place]
        place += len(run) or 1
    assert reader.is_whole
    assert passed == text


def test_only_the_brackets_that_are_wanted_begin_a_text():
    assert JsonReader("{").feed("[") is JsonMark.WRONG
    assert JsonReader("[").feed("{") is JsonMark.WRONG


def test_what_is_too_deep_is_wrong():
    found = marks("[" * (MAX_DEPTH + 1))
    assert found == [JsonMark.OPENS] * MAX_DEPTH + [JsonMark.WRONG]
