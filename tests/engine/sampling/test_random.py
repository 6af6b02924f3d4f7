"""Counter-based numbers: known answers, uniformity, and dependence on nothing else."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.sampling.random import MASK_64, derive_seed, philox, uniform

words = st.integers(0, MASK_64)

# Random123 1.14, tests/kat_vectors, "philox4x32 10": counter, key, result.
KNOWN_ANSWERS = [
    (
        (0, 0, 0, 0),
        (0, 0),
        (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8),
    ),
    (
        (0xFFFFFFFF,) * 4,
        (0xFFFFFFFF,) * 2,
        (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
    ),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN_ANSWERS)
def test_philox_gives_the_published_answers(counter, key, expected):
    result = philox(
        np.array(counter, dtype=np.uint64)[:, None], np.array(key, dtype=np.uint64)[:, None]
    )
    assert tuple(result[:, 0].tolist()) == expected


def test_philox_keeps_columns_apart():
    counters = np.array([answer[0] for answer in KNOWN_ANSWERS], dtype=np.uint64).T
    keys = np.array([answer[1] for answer in KNOWN_ANSWERS], dtype=np.uint64).T
    assert philox(counters, keys).T.tolist() == [list(answer[2]) for answer in KNOWN_ANSWERS]


@given(st.lists(st.tuples(words, words), min_size=1, max_size=8))
def test_a_number_is_the_same_alone_and_in_company(pairs):
    together = uniform([seed for seed, _ in pairs], [position for _, position in pairs])
    assert together.tolist() == [uniform([seed], [position])[0] for seed, position in pairs]


@given(words, words)
def test_numbers_are_below_one(seed, position):
    assert 0.0 <= uniform([seed], [position])[0] < 1.0


def test_the_largest_number_is_below_one():
    # All 53 bits set is the value that a careless conversion would round to 1.
    assert (MASK_64 >> 11) * 2.0**-53 < 1.0


@pytest.mark.parametrize("varied", ["seed", "position"])
def test_numbers_are_uniform_along_seeds_and_along_positions(varied):
    count, num_bins = 50_000, 100
    line = list(range(count))
    fixed = [7] * count
    numbers = uniform(line, fixed) if varied == "seed" else uniform(fixed, line)
    observed = np.histogram(numbers, bins=num_bins, range=(0, 1))[0]
    expected = count / num_bins
    chi_square = ((observed - expected) ** 2 / expected).sum()
    assert 60 < chi_square < 150  # 99 degrees of freedom: 0.1 % lie beyond either end
    assert abs(np.corrcoef(numbers[:-1], numbers[1:])[0, 1]) < 0.02


def test_high_halves_of_seed_and_position_matter():
    high = 1 << 32
    numbers = uniform([1, 1 + high, 1, 1], [2, 2, 2 + high, 3])
    assert len(set(numbers.tolist())) == 4


def test_derived_seeds_differ_and_are_no_draws():
    seeds = {derive_seed(5, index) for index in range(2000)}
    assert len(seeds) == 2000
    assert all(0 <= seed <= MASK_64 for seed in seeds)
    draws = set(uniform([5] * 2000, list(range(2000))).tolist())
    assert draws.isdisjoint((seed >> 11) * 2.0**-53 for seed in seeds)


def test_global_generators_are_left_alone():
    torch.manual_seed(3)
    np.random.seed(3)
    expected = torch.rand(1).item(), np.random.rand()
    torch.manual_seed(3)
    np.random.seed(3)
    uniform([1, 2], [3, 4])
    assert (torch.rand(1).item(), np.random.rand()) == expected
