"""Tokenising, its reverse and rendering agree with what answers count."""

import pytest

MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hello"}]


@pytest.mark.parametrize("prefix", ["/v1", ""])
def test_a_text_and_its_tokens(live, prefix):
    answer = live.http.post(f"{prefix}/tokenize", json={"prompt": "hello world"}).json()
    assert answer["tokens"] == live.tokenizer.encode("hello world")
    assert answer["count"] == len(answer["tokens"])
    assert answer["max_model_len"] == 256
    assert "token_strs" not in answer
    back = live.http.post(f"{prefix}/detokenize", json={"tokens": answer["tokens"]}).json()
    assert back == {"prompt": "hello world"}


def test_the_texts_of_tokens_join_to_the_text(live):
    body = {"content": "hello\u00a0w\u00f6rld", "return_token_strs": True}
    answer = live.http.post("/tokenize", json=body).json()
    assert len(answer["token_strs"]) == answer["count"]
    assert "".join(answer["token_strs"]).startswith("hello")


def test_an_empty_text_has_no_tokens_of_its_own(live):
    body = {"prompt": "", "add_special_tokens": False}
    assert live.http.post("/tokenize", json=body).json()["tokens"] == []


def test_the_tokens_of_a_chat_are_those_that_its_answer_counts(live):
    tokens = live.http.post("/tokenize", json={"messages": MESSAGES}).json()
    render = live.http.post("/v1/chat/completions/render", json={"messages": MESSAGES}).json()
    usage = live.chat(messages=MESSAGES).json()["usage"]
    assert tokens["count"] == render["count"] == usage["prompt_tokens"]
    assert tokens["tokens"] == render["prompt_token_ids"] == live.manager.added[0].input_ids
    assert live.tokenizer.decode(tokens["tokens"]) == render["prompt"]
    assert len(live.manager.added) == 1, "neither of them generates"


@pytest.mark.parametrize("fields", [{}, {"truncation_side": "right"}])
@pytest.mark.parametrize("keep", [3, -1])
def test_a_cut_chat_is_cut_alike(live, fields, keep):
    body = {"messages": MESSAGES, "max_tokens": 200, "truncate_prompt_tokens": keep, **fields}
    tokens = live.http.post("/tokenize", json=body).json()
    assert live.chat(**body).json()["usage"]["prompt_tokens"] == tokens["count"]
    assert tokens["tokens"] == live.manager.added[0].input_ids


def test_texts_that_nobody_asks_for_are_not_made(live, monkeypatch):
    monkeypatch.setattr(live.state.setting.vocabulary, "token_text", None)
    assert live.http.post("/tokenize", json={"prompt": "hello"}).status_code == 200


@pytest.mark.parametrize("path", ["/tokenize", "/detokenize", "/v1/chat/completions/render"])
def test_what_has_no_effect_is_reported(live, path):
    bodies: dict[str, dict] = {"/tokenize": {"prompt": "a"}, "/detokenize": {"tokens": [1]}}
    fields = bodies.get(path, {"messages": MESSAGES})
    response = live.http.post(path, json={**fields, "odd": 1})
    assert response.headers["X-Ignored-Params"] == "odd"


def test_a_rendered_chat_shows_the_parameters_of_its_answer(live):
    body = {"messages": MESSAGES, "max_tokens": 5, "temperature": 0.5, "seed": 7}
    sampling = live.http.post("/chat/completions/render", json=body).json()["sampling"]
    assert (sampling["max_new_tokens"], sampling["temperature"], sampling["seed"]) == (5, 0.5, 7)
    live.http.post("/v1/chat/completions", json=body)
    assert live.manager.added[0].arguments == sampling


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "prompt"),
        ({"prompt": "a", "messages": MESSAGES}, "prompt"),
        ({"prompt": "a", "content": "b"}, "prompt"),
        ({"prompt": 1}, "prompt"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "nobody", "content": ""}]}, "messages.0.role"),
        ({"prompt": "a", "model": "nope"}, "model"),
    ],
)
def test_what_cannot_be_tokenised_is_refused_by_name(live, body, param):
    response = live.http.post("/tokenize", json=body)
    assert response.status_code == (404 if param == "model" else 400)
    assert response.json()["error"]["param"] == param


@pytest.mark.parametrize(
    ("path", "param"),
    [
        ("/v1/tokenize", "messages"),
        ("/v1/chat/completions", "messages"),
        ("/v1/chat/completions/render", "messages"),
        ("/v1/messages", None),
        ("/v1/messages/count_tokens", None),
        ("/v1/responses", "input"),
        ("/v1/responses/input_tokens", "input"),
    ],
)
def test_a_chat_of_no_messages_is_refused(live, path, param):
    name = "input" if "responses" in path else "messages"
    response = live.http.post(path, json={name: [], "max_tokens": 5})
    assert response.status_code == 400
    assert response.json()["error"].get("param") == param
    assert name in response.json()["error"]["message"]


@pytest.mark.parametrize("tokens", [[-1], [10**6], [2**31], ["a"], [True], "hello", None])
def test_tokens_that_do_not_exist_are_refused(live, tokens):
    response = live.http.post("/detokenize", json={"tokens": tokens})
    assert response.status_code == 400
    assert response.json()["error"]["param"].startswith("tokens")


def test_a_chat_that_cannot_be_answered_cannot_be_rendered_either(live):
    long = [{"role": "user", "content": "hello " * 500}]
    response = live.http.post("/v1/chat/completions/render", json={"messages": long})
    assert response.json()["error"]["code"] == "context_length_exceeded"
    body = {"messages": MESSAGES, "n": 1000}
    response = live.http.post("/v1/chat/completions/render", json=body)
    assert response.json()["error"]["param"] == "n"


def test_the_tokenizer_describes_itself(live):
    info = live.http.get("/v1/tokenizer_info").json()
    assert info["eos_token"] == live.tokenizer.eos_token
    assert info["chat_template"] == live.tokenizer.chat_template
    assert info["vocab_size"] == len(live.tokenizer)
