"""Resolving what a request asks for: defaults, ranges, lengths, ends, seeds."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import GenerationConfig

from engine.errors import ClientError, InvalidRequestError, PromptTooLongError
from engine.sampling.options import KNOWN_OPTIONS, SamplingLimits
from engine.sampling.parameters import DEFAULT_TOP_K, SamplingParams, resolve_sampling

LIMITS = SamplingLimits(vocab_size=100, max_model_tokens=64, seed=1)


def resolve(options=None, config=None, num_prompt_tokens=4, limits=LIMITS, request_index=0):
    return resolve_sampling(
        config or GenerationConfig(),
        limits,
        options or {},
        num_prompt_tokens=num_prompt_tokens,
        request_index=request_index,
    )


# Greedy or sampled


def test_nothing_given_is_greedy_as_in_generate():
    assert resolve().greedy


def test_do_sample_alone_samples_as_generate_does():
    params = resolve({"do_sample": True})
    assert (params.temperature, params.top_k, params.top_p) == (1.0, DEFAULT_TOP_K, 1.0)
    assert GenerationConfig._get_default_generation_params()["top_k"] == DEFAULT_TOP_K


@pytest.mark.parametrize(
    ("options", "config", "temperature"),
    [
        ({"temperature": 0.7}, {}, 0.7),
        ({"temperature": 0}, {"do_sample": True}, 0.0),
        ({"temperature": 1e-8}, {}, 0.0),
        ({"temperature": 0.7, "do_sample": False}, {"do_sample": True}, 0.0),
        ({"temperature": 0, "do_sample": True}, {}, 0.0),
        ({}, {"do_sample": True, "temperature": 0.6}, 0.6),
        ({"temperature": None, "do_sample": None}, {"do_sample": True, "temperature": 0.6}, 0.6),
        ({}, {"temperature": 0.6}, 0.0),
        ({"do_sample": False}, {"do_sample": True}, 0.0),
        ({"do_sample": True}, {"do_sample": False, "temperature": 0.3}, 0.3),
    ],
)
def test_who_decides_between_greedy_and_sampling(options, config, temperature):
    assert resolve(options, GenerationConfig(**config)).temperature == temperature


def test_greedy_rows_carry_no_shape():
    params = resolve({"temperature": 0, "top_k": 5, "top_p": 0.5, "min_p": 0.1})
    assert (params.top_k, params.top_p, params.min_p) == (0, 1.0, 0.0)


def test_the_configuration_gives_defaults_and_the_request_overrides_each():
    config = GenerationConfig(
        do_sample=True, top_k=7, top_p=0.8, min_p=0.1, repetition_penalty=1.3, temperature=0.5
    )
    params = resolve({"top_p": 0.4, "top_k": None}, config)
    assert (params.top_k, params.top_p, params.min_p) == (7, 0.4, 0.1)
    assert params.repetition_penalty == 1.3


@pytest.mark.parametrize("off", [0, -1])
def test_top_k_can_be_switched_off(off):
    assert resolve({"temperature": 1, "top_k": off}).top_k == 0


# Names, types and ranges


def test_an_unknown_option_is_named_with_the_known_ones():
    with pytest.raises(InvalidRequestError, match=r"'topp'.*top_p") as caught:
        resolve({"topp": 1})
    assert caught.value.param == "topp"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("do_sample", 1),
        ("do_sample", "true"),
        ("ignore_eos", 0),
        ("temperature", -0.1),
        ("temperature", 101),
        ("temperature", True),
        ("temperature", "0.5"),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("temperature", 10**400),
        ("top_k", -2),
        ("top_k", 1.5),
        ("top_k", True),
        ("top_p", -0.1),
        ("top_p", 1.1),
        ("min_p", 2),
        ("seed", 1.0),
        ("seed", True),
        ("seed", "7"),
        ("repetition_penalty", 0),
        ("repetition_penalty", math.nan),
        ("presence_penalty", 1e9),
        ("frequency_penalty", [1]),
        ("logit_bias", [1, 2]),
        ("logit_bias", {100: 1.0}),
        ("logit_bias", {-1: 1.0}),
        ("logit_bias", {"5": 1.0}),
        ("logit_bias", {5: math.inf}),
        ("logit_bias", {5: math.nan}),
        ("logit_bias", {5: 1e39}),
        ("eos_token_id", 100),
        ("eos_token_id", [1, "2"]),
        ("eos_token_id", True),
        ("stop_token_ids", 5),
        ("stop_token_ids", "5"),
        ("stop_token_ids", [-1]),
        ("stop_token_ids", [100]),
        ("stop_token_ids", {5: 1}),
        ("min_new_tokens", -1),
        ("min_new_tokens", 2.0),
        ("max_new_tokens", 0),
        ("max_new_tokens", -3),
        ("max_new_tokens", False),
        ("top_logprobs", -1),
        ("top_logprobs", 101),
        ("top_logprobs", True),
    ],
)
def test_a_bad_value_is_refused_and_its_option_named(name, value):
    with pytest.raises(InvalidRequestError) as caught:
        resolve({name: value})
    assert caught.value.param == name
    assert name in str(caught.value)


def test_a_long_bad_value_does_not_fill_the_message():
    with pytest.raises(InvalidRequestError) as caught:
        resolve({"temperature": "x" * 10_000})
    assert len(str(caught.value)) < 200


def test_values_are_checked_in_greedy_requests_too():
    with pytest.raises(InvalidRequestError):
        resolve({"temperature": 0, "top_p": 7})


def test_numpy_numbers_are_numbers():
    params = resolve({"temperature": np.float32(0.5), "top_k": np.int64(3), "seed": np.int32(4)})
    assert (params.temperature, params.top_k, params.seed) == (0.5, 3, 4)
    assert type(params.top_k) is int


@given(
    st.dictionaries(
        st.sampled_from(KNOWN_OPTIONS),
        st.one_of(
            st.none(),
            st.booleans(),
            st.integers(),
            st.floats(),
            st.sampled_from(["", "1", "é"]),
            st.lists(st.integers(-2, 110), max_size=3),
            st.dictionaries(st.integers(-2, 110), st.floats(), max_size=3),
        ),
    )
)
def test_any_input_resolves_or_is_the_callers_error(options):
    try:
        params = resolve(options)
    except ClientError:
        return
    assert isinstance(params, SamplingParams)
    assert 1 <= params.max_new_tokens <= 60
    assert 0 <= params.min_new_tokens <= params.max_new_tokens
    assert 0.0 <= params.temperature <= 100.0
    assert 0 <= params.seed < 2**64
    assert all(math.isfinite(bias) for bias in params.logit_bias.values())


# How an answer ends


@pytest.mark.parametrize(
    ("options", "config", "expected"),
    [
        ({}, None, set()),
        ({}, 7, {7}),
        ({}, [7, 8], {7, 8}),
        ({}, [7, 1000], {7}),
        ({"eos_token_id": 3}, 7, {3}),
        ({"eos_token_id": [3, 4]}, 7, {3, 4}),
        ({"eos_token_id": -1}, 7, set()),
        ({"eos_token_id": [-1, 5]}, 7, {5}),
        ({"ignore_eos": True}, 7, set()),
        ({"ignore_eos": True, "eos_token_id": 5}, 7, set()),
        ({"ignore_eos": False}, 7, {7}),
    ],
)
def test_end_of_sequence_ids(options, config, expected):
    assert resolve(options, GenerationConfig(eos_token_id=config)).eos_token_ids == expected


def test_stop_ids_are_kept_apart_from_eos():
    params = resolve({"stop_token_ids": [5, 5, 6], "ignore_eos": True})
    assert params.stop_token_ids == {5, 6}
    assert params.eos_token_ids == frozenset()


@pytest.mark.parametrize(
    ("options", "config", "expected"),
    [
        ({}, {}, 60),
        ({}, {"max_new_tokens": 5}, 5),
        ({}, {"max_new_tokens": 500}, 60),
        ({"max_new_tokens": 9}, {"max_new_tokens": 5}, 9),
        ({"max_new_tokens": 60}, {}, 60),
        ({}, {"max_length": 20}, 60),
    ],
)
def test_length_of_the_answer(options, config, expected):
    assert resolve(options, GenerationConfig(**config)).max_new_tokens == expected


def test_an_answer_that_does_not_fit_is_refused_with_the_numbers():
    with pytest.raises(PromptTooLongError) as caught:
        resolve({"max_new_tokens": 61})
    error = caught.value
    assert (error.num_prompt_tokens, error.num_new_tokens, error.max_model_tokens) == (4, 61, 64)


@pytest.mark.parametrize("num_prompt_tokens", [64, 65])
def test_a_prompt_that_leaves_no_room_is_refused(num_prompt_tokens):
    with pytest.raises(PromptTooLongError) as caught:
        resolve({"max_new_tokens": 3}, num_prompt_tokens=num_prompt_tokens)
    assert caught.value.num_new_tokens is None


def test_a_prompt_that_leaves_one_token_is_taken():
    assert resolve(num_prompt_tokens=63).max_new_tokens == 1


def test_a_minimum_above_the_maximum_is_refused():
    with pytest.raises(InvalidRequestError) as caught:
        resolve({"min_new_tokens": 6, "max_new_tokens": 5})
    assert caught.value.param == "min_new_tokens"


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"min_new_tokens": 3}, 3),
        ({"min_new_tokens": 9}, 5),
        ({"min_length": 7}, 3),
        ({"min_length": 2}, 0),
        ({"min_length": 7, "min_new_tokens": 1}, 1),
    ],
)
def test_a_default_minimum_is_cut_to_the_answer(config, expected):
    config = GenerationConfig(**config)
    assert resolve({"max_new_tokens": 5}, config).min_new_tokens == expected


@pytest.mark.parametrize(("length", "expected"), [(0, 0), (4, 0), (6, 2), (60, 5)])
def test_a_least_length_counts_the_prompt_and_wins_over_the_configuration(length, expected):
    config = GenerationConfig(min_new_tokens=1, min_length=9)
    options = {"min_length": length, "max_new_tokens": 5}
    assert resolve(options, config).min_new_tokens == expected


# Seeds


@pytest.mark.parametrize(("seed", "bits"), [(5, 5), (-1, 2**64 - 1), (2**64 + 3, 3)])
def test_any_integer_is_a_seed(seed, bits):
    assert resolve({"seed": seed}).seed == bits


def test_unseeded_requests_of_a_seeded_engine_repeat_and_differ():
    seeds = [resolve(request_index=index).seed for index in range(50)]
    assert len(set(seeds)) == 50
    assert seeds == [resolve(request_index=index).seed for index in range(50)]


def test_unseeded_requests_of_an_unseeded_engine_differ():
    limits = SamplingLimits(vocab_size=100, max_model_tokens=64)
    assert resolve(limits=limits).seed != resolve(limits=limits).seed


def test_logprobs_are_off_unless_asked_for():
    assert resolve().top_logprobs is None
    assert resolve({"top_logprobs": 0}).top_logprobs == 0
