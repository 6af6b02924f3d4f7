"""Prompts at the door: what is one, and what is refused with its name."""

import numpy as np
import pytest
import torch

from engine.errors import InvalidRequestError
from engine.prompts import check_prompt

VOCAB = 100


@pytest.mark.parametrize(
    "prompt",
    [
        [1, 2, 99],
        (1, 2, 99),
        np.array([1, 2, 99], dtype=np.int16),
        np.array([1, 2, 99], dtype=np.uint64),
        torch.tensor([1, 2, 99]),
        [np.int64(1), 2, np.int32(99)],
        range(0, 100, 99),
    ],
    ids=["list", "tuple", "int16", "uint64", "tensor", "numpy ints", "range"],
)
def test_a_sequence_of_ids_becomes_a_list_of_plain_ints(prompt):
    checked = check_prompt(prompt, VOCAB)
    assert checked == [int(token) for token in prompt]
    assert {type(token) for token in checked} == {int}


def test_the_prompt_is_copied():
    prompt = [1, 2, 3]
    checked = check_prompt(prompt, VOCAB)
    prompt[0] = 50
    assert checked == [1, 2, 3]


@pytest.mark.parametrize(
    "prompt",
    [
        [],
        [[1, 2]],
        [[1], [2, 3]],
        np.zeros((2, 0), dtype=np.int64),
        5,
        None,
        "text",
        b"bytes",
        ["1"],
        [1.0, 2.0],
        [True, False],
        [None],
        [1, None],
        {1, 2},
        {1: 2},
        [10**30],
        torch.ones(2, requires_grad=True),
    ],
    ids=repr,
)
def test_what_is_no_list_of_ids_is_refused(prompt):
    with pytest.raises(InvalidRequestError, match="input_ids") as caught:
        check_prompt(prompt, VOCAB)
    assert caught.value.param == "input_ids"


@pytest.mark.parametrize(("prompt", "wrong"), [([1, 100], "100"), ([-1, 5], "-1")])
def test_ids_outside_the_vocabulary_are_refused_by_value(prompt, wrong):
    with pytest.raises(InvalidRequestError, match=rf"holds {wrong}.*\[0, 100\)"):
        check_prompt(prompt, VOCAB)
