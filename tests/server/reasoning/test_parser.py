"""Cutting the reasoning off an answer, however it arrives."""

import pytest

from server.message_parts import PlainParser, ReasoningPart
from server.reasoning.markers import MARKERS, Opening, find_markers, find_opening
from server.reasoning.parser import ReasoningParser
from server.setting_values import REASONING_PARSERS
from tests.server.tools.readings import every_reading, text_of

THINK = MARKERS["think"]


def parser(opening: Opening = Opening.POSSIBLE, markers=THINK, *, shown: bool = True):
    return lambda: ReasoningParser(markers, opening, PlainParser(), shown=shown)


def reasoning_of(parts) -> str:
    return "".join(part.text for part in parts if isinstance(part, ReasoningPart))


@pytest.mark.parametrize(
    ("opening", "recording", "reasoning", "text"),
    [
        (
            Opening.POSSIBLE,
            "<think>\n1 < 2 </ok>.\n</think>\n\nYes.",
            "1 < 2 </ok>.",
            "Yes.",
        ),
        (Opening.POSSIBLE, "\n<think>a\n\nb</think>c  ", "a\n\nb", "c  "),
        (Opening.POSSIBLE, "«<think>»a«</think>»\nb", "a", "b"),
        (Opening.POSSIBLE, "<think></think>b", "", "b"),
        (Opening.POSSIBLE, "<think>never ends </think", "never ends </think", ""),
        (Opening.POSSIBLE, "<think>  ", "", ""),
        (Opening.POSSIBLE, "No <think>tags</think> here.", "", "No <think>tags</think> here."),
        (Opening.POSSIBLE, "  <thin", "", "  <thin"),
        (Opening.POSSIBLE, "plain", "", "plain"),
        (
            Opening.INSIDE,
            "\nfirst</think>\n\nsecond </think> third",
            "first",
            "second </think> third",
        ),
        (Opening.INSIDE, "a </t</think>b", "a </t", "b"),
        (Opening.INSIDE, "a «<x>»b«</think>»c", "a b", "c"),
        (Opening.CLOSED, "<think>text</think>", "", "<think>text</think>"),
    ],
)
def test_reasoning_stands_first_or_nowhere(opening, recording, reasoning, text):
    parts = every_reading(parser(opening), recording)
    assert (reasoning_of(parts), text_of(parts)) == (reasoning, text)


@pytest.mark.parametrize("markers", MARKERS.values(), ids=MARKERS)
def test_every_familys_markers_are_known(markers):
    recording = f"{markers.opening}why{markers.closing}what"
    parts = every_reading(parser(markers=markers), recording)
    assert (reasoning_of(parts), text_of(parts)) == ("why", "what")
    template = f"{{{{ message.content.split('{markers.closing}')[-1] }}}}"
    assert find_markers("auto", template) is markers


def test_reasoning_may_be_left_out():
    parts = every_reading(parser(shown=False), "<think>why</think>what")
    assert (reasoning_of(parts), text_of(parts)) == ("", "what")


def test_the_setting_knows_every_family():
    assert set(REASONING_PARSERS) == {"auto", "none", *MARKERS}
    assert find_markers("none", "</think>") is None
    assert find_markers("auto", "no markers") is None
    assert find_markers("seed", "no markers") is MARKERS["seed"]


@pytest.mark.parametrize(
    ("prompt", "opening"),
    [
        ("<|assistant|><think>\n", Opening.INSIDE),
        ("<|assistant|>\n<think>\n\n</think>\n\n", Opening.CLOSED),
        ("<|user|>what is <think>?<|assistant|>\n", Opening.POSSIBLE),
    ],
)
def test_the_prompts_end_says_whether_reasoning_has_begun(prompt, opening):
    assert find_opening(THINK, prompt) is opening


@pytest.mark.parametrize(
    ("begun", "opening"),
    [
        ("<think>so far", Opening.INSIDE),
        ("<think>done</think>and", Opening.POSSIBLE),
        ("words", Opening.POSSIBLE),
    ],
)
def test_a_message_that_is_continued_may_have_begun_its_reasoning(begun, opening):
    assert find_opening(THINK, f"<|assistant|>{begun}", begun) is opening


def test_the_end_of_the_reasoning_is_known_to_the_character():
    made = parser(Opening.INSIDE)()
    made.text("abc")
    assert made.num_reasoning_characters == 3
    made.text("d</think>\n\nrest")
    assert made.num_reasoning_characters == len("abcd</think>")


@pytest.mark.parametrize("opening", [Opening.INSIDE, Opening.POSSIBLE])
def test_blanks_that_a_model_repeats_are_looked_at_once(opening):
    # Looked at again with each that comes, they would keep this busy for minutes.
    made = parser(opening)()
    for _ in range(100_000):
        assert made.text(" " * 16) == []
    parts = [*made.text("a</think>" if opening is Opening.INSIDE else "a"), *made.finish()]
    assert reasoning_of(parts) == ("a" if opening is Opening.INSIDE else "")
    assert text_of(parts) == ("" if opening is Opening.INSIDE else " " * 1_600_000 + "a")
