"""Events come out whole, wherever the bytes were cut."""

import pytest

from benchmarks.load.event_stream import EventParser

STREAM = (
    'data: {"a": "é"}\n\n: ping\n\n'
    "event: x\r\nid: 1\r\ndata: one\r\ndata:two\r\n\r\ndata: [DONE]\n\n"
).encode()
EVENTS = ['{"a": "é"}'.encode(), b"one\ntwo", b"[DONE]"]


@pytest.mark.parametrize("size", range(1, len(STREAM) + 1))
def test_cuts_make_no_difference(size):
    parser = EventParser()
    pieces = [STREAM[n : n + size] for n in range(0, len(STREAM), size)]
    assert [event for piece in pieces for event in parser.feed(piece)] == EVENTS


def test_an_event_comes_as_soon_as_it_is_whole_and_no_sooner():
    parser = EventParser()
    assert parser.feed(b"data: a\n") == []
    assert parser.feed(b"\ndata: b") == [b"a"]
    assert parser.feed(b"\n\n") == [b"b"]


def test_only_one_blank_after_the_colon_is_not_data():
    assert EventParser().feed(b"data:  a \n\n") == [b" a "]
