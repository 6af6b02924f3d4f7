"""Stop strings: the cut, the hold-back and that the pieces' borders change nothing."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.stop_strings import StopStrings

LETTERS = st.text(alphabet="abc", max_size=30)
STOPS = st.lists(st.text(alphabet="abc", min_size=1, max_size=5), min_size=1, max_size=4)


def naive(text: str, stops: list[str], *, include: bool) -> tuple[str, str | None]:
    """Look after every character whether a stop string has just been completed."""
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            longest = max(found, key=len)
            return text[: end if include else end - len(longest)], longest
    return text, None


def run(pieces: list[str], stops: list[str], *, include: bool = False) -> tuple[str, str | None]:
    machine = StopStrings(stops, include_match=include)
    released = "".join(map(machine.push, pieces))
    return released + machine.flush(), machine.matched


@given(text=LETTERS, stops=STOPS, include=st.booleans(), cuts=st.lists(st.integers(0, 30)))
@settings(max_examples=400, deadline=None)
def test_any_split_gives_what_a_search_of_the_whole_text_gives(text, stops, include, cuts):
    borders = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    pieces = [text[a:b] for a, b in pairwise(borders)]
    assert run(pieces, stops, include=include) == naive(text, stops, include=include)


@given(text=LETTERS, stops=STOPS)
@settings(max_examples=200, deadline=None)
def test_no_more_is_held_than_a_stop_string_could_still_need(text, stops):
    machine = StopStrings(stops, include_match=False)
    seen = released = ""
    for character in text:
        seen += character
        released += machine.push(character)
        if machine.matched:
            return
        needed = max(
            length for stop in stops for length in range(len(stop)) if seen.endswith(stop[:length])
        )
        assert len(seen) - len(released) == needed


def test_a_stop_string_that_never_comes_delays_nothing():
    machine = StopStrings(["#" * 20], include_match=False)
    assert [machine.push(word) for word in ("one ", "two ")] == ["one ", "two "]


def test_nothing_after_the_match_is_released():
    machine = StopStrings(["b"], include_match=False)
    assert machine.push("abc") == "a"
    assert machine.push("d") == ""
    assert machine.flush() == ""


def test_a_special_token_matches_though_it_is_hidden():
    machine = StopStrings(["<end>"], special_texts=["<end>"], include_match=False)
    assert machine.push("text") == "text"
    assert machine.push("<end>", hidden=True) == ""
    assert machine.matched == "<end>"


def test_a_stop_string_may_span_text_and_a_special_token():
    machine = StopStrings(["st<end>x"], special_texts=["<end>"], include_match=False)
    assert machine.push("test") == "te"
    assert machine.push("<end>", hidden=True) == ""
    assert machine.push("x!") == ""
    assert machine.matched == "st<end>x"


def test_a_hidden_token_does_not_break_a_visible_match():
    machine = StopStrings(["ab"], special_texts=["<end>"], include_match=False)
    assert machine.push("xa") == "x"
    assert machine.push("<end>", hidden=True) == ""
    assert machine.push("b") == ""
    assert machine.matched == "ab"


def test_a_failed_span_releases_the_visible_text():
    machine = StopStrings(["a<end>b"], special_texts=["<end>"], include_match=False)
    assert machine.push("a") == ""
    assert machine.push("<end>", hidden=True) == ""
    assert machine.push("c") == "ac"


@pytest.mark.parametrize("include", [True, False])
def test_the_match_is_kept_when_asked(include):
    assert run(["he", "llo wor", "ld"], ["o w"], include=include) == (
        "hello w" if include else "hell",
        "o w",
    )
