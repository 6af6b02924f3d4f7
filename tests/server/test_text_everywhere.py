"""What an answer says is the same over every route, streamed and whole."""

import pytest

from tests.server.fakes import make_byte_level_tokenizer
from tests.server.live import TEXT, run_live
from tests.server.test_tools import CALL, CALLS, NATIVE, TOOLS
from tests.server.text_routes import (
    CHATS,
    PATHS,
    body_of,
    events_of,
    piece_of,
    streamed,
    whole,
)

# The other routes have no such fields.
STOPPED_BY_TEXT = ["chat", "completions", "messages"]
STOPPED_BY_TOKEN = ["chat", "completions"]
CALLED = [("first", {"a": 1}), ("second", {})]
# Where each of them says how much of the prompt was in the cache.
CACHED = {
    "chat": ("prompt_tokens_details", "cached_tokens"),
    "completions": ("prompt_tokens_details", "cached_tokens"),
    "messages": ("cache_read_input_tokens",),
    "responses": ("input_tokens_details", "cached_tokens"),
}
both_ways = pytest.mark.parametrize("ask", [whole, streamed])
every_route = pytest.mark.parametrize("route", PATHS)
every_chat = pytest.mark.parametrize("route", CHATS)


@pytest.fixture(scope="module")
def shared_live():
    with run_live(max_model_tokens=4096) as server:
        yield server


@every_route
@pytest.mark.parametrize(
    "text",
    ["🦙🦙🦙", "日本語 です", "👩‍👩‍👧‍👦🇫🇷", "नमस्ते u\u0308", "\ufffd\ufffd a \ufffd", "\t b "],
)
def test_no_piece_holds_half_a_character(live, route, text):
    live.says(text)
    said = streamed(live, route)
    assert said.text == whole(live, route).text == text
    assert sum(piece.count("\ufffd") for piece in said.pieces) == text.count("\ufffd")


@every_route
def test_a_genuine_replacement_character_is_sent_before_the_answer_ends(live, route):
    live.manager.step_seconds = 0.02
    mark = live.tokenizer.encode("\ufffd", add_special_tokens=False)
    live.manager.script = lambda _ids, _arguments: [*mark, *[300] * 190]
    body = body_of(route, stream=True)
    with live.http.stream("POST", PATHS[route], json=body) as response:
        live.manager.wait_until(lambda: live.manager.added[0].num_generated >= len(mark))
        live.manager.paused.set()
        pieces = (
            piece_of(route, event) for line in response.iter_lines() for event in events_of(line)
        )
        assert next(filter(None, pieces)).startswith("\ufffd")
        assert live.manager.num_active == 1
        live.manager.paused.clear()


@both_ways
@pytest.mark.parametrize("route", STOPPED_BY_TOKEN)
@pytest.mark.parametrize("fields", [{}, {"stop": ["never said"]}])
def test_the_text_of_a_stop_token_is_hidden(live, route, ask, fields):
    tokens = live.tokenizer.encode(TEXT, add_special_tokens=False)
    assert tokens[4] not in tokens[:4]
    said = ask(live, route, stop_token_ids=[tokens[4]], **fields)
    assert said.text == live.tokenizer.decode(tokens[:4])
    assert said.ending == "stop"
    assert said.usage["completion_tokens"] == 5


@both_ways
@pytest.mark.parametrize("route", ["chat", "messages"])
@pytest.mark.parametrize(
    ("says", "text"),
    [
        ("Before THE END after", "Before "),
        ("Look at <tool THE END after", "Look at <tool "),
        (f"<tool_call>{{bad THE END {CALL}", "<tool_call>{bad "),
        ('<tool_call>\n{"name": "first", THE END', '<tool_call>\n{"name": "first", '),
    ],
)
def test_a_stop_string_keeps_the_text_that_may_have_been_a_call(live, route, ask, says, text):
    live.says(says)
    said = ask(live, route, tools=TOOLS, stop=["THE END"])
    assert (said.text, said.ending, said.calls) == (text, "stop", [])


@both_ways
@every_route
def test_an_answer_that_ends_with_its_last_token_was_not_cut(live, route, ask):
    count = len(live.tokenizer.encode(TEXT, add_special_tokens=False))
    assert ask(live, route, max_tokens=count + 1).ending == "stop"
    assert ask(live, route, max_tokens=count).ending == "length"


@both_ways
@every_route
def test_tokens_from_the_cache_are_counted_where_there_are_none(live, route, ask):
    found = ask(live, route).usage
    for name in CACHED[route]:
        found = found[name]
    assert found == 0


@both_ways
@every_chat
def test_a_call_that_is_cut_is_no_use_of_a_tool(live, route, ask):
    live.says(CALL)
    begun = live.tokenizer.encode(CALL.split("1}")[0], add_special_tokens=False)
    said = ask(live, route, tools=TOOLS, tool_choice="required", max_tokens=len(begun))
    assert said.ending == "length"
    assert [name for name, _, _ in said.calls] == ["first"]


@both_ways
@every_chat
def test_no_two_calls_share_an_id(live, route, ask):
    live.says(CALLS)
    answers = [ask(live, route, tools=TOOLS) for _ in range(2)]
    assert all(said.called == CALLED for said in answers)
    assert len({call_id for said in answers for _, _, call_id in said.calls}) == 4


@both_ways
@every_chat
@pytest.mark.parametrize(
    "says", [TEXT, "<tool_call>{bad", "<tool_call></tool_call>", '<tool_call>\n{"name": "third"}']
)
def test_what_cannot_be_read_as_a_call_is_text(live, route, ask, says):
    live.says(says)
    said = ask(live, route, tools=TOOLS)
    assert (said.text, said.ending, said.calls) == (says, "stop", [])


@both_ways
@every_chat
@pytest.mark.parametrize("says", [CALLS, CALL, "<tool_call>{bad"])
def test_a_call_that_nobody_wants_is_text(live, route, ask, says):
    live.says(says)
    said = ask(live, route, tools=TOOLS, tool_choice="none")
    assert (said.text, said.ending, said.calls) == (says, "stop", [])


@both_ways
@every_chat
def test_a_call_that_nobody_wants_is_text_in_the_models_own_form(route, ask):
    says = '[TOOL_CALLS][{"name": "first", "arguments": {"a": 1}}]'
    with run_live(max_model_tokens=4096, tokenizer=make_byte_level_tokenizer(NATIVE)) as live:
        live.says(says)
        assert ask(live, route, tools=TOOLS).called == CALLED[:1]
        said = ask(live, route, tools=TOOLS, tool_choice="none")
        assert (said.text, said.ending, said.calls) == (says, "stop", [])


@both_ways
@every_route
def test_an_answer_that_ended_by_itself_is_not_cancelled(live, route, ask):
    for _ in range(10):
        ask(live, route)
    assert live.manager.cancelled == []


@both_ways
@every_route
@pytest.mark.parametrize("name", ["tiny", "org/tiny"])
def test_the_name_that_was_asked_for_comes_back(live, route, ask, name):
    assert ask(live, route, model=name).models == {name}
