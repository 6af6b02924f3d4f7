"""Answers that are complete before the model ends them: the same however their tokens come."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from api_schemas import FinishReason, FunctionDefinition
from engine import FinishReason as EngineFinishReason
from engine import TokenLogprobs
from server.completion_stream import TokenDelta
from server.message_parts import MessageParser, join_parts
from server.message_reader import MessageDelta, MessageReader
from server.reasoning.markers import Opening, ReasoningMarkers
from server.reasoning.parser import ReasoningParser
from server.text_stream import TextAssembler, TextOptions
from server.tools.call_parser import CallParser, CallRules
from server.tools.harmony import HarmonyParser
from server.tools.registry import find_format
from server.vocabulary import Vocabulary
from tests.server.fakes import make_byte_level_tokenizer

TOKENIZER = make_byte_level_tokenizer()
TOKENIZER.add_special_tokens({"additional_special_tokens": ["<|channel|>", "<|message|>"]})
VOCABULARY = Vocabulary(TOKENIZER)
RULES = CallRules({"f": FunctionDefinition(name="f")}, is_single=True)
CALL = '<tool_call>\n{"name": "f", "arguments": {"a": "🦙"}}\n</tool_call>'
HARMONY = '<|channel|>commentary to=functions.f<|message|>{"a": '
MORE = ' 🦙<|im_start|> and {"on": 1} and on'


def call_reader() -> MessageReader:
    content: MessageParser = CallParser(find_format("hermes", "", renders_tools=True), RULES)
    markers = ReasoningMarkers("<think>", "</think>")
    reasoning = ReasoningParser(markers, Opening.POSSIBLE, content, shown=True)
    return MessageReader(reasoning, reasoning)


def harmony_reader() -> MessageReader:
    parser = HarmonyParser(RULES, shows_reasoning=True)
    return MessageReader(parser, parser)


CASES = [
    (call_reader, f"<think>Hm.</think>Yes.\n{CALL}{MORE}", ()),
    (call_reader, f"Yes.\n{CALL}{MORE}", ("}}\n!", "</tool_call>!")),
    (call_reader, f"{CALL}{MORE}", (" and",)),
    (call_reader, CALL, ()),
    (harmony_reader, f"{HARMONY}1}}{MORE}", ()),
    (harmony_reader, f"{HARMONY}1}}{MORE}", ("}!",)),
    (harmony_reader, f"{HARMONY}<|message|>{MORE}", ()),
    (harmony_reader, f"{HARMONY}<|im_start|><|message|><|message|>{MORE}", ('{"a": !',)),
]


def read(make, ids: list[int], stops: tuple[str, ...], cuts: list[int]) -> list[MessageDelta]:
    """Read an answer whose tokens come in bundles that end at some of its places."""
    assembler, reader = TextAssembler(VOCABULARY, TextOptions(stops=stops)), make()
    deltas = []
    for start, end in pairwise(sorted({0, len(ids), *cuts})):
        bundle = TokenDelta(ids[start:end], [TokenLogprobs(i, -1.0, ()) for i in ids[start:end]])
        if end == len(ids):
            bundle.finish_reason = EngineFinishReason.LENGTH
        piece = assembler.push(bundle)
        delta = None if piece is None else reader.push(piece)
        if delta is not None:
            deltas.append(delta)
        if assembler.finished:
            break
    return deltas


def summary(deltas: list[MessageDelta]) -> tuple:
    """What a whole answer says."""
    *earlier, last = deltas
    assert all(delta.finish_reason is None for delta in earlier)
    ids = [token for delta in deltas for token in delta.token_ids]
    assert [one.token_id for delta in deltas for one in delta.logprobs] == ids
    parts = join_parts([part for delta in deltas for part in delta.parts])
    return ids, parts, last.finish_reason, last.stop_reason, last.num_reasoning_tokens


@pytest.mark.parametrize(("make", "says", "stops"), CASES)
@given(cuts=st.lists(st.integers(1, 150), max_size=12))
@settings(max_examples=60, deadline=None)
def test_a_complete_answer_ends_at_one_token_however_they_are_bundled(make, says, stops, cuts):
    ids = TOKENIZER.encode(says, add_special_tokens=False)
    one_by_one = read(make, ids, stops, list(range(len(ids))))
    kept, *_, reason, stop_reason, _num_reasoning = summary(one_by_one)
    assert (reason, stop_reason) == (FinishReason.STOP, None)
    assert one_by_one[-1].has_calls
    assert kept == ids[: len(kept)]
    assert MORE not in TOKENIZER.decode(kept)
    # One token less, and the answer was still open.
    assert summary(read(make, ids[: len(kept) - 1], stops, []))[2] is FinishReason.LENGTH
    assert summary(read(make, ids, stops, cuts)) == summary(one_by_one)


def test_nothing_is_read_behind_a_complete_answer():
    reader = call_reader()
    assembler = TextAssembler(VOCABULARY, TextOptions())
    ids = TOKENIZER.encode(CALL, add_special_tokens=False)
    first, second = assembler.push(TokenDelta(ids)), assembler.push(TokenDelta(ids))
    assert first is not None
    assert second is not None
    delta = reader.push(first)
    assert delta is not None
    assert delta.finish_reason is FinishReason.STOP
    assert reader.is_complete
    assert reader.push(second) is None
