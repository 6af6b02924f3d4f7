"""POST /v1/completions over a live server, whole and streamed."""

import json
import threading
from dataclasses import replace

import pytest

from server.settings import Settings
from tests.server.fakes import ids_of, make_metaspace_tokenizer
from tests.server.live import TEXT, LiveServer, run_live


def stream(live: LiveServer, **fields) -> list[dict]:
    response = live.complete(stream=True, **fields)
    assert response.status_code == 200, response.text
    *frames, done, rest = response.text.split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    return [json.loads(frame.removeprefix("data: ")) for frame in frames]


def text_of(chunks: list[dict], index: int) -> str:
    return "".join(c["text"] for chunk in chunks for c in chunk["choices"] if c["index"] == index)


def answers_prompt(live: LiveServer) -> None:
    """Let each answer repeat its own prompt, so that mixed-up answers show."""
    live.manager.script = lambda ids, _arguments: [*ids, live.tokenizer.eos_token_id]


def test_a_whole_answer_has_the_keys_of_the_contract(live):
    body = live.complete().json()
    assert body["id"].startswith("cmpl-")
    assert body["object"] == "text_completion"
    choice = body["choices"][0]
    assert set(choice) == {"index", "text", "logprobs", "finish_reason"}
    assert TEXT.startswith(choice["text"])
    assert choice["finish_reason"] == "length"
    assert body["usage"]["completion_tokens"] == 16


def test_chunks_have_the_same_shape_as_the_answer(live):
    chunks = stream(live, stream_options={"include_usage": True})
    for chunk in chunks[:-1]:
        assert chunk["object"] == "text_completion"
        assert set(chunk["choices"][0]) == {"index", "text", "logprobs", "finish_reason"}
        assert chunk["usage"] is None
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == 16


@pytest.mark.parametrize("prompt", ["one two", ["one two"], [300, 301, 302], [[300, 301, 302]]])
def test_the_four_forms_of_a_prompt(live, prompt):
    body = live.complete(prompt=prompt).json()
    assert [choice["index"] for choice in body["choices"]] == [0]
    asked = live.manager.added[0].input_ids
    if isinstance(prompt, list) and not isinstance(prompt[0], str):
        assert asked == [300, 301, 302]
    else:
        assert asked == live.tokenizer.encode("one two", add_special_tokens=False)


@pytest.mark.parametrize("streamed", [False, True])
def test_each_answer_belongs_to_its_prompt_and_choice(live, streamed):
    answers_prompt(live)
    prompts = ["one", "two three", "four", "five six seven eight"]
    expected = [prompt for prompt in prompts for _ in range(2)]
    if streamed:
        chunks = stream(live, prompt=prompts, n=2)
        assert [text_of(chunks, index) for index in range(8)] == expected
        ends = [c["index"] for k in chunks for c in k["choices"] if c["finish_reason"]]
        assert sorted(ends) == list(range(8))
    else:
        body = live.complete(prompt=prompts, n=2).json()
        assert [choice["text"] for choice in body["choices"]] == expected
        assert [choice["index"] for choice in body["choices"]] == list(range(8))


def test_all_prompts_run_at_once(live):
    live.manager.paused.set()

    def release():
        live.manager.wait_until(lambda: live.manager.num_active == 5)
        live.manager.paused.clear()

    thread = threading.Thread(target=release)
    thread.start()
    assert live.complete(prompt=["a", "b", "c", "d", "e"]).status_code == 200
    thread.join()


def test_cached_tokens_are_summed_over_prompts(live):
    live.manager.num_cached_tokens = 2
    fields = {"prompt": ["one", "two", "three"], "n": 2}
    usage = live.complete(**fields).json()["usage"]
    assert usage["prompt_tokens_details"] == {"cached_tokens": 6}
    assert stream(live, **fields, stream_options={"include_usage": True})[-1]["usage"] == usage


@pytest.mark.parametrize(
    "prompt", [[], [[]], [[1], []], ["a", []], [1, "a"], [[1], "a"], [1.5], [True], 5, None, {}]
)
def test_a_bad_prompt_is_a_400(live, prompt):
    response = live.complete(prompt=prompt)
    assert response.status_code == 400
    assert response.json()["error"]["param"].startswith("prompt")
    assert live.complete().status_code == 200


@pytest.mark.parametrize("prompt", ["", [""], ["", ""], ["", "one"]])
def test_an_empty_text_begins_with_bos(live, prompt):
    assert live.complete(prompt=prompt).status_code == 200
    assert live.manager.added[0].input_ids == [live.tokenizer.bos_token_id]


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("prompt", ["one two é", [1, 300, 301]])
def test_echo_puts_the_prompt_first(live, streamed, prompt):
    expected = prompt if isinstance(prompt, str) else live.tokenizer.decode(prompt)
    fields = {"prompt": prompt, "echo": True, "n": 2, "max_tokens": 3}
    if streamed:
        chunks = stream(live, **fields)
        texts = [text_of(chunks, index) for index in (0, 1)]
        firsts: dict[int, str] = {}
        for chunk in chunks:
            firsts.setdefault(chunk["choices"][0]["index"], chunk["choices"][0]["text"])
        assert firsts == {0: expected, 1: expected}
    else:
        texts = [choice["text"] for choice in live.complete(**fields).json()["choices"]]
    assert texts == [expected + "hello world"] * 2


@pytest.mark.parametrize("streamed", [False, True])
def test_echo_without_tokens_generates_nothing(live, streamed):
    fields = {"prompt": "one two", "echo": True, "max_tokens": 0}
    if streamed:
        chunks = stream(live, **fields, stream_options={"include_usage": True})
        assert text_of(chunks, 0) == "one two"
        usage = chunks[-1]["usage"]
    else:
        body = live.complete(**fields).json()
        assert body["choices"][0]["text"] == "one two"
        assert body["choices"][0]["finish_reason"] == "length"
        usage = body["usage"]
    assert usage["completion_tokens"] == 0
    assert usage["prompt_tokens"] > 0
    assert live.manager.added == []


@pytest.mark.parametrize("stop", ["two", "a text that never comes"])
@pytest.mark.parametrize("streamed", [False, True])
def test_legacy_logprobs_are_four_lists_of_one_length(live, streamed, stop):
    live.says("hé🦙 one two", eos=True)
    fields = {"logprobs": 2, "stop": [stop]}
    whole = live.complete(**fields).json()["choices"][0]
    entries = whole["logprobs"]
    if streamed:
        parts = [c for k in stream(live, **fields) for c in k["choices"] if c["logprobs"]]
        entries = {
            name: [item for part in parts for item in part["logprobs"][name]] for name in entries
        }
    assert entries == whole["logprobs"]
    lengths = {len(values) for values in entries.values()}
    assert len(lengths) == 1
    offsets = entries["text_offset"]
    assert offsets == sorted(offsets)
    assert offsets[0] == 0
    assert all(offset <= len(whole["text"]) for offset in offsets)
    for offset, token in zip(offsets, entries["tokens"], strict=True):
        rest = whole["text"][offset:]
        if "\ufffd" not in token:
            assert rest.startswith(token) or token.startswith(rest), "the stop cut the last one"
    for value, top in zip(entries["token_logprobs"], entries["top_logprobs"], strict=True):
        assert value == max(top.values()), "the greedy test of evaluation harnesses"


def test_no_alternatives_reports_the_chosen_token(live):
    entries = live.complete(logprobs=0, max_tokens=4).json()["choices"][0]["logprobs"]
    assert entries["token_logprobs"] == [-0.5] * 4
    assert entries["top_logprobs"] == [{token: -0.5} for token in entries["tokens"]]
    assert joined(stream(live, logprobs=0, max_tokens=4), 0) == entries


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"logprobs": 21}, "logprobs"),
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ({"prompt_logprobs": 21}, "prompt_logprobs"),
        ({"truncation_side": "middle"}, "truncation_side"),
        ({"suffix": "x"}, "suffix"),
        ({"n": 3, "best_of": 2}, "best_of"),
        ({"best_of": 17}, "best_of"),
        ({"best_of": 2, "stream": True}, "best_of"),
        ({"prompt": ["a"] * 129}, "prompt"),
    ],
)
def test_a_bad_value_is_a_400_that_names_it(live, fields, param):
    response = live.complete(**fields)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param


def test_best_of_equal_to_n_and_an_empty_suffix_pass(live):
    assert live.complete(n=2, best_of=2, suffix="").status_code == 200


def test_the_default_length_is_clamped_to_the_context():
    with run_live(max_model_tokens=20) as live:
        assert live.complete(prompt=[300] * 15).json()["usage"]["completion_tokens"] == 5
        response = live.complete(prompt=[300] * 20)
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "prompt"


def test_a_sentencepiece_vocabulary_keeps_its_blanks_in_a_stream():
    tokenizer = make_metaspace_tokenizer()
    words = ids_of(tokenizer, ["▁hello", "▁world", ".", "▁hello"])
    settings = Settings()
    with run_live(tokenizer=tokenizer, settings=_on_free_port(settings)) as live:
        live.manager.script = lambda _ids, _arguments: [*words, tokenizer.eos_token_id]
        chunks = stream(live, prompt=[5])
        assert text_of(chunks, 0) == tokenizer.decode(words) == "hello world. hello"
        assert live.chat().json()["error"]["code"] == "no_chat_template"


def _on_free_port(settings: Settings) -> Settings:
    return replace(settings, server=replace(settings.server, port=0))


def joined(chunks: list[dict], index: int) -> dict:
    """The logprobs of a streamed choice, joined."""
    pieces = [c["logprobs"] for chunk in chunks for c in chunk["choices"] if c["index"] == index]
    return {
        key: [item for piece in pieces if piece for item in piece[key]]
        for key in ("tokens", "token_logprobs", "top_logprobs", "text_offset")
    }


@pytest.mark.parametrize("prompt", ["one two", ["one two", "three"], [300, 301, 302]])
@pytest.mark.parametrize("max_tokens", [0, 1, 3])
@pytest.mark.parametrize("n", [1, 2])
def test_echo_with_logprobs_reports_prompt_and_answer(live, prompt, max_tokens, n):
    fields = {"prompt": prompt, "echo": True, "logprobs": 2, "max_tokens": max_tokens, "n": n}
    body = live.complete(**fields).json()
    chunks = stream(live, **fields)
    assert body["usage"]["completion_tokens"] == max_tokens * len(body["choices"])
    for choice in body["choices"]:
        prompt_ids = live.manager.added[choice["index"]].input_ids
        logprobs = choice["logprobs"]
        assert len(logprobs["tokens"]) == len(prompt_ids) + max_tokens
        assert {len(logprobs[key]) for key in logprobs} == {len(logprobs["tokens"])}
        assert (logprobs["token_logprobs"][0], logprobs["top_logprobs"][0]) == (None, None)
        assert None not in logprobs["token_logprobs"][1:]
        for likely, chosen in zip(
            logprobs["top_logprobs"][1:], logprobs["token_logprobs"][1:], strict=True
        ):
            assert max(likely.values()) == chosen, "the fake model is greedy"
        for token, offset in zip(logprobs["tokens"], logprobs["text_offset"], strict=True):
            assert choice["text"][offset:].startswith(token)
        assert joined(chunks, choice["index"]) == logprobs
        assert text_of(chunks, choice["index"]) == choice["text"]


@pytest.mark.parametrize("streamed", [False, True])
def test_prompt_logprobs_stand_where_a_choice_begins(live, streamed):
    fields = {"prompt": [300, 301, 302], "prompt_logprobs": 1, "max_tokens": 2}
    objects = stream(live, **fields) if streamed else [live.complete(**fields).json()]
    first, second, third = objects[0]["choices"][0]["prompt_logprobs"]
    assert first is None
    assert list(second) == ["301"]
    assert set(third["302"]) == {"logprob", "rank", "decoded_token"}
    assert all("prompt_logprobs" not in one["choices"][0] for one in objects[1:])
    assert objects[0]["choices"][0]["logprobs"] is None


def test_the_best_of_several_answers_are_given(live):
    answers = [[310], [311], [312], [313]]
    live.manager.script = lambda _ids, arguments: answers[arguments["seed"] - 7]
    live.manager.logprob_of = lambda token: {310: -3.0, 311: -1.0, 312: -2.0, 313: -4.0}[token]
    body = live.complete(n=2, best_of=4, seed=7, max_tokens=1).json()
    expected = [live.tokenizer.decode([token]) for token in (311, 312)]
    assert [choice["text"] for choice in body["choices"]] == expected
    assert [choice["index"] for choice in body["choices"]] == [0, 1]
    assert all(choice["logprobs"] is None for choice in body["choices"])
    assert body["usage"]["completion_tokens"] == 4


@pytest.mark.parametrize(("side", "kept"), [("left", [301, 302]), ("right", [300, 301])])
def test_a_truncated_prompt_is_what_is_computed_counted_and_echoed(live, side, kept):
    fields = {"truncate_prompt_tokens": 2, "truncation_side": side, "echo": True}
    body = live.complete(prompt=[300, 301, 302], max_tokens=1, **fields).json()
    assert live.manager.added[0].input_ids == kept
    assert body["usage"]["prompt_tokens"] == 2
    assert body["choices"][0]["text"].startswith(live.tokenizer.decode(kept))


def test_the_text_of_a_prompt_is_made_off_the_event_loop(live, monkeypatch):
    encoder, names = live.state.encoder, []
    real = encoder._decode

    def decode(token_ids):
        names.append(threading.current_thread().name)
        return real(token_ids)

    monkeypatch.setattr(encoder, "_decode", decode)
    prompt = live.tokenizer.encode("hello")
    text = live.complete(prompt=prompt, echo=True, max_tokens=1).json()["choices"][0]["text"]
    assert text.startswith("hello")
    assert names
    assert all("prompt-encoding" in name for name in names)
