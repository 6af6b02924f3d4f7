"""What each cached block contains, and the way from a token prefix to its blocks.

Pure data; engine thread only. Every block's content is named by a chain:

    hash(block) = sha256(hash(parent block), tokens of the block)        root = sha256(salt)

Equal names mean equal tokens *and* equal history: where the hashes are equal, the tokens are
compared, back along the chain. A collision can cost a miss, never a wrong answer. Blocks with the
same parent are siblings; the longest common prefix with one of them is what a partial match copies.
"""

import hashlib

import numpy as np
from numpy.typing import NDArray

# A partial match looks at this many siblings, newest first: with a thousand different questions
# behind one system prompt, looking at all of them would cost more than the tokens it saves.
MAX_SIBLINGS_COMPARED = 16


def chain_hash(parent: bytes, content: bytes) -> bytes:
    """Return the hash of a block with this content after the block with the parent's hash."""
    return hashlib.sha256(parent + content).digest()


class BlockName:
    """Names a block by its tokens and all tokens before them.

    Attributes:
        parent: The name of the block before it; None for a root, which names no block.
    """

    __slots__ = ("_content", "_hash", "parent")

    def __init__(self, parent: "BlockName | None", content: bytes) -> None:
        """Chain a name to its parent's; see `root_name` and `child`."""
        self.parent = parent
        self._content = content
        self._hash: bytes = chain_hash(b"" if parent is None else parent._hash, content)

    def child(self, tokens: NDArray[np.int32]) -> "BlockName":
        """Return the name of the block with these tokens after this one."""
        return BlockName(self, tokens.tobytes())

    @property
    def tokens(self) -> NDArray[np.int32]:
        """The block's own tokens: [n] int32, n <= page_size."""
        return np.frombuffer(self._content, dtype=np.int32)

    def __hash__(self) -> int:
        """Return what dictionaries look names up by."""
        return hash(self._hash)

    def __eq__(self, other: object) -> bool:
        """Compare the tokens and the history; O(1) where both share the parent's object."""
        if not isinstance(other, BlockName):
            return NotImplemented
        left: BlockName | None = self
        right: BlockName | None = other
        while left is not None and right is not None:
            if left is right:
                return True
            if left._content != right._content:
                return False
            left, right = left.parent, right.parent
        return left is right


def root_name(salt: str) -> BlockName:
    """Return the parent of a first block; requests with different salts share nothing."""
    return BlockName(None, salt.encode())


class PrefixIndex:
    """Finds blocks by content. Holds no references: a block may be free and still be found."""

    def __init__(self) -> None:
        """Start empty."""
        self._block_of: dict[BlockName, int] = {}
        self._name_of: dict[int, BlockName] = {}
        self._siblings: dict[BlockName, dict[int, None]] = {}

    def __len__(self) -> int:
        """Return how many blocks can be found."""
        return len(self._name_of)

    def __contains__(self, block_id: int) -> bool:
        """Return whether a block can be found."""
        return block_id in self._name_of

    def insert(self, block_id: int, name: BlockName) -> None:
        """Make a block findable, unless another block has this content already.

        Args:
            block_id: A block whose slots for the name's tokens are written and will not change.
            name: What it contains; less than a page for the tail of an ended request.
        """
        if name in self._block_of or block_id in self._name_of:
            return
        assert name.parent is not None, "a root names no block"
        self._block_of[name] = block_id
        self._name_of[block_id] = name
        self._siblings.setdefault(name.parent, {})[block_id] = None

    def find(self, name: BlockName) -> int | None:
        """Return the block with this content, or None."""
        return self._block_of.get(name)

    def name_of(self, block_id: int) -> BlockName:
        """Return what a findable block contains."""
        return self._name_of[block_id]

    def find_partial(self, parent: BlockName, tokens: NDArray[np.int32]) -> tuple[int, int] | None:
        """Return (block, num_tokens) of the sibling that shares the longest prefix with `tokens`.

        None if no sibling shares even the first token.
        """
        best: tuple[int, int] | None = None
        siblings = self._siblings.get(parent, {})
        for _, block_id in zip(range(MAX_SIBLINGS_COMPARED), reversed(siblings), strict=False):
            shared = _common_prefix_length(self._name_of[block_id].tokens, tokens)
            if shared > 0 and (best is None or shared > best[1]):
                best = (block_id, shared)
        return best

    def forget(self, block_id: int) -> None:
        """Make a block unfindable, because it is about to be overwritten."""
        name = self._name_of.pop(block_id, None)
        if name is None:
            return
        assert name.parent is not None, "a root names no block"
        del self._block_of[name]
        siblings = self._siblings[name.parent]
        del siblings[block_id]
        if not siblings:
            del self._siblings[name.parent]

    def clear(self) -> None:
        """Make every block unfindable, as after a change of the model's weights."""
        self._block_of.clear()
        self._name_of.clear()
        self._siblings.clear()


def _common_prefix_length(left: NDArray[np.int32], right: NDArray[np.int32]) -> int:
    length = min(len(left), len(right))
    different = np.nonzero(left[:length] != right[:length])[0]
    return int(different[0]) if len(different) else length
