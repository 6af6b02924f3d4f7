"""One request's badness is its own: values, poison, templates, errors (A3, A4, A8, A9, A16, R7)."""

import json
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from server import prompt_encoding
from tests.engine.threads import Call
from tests.integration.engine_server import EngineServer, joined_texts, run_engine_server
from tests.integration.test_engine_failures import controlled_server
from tests.server.fakes import make_byte_level_tokenizer
from tests.server.live import run_live

CANARY = {"prompt": "the canary sings", "temperature": 0, "max_tokens": 24, "ignore_eos": True}
FORBIDDEN = ("Traceback", "0x", "/usr", "/work", "site-packages", ".py", "object at")


@pytest.fixture(scope="module")
def shared(tiny_model) -> Iterator[EngineServer]:
    with run_engine_server(tiny_model) as server:
        yield server


def check_error(text: str) -> None:
    """An error says what is wrong, in four keys, and nothing of the inside."""
    assert set(json.loads(text)["error"]) == {"message", "type", "param", "code"}
    assert not [word for word in FORBIDDEN if word in text], text


def vocabulary(server: EngineServer) -> int:
    return int(server.manager.limits.vocab_size)


WIDTH = 259  # of the tiny model's logits; checked below
ODD_NUMBERS: st.SearchStrategy[Any] = st.one_of(
    st.sampled_from([-1, 0, WIDTH - 1, WIDTH, 2**31 - 1, 2**31, 2**63, 10**30]),
    st.sampled_from([0.5, -0.0, 1e308, -1e308]),
    st.sampled_from([None, True, "1", [], {}, [[]]]),
    st.integers(-(2**70), 2**70),
)
NUMBER_FIELDS = (
    "max_tokens", "min_tokens", "n", "seed", "temperature", "top_p", "top_k", "min_p", "logprobs",
    "presence_penalty", "frequency_penalty", "repetition_penalty", "best_of", "echo", "stream",
)  # fmt: skip
LISTS = st.lists(ODD_NUMBERS, max_size=6)
FIELDS = st.one_of(
    st.tuples(st.sampled_from(NUMBER_FIELDS), ODD_NUMBERS),
    st.tuples(st.just("prompt"), st.one_of(LISTS, st.lists(LISTS, max_size=3))),
    st.tuples(st.sampled_from(["stop_token_ids", "stop"]), LISTS),
    st.tuples(
        st.just("logit_bias"),
        st.dictionaries(st.integers(-2, 2**33).map(str) | st.text(max_size=3), ODD_NUMBERS),
    ),
)


def test_the_width_of_the_logits_is_what_the_strategies_think(shared):
    assert vocabulary(shared) == WIDTH


def test_no_value_of_any_field_harms_a_neighbour(shared):
    alone = shared.text(**CANARY)

    @given(st.lists(FIELDS, min_size=1, max_size=3))
    @settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
    def ask(fields: list[tuple[str, Any]]) -> None:
        body = {"prompt": "hi", "max_tokens": 2, **dict(fields)}
        answer = shared.http.post("/v1/completions", json=body)
        assert answer.status_code in (200, 400, 429), answer.text
        if answer.status_code != 200:
            check_error(answer.text)

    canaries = threading.Event()
    songs: list[str] = []

    def sing() -> None:
        while not canaries.is_set():
            songs.append(shared.text(**CANARY))

    singer = Call(sing)
    try:
        ask()
    finally:
        canaries.set()
    singer.outcome()
    assert set(songs) == {alone}
    shared.wait_until_idle()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n", 10**9),
        ("n", 17),
        ("prompt", ["a"] * 129),
        ("prompt", [[5] * 10] * 129),
        ("stop", ["a"] * 17),
        ("stop", ["a" * 1025]),
        ("logprobs", 21),
        ("logit_bias", {str(number): 1 for number in range(1025)}),
        ("stop_token_ids", [1] * 1025),
        ("prompt", [WIDTH]),
        ("prompt", [-1]),
        ("stop_token_ids", [WIDTH]),
        ("logit_bias", {str(WIDTH): 1}),
        ("min_tokens", 10**9),
    ],
    ids=str,
)
def test_one_more_than_the_limit_is_refused_by_name(shared, field, value):
    answer = shared.complete(**{"prompt": "hi", field: value})
    assert answer.status_code == 400
    check_error(answer.text)
    assert answer.json()["error"]["param"].split(".")[0] == field


ESCAPES = [
    "{{ cycler.__init__.__globals__.os.popen('touch canary').read() }}",
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ messages|attr('__class__') }}",
    "{% set f = '{0.__class__.__init__.__globals__}'.format %}{{ f(messages) }}",
    "{{ ('{0.__class__}'|attr('format'))(messages) }}",
    "{{ ([messages]|map('attr', '__class__')|list)[0].mro() }}",
]


@pytest.mark.parametrize("template", ESCAPES)
def test_a_template_gets_nowhere(template, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with run_live(tokenizer=make_byte_level_tokenizer(template)) as server:
        answer = server.chat()
        assert not list(tmp_path.iterdir())
        if answer.status_code == 200:
            prompt = server.tokenizer.decode(server.manager.added[0].input_ids)
            assert "class" not in prompt
            assert "os" not in prompt
        else:
            assert answer.status_code == 400
            check_error(answer.text)


LONG = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"


def test_a_template_without_end_keeps_neither_thread_nor_loop(monkeypatch):
    monkeypatch.setattr(prompt_encoding, "TEMPLATE_TIMEOUT_SECONDS", 0.2)
    template = "{% if messages[0].content == 'loop' %}" + LONG + "{% endif %}ok"
    with run_live(tokenizer=make_byte_level_tokenizer(template)) as server:
        endless = [
            Call(lambda: server.chat(messages=[{"role": "user", "content": "loop"}]))
            for _ in range(2 * prompt_encoding.NUM_THREADS)
        ]
        for call in endless:
            answer = call.outcome()
            assert answer.status_code == 400
            assert answer.json()["error"]["code"] == "chat_template_error"
        assert server.http.get("/live").status_code == 200
        assert server.chat().status_code == 200


def test_a_request_brings_no_template(shared):
    body = {"messages": [{"role": "user", "content": "hi"}]}
    for fields in (
        {"chat_template": "{{ 1 }}"},
        {"chat_template_kwargs": {"chat_template": "{{ 1 }}"}},
        {"chat_template_kwargs": {"tokenize": False}},
    ):
        answer = shared.http.post("/v1/chat/completions", json={**body, **fields})
        assert answer.status_code == 400
        check_error(answer.text)


@pytest.mark.parametrize(
    "place",
    [
        "server.routes.completions.make_head",
        "server.state.ServerState.admit",
        "server.prompt_encoding.PromptEncoder.encode_prompts",
        "server.engine_client.EngineClient.submit",
        "server.text_stream.TextAssembler.push",
        "server.rendering.completion.CompletionRenderer.collect",
    ],
)
@pytest.mark.parametrize("error", [RuntimeError, MemoryError, RecursionError])
def test_a_fault_in_any_layer_is_its_own_requests(place, error, monkeypatch):
    with run_live() as server:
        expected = server.complete().json()["choices"]

        def broken(*_: Any, **__: Any) -> Any:
            raise error("secret /usr/lib at 0x7f00")

        with monkeypatch.context() as patched:
            patched.setattr(place, broken)
            answer = server.complete()
            assert answer.status_code == 500
            check_error(answer.text)
            assert "secret" not in answer.text
        assert server.complete().json()["choices"] == expected
        server.manager.wait_until(lambda: server.manager.num_active == 0)
        server.manager.wait_until(lambda: server.state.num_active == 0)
        assert server.state.admission.num_preparing == 0


def test_a_thousand_poisons_leave_nothing_behind(tiny_model):
    """Every one breaks the step that it is in; those beside it never notice."""
    with controlled_server(tiny_model) as (server, runner):
        alone = server.text(**CANARY)
        runner.poison = server.tokenizer.encode("~", add_special_tokens=False)[0]
        for _ in range(25):
            beside = Call(lambda: server.text(**CANARY))
            body = {"prompt": ["~ poison"] * 8, "n": 5, "max_tokens": 2}
            answer = server.http.post("/v1/completions", json=body)
            assert answer.status_code == 500
            check_error(answer.text)
            assert beside.outcome() == alone
        server.wait_until_idle()
        runner.poison = None
        assert server.text(**CANARY) == alone


def test_two_streams_of_one_label_are_two_requests(shared):
    body = {"prompt": "label", "max_tokens": 200, "ignore_eos": True, "stream": True}
    headers = {"X-Request-Id": "same"}

    def stream() -> str:
        answer = shared.http.post(
            "/v1/completions", json={**body, "temperature": 0}, headers=headers
        )
        return joined_texts([event[6:] for event in answer.text.split("\n\n") if event])[0]

    alone = stream()
    other = Call(stream)
    with shared.http.stream("POST", "/v1/completions", json=body, headers=headers) as left:
        next(left.iter_lines())
    assert other.outcome() == alone
    shared.wait_until_idle()


def test_nothing_goes_out_after_the_start(tiny_model, monkeypatch):
    """Whatever a request asks for, the process opens no connection; clients here are threads."""
    opened: list[Any] = []
    connect = socket.socket.connect

    def watched(self: socket.socket, address: Any) -> None:
        host = address[0] if isinstance(address, tuple) else address
        if host not in ("127.0.0.1", "::1"):
            opened.append(address)
        connect(self, address)

    with run_engine_server(tiny_model) as server:
        monkeypatch.setattr(socket.socket, "connect", watched)
        assert server.complete("hello").status_code == 200
        part = {"type": "image_url", "image_url": {"url": "http://192.0.2.1/x.png"}}
        for content in ([part], [{"type": "input_audio", "input_audio": {"data": ""}}]):
            body = {"messages": [{"role": "user", "content": content}]}
            answer = server.http.post("/v1/chat/completions", json=body)
            assert answer.status_code == 400
        assert server.http.get("/metrics").status_code == 200
    assert opened == []
