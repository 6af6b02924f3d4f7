"""Counter-based random numbers: a draw is a function of (seed, position) and of nothing else.

No generator state exists, so a request draws the same numbers alone, in a crowd, after a
preemption or in another process. Pure functions on numpy arrays; any thread. Must never touch
torch's or numpy's global generators.

Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC 2011), Philox-4x32-10;
constants and known answers as in the Random123 distribution (`philox.h`, `kat_vectors`).
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint64]

MASK_64 = 0xFFFF_FFFF_FFFF_FFFF
_NUM_ROUNDS = 10
_LOW_32 = np.uint64(0xFFFF_FFFF)
_SHIFT_32 = np.uint64(32)
_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_KEY_STEPS = (np.uint64(0x9E3779B9), np.uint64(0xBB67AE85))

# The last counter word separates streams that share a key, so that the seeds derived for
# requests never coincide with the numbers drawn for tokens.
_DOMAIN_DRAW = 0
_DOMAIN_SEED = 1


def philox(counter: Words, key: Words) -> Words:
    """Return the Philox-4x32-10 block of each column.

    Args:
        counter: [4, N] uint64, each holding a 32-bit word.
        key: [2, N] uint64, likewise.

    Returns:
        [4, N] uint64, each holding a 32-bit random word.
    """
    word_0, word_1, word_2, word_3 = counter
    key_0, key_1 = key
    for _ in range(_NUM_ROUNDS):
        product_0 = _MULTIPLIERS[0] * word_0  # two 32-bit factors fit in 64 bits
        product_1 = _MULTIPLIERS[1] * word_2
        word_0 = (product_1 >> _SHIFT_32) ^ word_1 ^ key_0
        word_2 = (product_0 >> _SHIFT_32) ^ word_3 ^ key_1
        word_1 = product_1 & _LOW_32
        word_3 = product_0 & _LOW_32
        key_0 = (key_0 + _KEY_STEPS[0]) & _LOW_32
        key_1 = (key_1 + _KEY_STEPS[1]) & _LOW_32
    return np.stack((word_0, word_1, word_2, word_3))


def uniform(seeds: Sequence[int], positions: Sequence[int]) -> npt.NDArray[np.float64]:
    """Return one number in [0, 1) for each (seed, position).

    Args:
        seeds: N seeds, each in [0, 2**64).
        positions: N positions, each in [0, 2**64).

    Returns:
        [N] float64, multiples of 2**-53; 1.0 cannot occur.
    """
    words = _blocks(seeds, positions, _DOMAIN_DRAW)
    bits = ((words[0] << _SHIFT_32) | words[1]) >> np.uint64(11)  # the 53 a float64 can hold
    numbers: npt.NDArray[np.float64] = bits.astype(np.float64) * 2.0**-53
    return numbers


def derive_seed(seed: int, index: int) -> int:
    """Return a 64-bit seed for the index-th request of an engine that has a seed of its own.

    Args:
        seed: The engine's seed, in [0, 2**64).
        index: The request's place in the order of submission, in [0, 2**64).
    """
    words = _blocks([seed], [index], _DOMAIN_SEED)
    return int(words[0, 0]) << 32 | int(words[1, 0])


def _blocks(seeds: Sequence[int], positions: Sequence[int], domain: int) -> Words:
    """Return the block of each (seed, position): the seed is the key, the position counts."""
    seed = np.array(seeds, dtype=np.uint64)
    position = np.array(positions, dtype=np.uint64)
    zero = np.zeros_like(position)
    counter = np.stack(
        (position & _LOW_32, position >> _SHIFT_32, zero, zero + np.uint64(domain)), axis=0
    )
    return philox(counter, np.stack((seed & _LOW_32, seed >> _SHIFT_32)))
