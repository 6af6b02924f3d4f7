"""What each cached block contains, and the way from a token prefix to its blocks.

Pure data; engine thread only. Every block's content is named by a chain:

    hash(block) = sha256(hash(parent block), tokens of the block)        root = sha256(salt)

so equal hashes mean equal tokens *and* equal history. The tokens are kept and compared on a hit as
well: a collision can cost a miss, never a wrong answer. Blocks with the same parent are siblings;
the longest common prefix with one of them is what a partial match copies.
"""

import hashlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

# A partial match looks at this many siblings, newest first: with a thousand different questions
# behind one system prompt, looking at all of them would cost more than the tokens it saves.
MAX_SIBLINGS_COMPARED = 16


def root_hash(salt: str) -> bytes:
    """Return the parent of a first block; requests with different salts share nothing."""
    return hashlib.sha256(salt.encode()).digest()


def chain_hash(parent: bytes, tokens: NDArray[np.int32]) -> bytes:
    """Return the name of the block with these tokens after this parent."""
    return hashlib.sha256(parent + tokens.tobytes()).digest()


@dataclass(frozen=True, slots=True)
class _Entry:
    """What one indexed block contains."""

    name: bytes
    parent: bytes
    tokens: NDArray[np.int32]


class PrefixIndex:
    """Finds blocks by content. Holds no references: a block may be free and still be found."""

    def __init__(self) -> None:
        """Start empty."""
        self._block_of: dict[bytes, int] = {}
        self._entry_of: dict[int, _Entry] = {}
        self._siblings: dict[bytes, dict[int, None]] = {}

    def __len__(self) -> int:
        """Return how many blocks can be found."""
        return len(self._entry_of)

    def __contains__(self, block_id: int) -> bool:
        """Return whether a block can be found."""
        return block_id in self._entry_of

    def insert(self, block_id: int, name: bytes, parent: bytes, tokens: NDArray[np.int32]) -> None:
        """Make a block findable, unless another block has this content already.

        Args:
            block_id: A block whose slots for `tokens` are written and will not change.
            name: `chain_hash(parent, tokens)`.
            parent: Name of the block before it, or `root_hash`.
            tokens: [n] int32, n <= page_size; fewer than a page for the tail of an ended request.
        """
        if name in self._block_of or block_id in self._entry_of:
            return
        self._block_of[name] = block_id
        self._entry_of[block_id] = _Entry(name, parent, tokens)
        self._siblings.setdefault(parent, {})[block_id] = None

    def find(self, name: bytes, tokens: NDArray[np.int32]) -> int | None:
        """Return the block with this name and these very tokens, or None."""
        block_id = self._block_of.get(name)
        if block_id is None or not np.array_equal(self._entry_of[block_id].tokens, tokens):
            return None
        return block_id

    def find_partial(self, parent: bytes, tokens: NDArray[np.int32]) -> tuple[int, int] | None:
        """Return (block, num_tokens) of the sibling that shares the longest prefix with `tokens`.

        None if no sibling shares even the first token.
        """
        best: tuple[int, int] | None = None
        siblings = self._siblings.get(parent, {})
        for _, block_id in zip(range(MAX_SIBLINGS_COMPARED), reversed(siblings), strict=False):
            shared = _common_prefix_length(self._entry_of[block_id].tokens, tokens)
            if shared > 0 and (best is None or shared > best[1]):
                best = (block_id, shared)
        return best

    def forget(self, block_id: int) -> None:
        """Make a block unfindable, because it is about to be overwritten."""
        entry = self._entry_of.pop(block_id, None)
        if entry is None:
            return
        del self._block_of[entry.name]
        siblings = self._siblings[entry.parent]
        del siblings[block_id]
        if not siblings:
            del self._siblings[entry.parent]

    def clear(self) -> None:
        """Make every block unfindable, as after a change of the model's weights."""
        self._block_of.clear()
        self._entry_of.clear()
        self._siblings.clear()


def _common_prefix_length(left: NDArray[np.int32], right: NDArray[np.int32]) -> int:
    length = min(len(left), len(right))
    different = np.nonzero(left[:length] != right[:length])[0]
    return int(different[0]) if len(different) else length
