"""Requests against servers that answer well, badly, or not at all."""

import json
import time

import pytest

from benchmarks.load.answer import Outcome
from benchmarks.load.client import UnusableServerError, ask, get_acquainted
from benchmarks.load.target import COUNT_TOKENS, IGNORE_EOS, Target, parse_target
from benchmarks.load.workload import Endpoint, Workload
from tests.benchmarks.scripted_server import HEAD, chat_event, chunked, refusal, scripted

WORKLOAD = Workload(Endpoint.CHAT, 20, 3)
USAGE = chat_event(choices=[], usage={"prompt_tokens": 11, "completion_tokens": 3})
WHOLE = chat_event("é") + chat_event("") + chat_event("b") + USAGE + b"data: [DONE]\n\n"


async def outcome_of(*pieces: bytes, timeout_seconds: float = 10.0) -> Outcome:
    async with scripted(lambda _line, _body: pieces) as target:
        request = WORKLOAD.request(target, "hello", {})
        return await ask(target, request, time.perf_counter(), timeout_seconds)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
async def test_neither_chunks_nor_packets_need_to_end_where_events_do(size):
    answer = chunked(WHOLE, size)
    outcome = await outcome_of(*(answer[n : n + 50] for n in range(0, len(answer), 50)))
    assert outcome.error == ""
    assert len(outcome.arrivals) == 2, "an empty text is no text"
    assert (outcome.num_prompt_tokens, outcome.num_output_tokens) == (11, 3)
    assert outcome.start_seconds < outcome.arrivals[0] < outcome.arrivals[1] < outcome.end_seconds


async def test_text_counts_when_it_arrives_and_not_when_the_answer_ends():
    pieces = [chat_event("a"), *[b": ping\n\n"] * 20, chat_event("b"), b"data: [DONE]\n\n"]
    outcome = await outcome_of(HEAD + b"\r\n", *pieces)
    assert outcome.gaps_seconds[0] >= 0.019, "twenty pings of a millisecond lie between"
    assert outcome.num_output_tokens == 2, "without usage, pieces are counted"


async def test_a_body_may_end_with_its_connection():
    assert (await outcome_of(HEAD + b"\r\n" + WHOLE)).error == ""


async def test_a_finish_reason_ends_an_answer_as_well_as_the_usual_mark():
    choice = {"delta": {}, "finish_reason": "length"}
    outcome = await outcome_of(chunked(chat_event("a") + chat_event(choices=[choice])))
    assert outcome.error == ""


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
async def test_thoughts_are_text(field):
    thought = chat_event(choices=[{"delta": {field: "hm"}}])
    assert len((await outcome_of(chunked(thought + WHOLE))).arrivals) == 3


@pytest.mark.parametrize(
    ("pieces", "error", "detail"),
    [
        ([refusal(429, "busy")], "HTTP 429", "busy"),
        ([refusal(307, "")], "HTTP 307", ""),
        ([chunked(chat_event("a"))], "cut short", ""),
        ([HEAD + b"\r\n" + chat_event("a")], "cut short", ""),
        ([chunked(WHOLE)[:-20]], "connection lost", ""),
        ([b"HTTP/1.1 "], "connection lost", ""),
        ([b"SSH-2.0-x\r\n"], "malformed HTTP", ""),
        ([chunked(b"data: [DONE]\n\n")], "no text", ""),
        ([chunked(chat_event("a") + b'data: {"choi\n\n' + WHOLE)], "malformed event", '{"choi'),
        ([chunked(b"data: 7\n\n" + WHOLE)], "malformed event", "7"),
        (
            [chunked(chat_event("a") + b'data: {"error": {"message": "died"}}\n\n' + WHOLE)],
            "error event",
            "died",
        ),
        ([chunked(b'{"choices": [{"message": {"content": "not streamed"}}]}')], "cut short", ""),
    ],
)
async def test_a_failure_is_an_outcome_with_its_kind(pieces, error, detail):
    outcome = await outcome_of(*pieces)
    assert outcome.error == error
    assert detail in outcome.detail


async def test_a_server_that_never_answers_is_given_up():
    assert (await outcome_of(timeout_seconds=0.05)).error == "timeout"


async def test_no_server_is_an_outcome_too():
    async with scripted(lambda _line, _body: [b""]) as target:
        gone = Target("gone", target.host, target.port)
    outcome = await ask(gone, gone.get("/"), time.perf_counter(), 5.0)
    assert outcome.error == "no connection"


@pytest.mark.parametrize(
    ("refused", "extras"),
    [
        ((), {**IGNORE_EOS, **COUNT_TOKENS}),
        (("ignore_eos",), COUNT_TOKENS),
        (("stream_options",), IGNORE_EOS),
        (("ignore_eos", "stream_options"), {}),
    ],
)
async def test_a_field_that_a_server_refuses_is_left_out(refused, extras):
    def script(line, body):
        if line.startswith("GET /v1/models "):
            return [refusal(200, json.dumps({"data": [{"id": "first"}, {"id": "second"}]}))]
        if line.startswith("GET /props "):
            return [refusal(200, json.dumps({"build_info": "b1"}))]
        if line.startswith("GET "):
            return [refusal(404, "")]
        assert body["model"] == "first"
        return [
            refusal(422, "unknown") if any(name in body for name in refused) else chunked(WHOLE)
        ]

    async with scripted(script) as target:
        found = await get_acquainted(
            Target(target.name, target.host, target.port), WORKLOAD, timeout_seconds=5.0
        )
    assert (found.model, found.software, found.extras) == ("first", "version b1", extras)


async def test_a_server_that_still_loads_is_waited_for():
    looks = []

    def script(line, _body):
        if line.startswith("POST "):
            return [chunked(WHOLE)]
        looks.append(line)
        if len(looks) < 3:
            return [refusal(503, "loading")]
        return [refusal(200, json.dumps({"data": [{"id": "first"}]}))]

    async with scripted(script) as target:
        new = Target(target.name, target.host, target.port)
        assert (await get_acquainted(new, WORKLOAD, timeout_seconds=5.0)).model == "first"
        looks.clear()
        with pytest.raises(UnusableServerError):
            await get_acquainted(new, WORKLOAD, timeout_seconds=0.1)


@pytest.mark.parametrize(
    ("answer", "model", "said"),
    [
        (refusal(500, "out of luck"), "tiny", "HTTP 500. out of luck"),
        (refusal(400, "no such model"), "tiny", "no such model"),
        (refusal(200, "<html>"), "", "--model scripted=MODEL"),
        (refusal(404, ""), "", "--model scripted=MODEL"),
    ],
)
async def test_an_unusable_server_is_refused_with_what_it_says(answer, model, said):
    async with scripted(lambda _line, _body: [answer]) as target:
        target = Target(target.name, target.host, target.port, model=model)
        with pytest.raises(UnusableServerError, match="scripted") as refused:
            await get_acquainted(target, WORKLOAD, timeout_seconds=5.0)
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("text", "name", "url"),
    [
        ("a=http://h:1", "a", "http://h:1/v1"),
        ("http://h:1/v1/", "h:1", "http://h:1/v1"),
        ("a=https://h/api", "a", "https://h:443/api/v1"),
        ("a=http://[::1]:8", "a", "http://[::1]:8/v1"),
    ],
)
def test_a_target_is_read_from_a_name_and_a_url(text, name, url):
    target = parse_target(text)
    assert (target.name, target.url) == (name, url)


@pytest.mark.parametrize(
    "text", ["a", "a=h:1", "ftp://h", "a=http://", "a=http://k@h", "http://h?x=1"]
)
def test_what_is_no_url_is_refused(text):
    with pytest.raises(ValueError, match="NAME=URL"):
        parse_target(text)


def test_a_key_travels_and_is_not_shown():
    target = Target("a", "h", 1, api_key="secret")
    assert b"\r\nAuthorization: Bearer secret\r\n" in target.post("/x", {})
    assert "secret" not in repr(target)
