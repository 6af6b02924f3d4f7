"""Wire names to the engine's arguments."""

import pytest
from transformers import GenerationConfig

from api_schemas import ChatCompletionRequest, CompletionRequest
from server.parameters import (
    OPENAI_DEFAULTS,
    RequestLimits,
    check_limits,
    default_stops,
    sampling_defaults,
    to_request_kwargs,
    to_text_options,
    truncate_prompt,
)
from server.request_errors import ContextLengthError, RequestError

LIMITS = RequestLimits(max_model_tokens=100)


def chat(**fields) -> ChatCompletionRequest:
    messages = [{"role": "user", "content": "a"}]
    return ChatCompletionRequest.model_validate({"messages": messages, **fields})


def completion(**fields) -> CompletionRequest:
    return CompletionRequest.model_validate({"prompt": "a", **fields})


def arguments(body, *, prompt: int = 10, limits: RequestLimits = LIMITS) -> dict:
    return to_request_kwargs(body, num_prompt_tokens=prompt, limits=limits)


def test_a_silent_chat_leaves_everything_to_the_engine():
    assert arguments(chat()) == {}


def test_a_silent_completion_has_the_default_length():
    assert arguments(completion()) == {"max_new_tokens": 16}
    assert arguments(completion(), prompt=95) == {"max_new_tokens": 5}


def test_defaults_yield_to_the_request():
    limits = RequestLimits(max_model_tokens=100, sampling_defaults={"temperature": 0.3})
    assert arguments(chat(), limits=limits) == {"temperature": 0.3}
    assert arguments(chat(temperature=0), limits=limits) == {"temperature": 0.0}


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (GenerationConfig(), {"temperature": 1.0, "top_k": 0}),
        (GenerationConfig(temperature=0.6, top_p=0.9), {"temperature": 0.6, "top_k": 0}),
        (GenerationConfig(temperature=0.6, top_k=20), {"temperature": 0.6}),
        (GenerationConfig(do_sample=False), {"top_k": 0}),
        (GenerationConfig(do_sample=True, temperature=0.7), {"top_k": 0}),
        (GenerationConfig(do_sample=True, top_k=0), {}),
        (GenerationConfig(do_sample=True, top_k=50), {}),
        (None, {"temperature": 1.0, "top_k": 0}),
    ],
)
def test_the_models_defaults_rule_as_far_as_they_go(config, expected):
    assert sampling_defaults("model", config) == expected


def test_openai_defaults_replace_the_models():
    assert sampling_defaults("openai", GenerationConfig(do_sample=False)) == OPENAI_DEFAULTS


@pytest.mark.parametrize("seed", [0, 7, 2**63 - 1, -1])
def test_the_seed_is_the_first_choices_and_the_engine_counts_on(seed):
    assert arguments(chat(seed=seed, n=3))["seed"] == seed


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (chat(logprobs=True), 0),
        (chat(logprobs=True, top_logprobs=5), 5),
        (completion(logprobs=0), 0),
        (completion(logprobs=3), 3),
    ],
)
def test_logprobs_ask_for_alternatives(body, expected):
    assert arguments(body)["top_logprobs"] == expected


@pytest.mark.parametrize("body", [chat(max_tokens=91), completion(max_tokens=91)])
def test_an_answer_that_does_not_fit_is_refused_with_the_numbers(body):
    with pytest.raises(ContextLengthError, match=r"100 tokens.*10 in.*max_tokens.*91") as caught:
        arguments(body)
    assert caught.value.code == "context_length_exceeded"


@pytest.mark.parametrize("prompt", [100, 5000])
def test_a_prompt_without_room_is_refused(prompt):
    for body, param in ((chat(), "messages"), (completion(max_tokens=1), "prompt")):
        with pytest.raises(ContextLengthError, match=str(prompt)) as caught:
            arguments(body, prompt=prompt)
        assert caught.value.param == param
        assert "max_tokens" not in str(caught.value), "the prompt alone is to blame"


def test_minus_one_is_all_that_fits():
    assert arguments(chat(max_tokens=-1))["max_new_tokens"] == 90
    assert arguments(chat(max_completion_tokens=-1, max_tokens=3))["max_new_tokens"] == 90


def test_min_tokens_must_fit():
    with pytest.raises(RequestError) as caught:
        arguments(chat(min_tokens=91))
    assert caught.value.param == "min_tokens"
    assert arguments(chat(min_tokens=90))["min_new_tokens"] == 90


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (chat(n=17), "n"),
        (chat(stop=[str(number) for number in range(17)]), "stop"),
        (chat(logprobs=True, top_logprobs=21), "top_logprobs"),
        (completion(logprobs=21), "logprobs"),
        (completion(prompt=["a"] * 129), "prompt"),
    ],
)
def test_limits_are_the_operators(body, param):
    with pytest.raises(RequestError) as caught:
        check_limits(body, LIMITS)
    assert caught.value.param == param
    wide = RequestLimits(100, 1000, 1000, 1000, 1000)
    check_limits(body, wide)


def test_text_options_come_from_the_request():
    options = to_text_options(
        chat(stop="a", include_stop_str_in_output=True, skip_special_tokens=False, min_tokens=3),
        LIMITS,
    )
    assert (options.stops, options.include_stop) == (("a",), True)
    assert (options.skip_special_tokens, options.min_tokens) == (False, 3)


def test_the_models_own_stop_strings_end_every_answer():
    config = GenerationConfig(stop_strings=["<end>", "x"])
    limits = RequestLimits(100, default_stops=default_stops(config))
    assert to_text_options(chat(stop="a"), limits).stops == ("a", "<end>", "x")
    assert default_stops(GenerationConfig(stop_strings="one")) == ("one",)
    assert default_stops(GenerationConfig()) == default_stops(None) == ()


@pytest.mark.parametrize(
    ("fields", "kept"),
    [
        ({}, [0, 1, 2, 3, 4]),
        ({"truncate_prompt_tokens": 2}, [3, 4]),
        ({"truncate_prompt_tokens": 9}, [0, 1, 2, 3, 4]),
        ({"truncate_prompt_tokens": 2, "truncation_side": "right"}, [0, 1]),
        ({"truncate_prompt_tokens": -1, "max_tokens": 3}, [2, 3, 4]),
    ],
)
def test_a_prompt_is_cut_as_asked(fields, kept):
    limits = RequestLimits(6)
    assert truncate_prompt([0, 1, 2, 3, 4], completion(**fields), limits) == kept


@pytest.mark.parametrize(
    ("body", "prompt", "answer"),
    [
        (completion(prompt_logprobs=2), 2, None),
        (completion(echo=True, logprobs=1), 1, 1),
        (completion(echo=True, logprobs=1, prompt_logprobs=3), 3, 1),
        (completion(echo=True), None, None),
        (completion(n=1, best_of=2), None, 0),
        (chat(prompt_logprobs=0), 0, None),
    ],
)
def test_reports_are_asked_for_by_prompt_and_answer(body, prompt, answer):
    asked = arguments(body)
    assert (asked.get("prompt_logprobs"), asked.get("top_logprobs")) == (prompt, answer)
