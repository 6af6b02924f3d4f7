"""Values out of bytes, so that a fuzzer that knows bytes only can steer what is tested."""

from collections.abc import Sequence
from typing import TypeVar

Value = TypeVar("Value")


class Draw:
    """Takes values from the front of some bytes; where they end, everything is zero."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def __bool__(self) -> bool:
        """Whether bytes are left."""
        return self._at < len(self._data)

    def take(self, count: int) -> bytes:
        taken = self._data[self._at : self._at + count]
        self._at += count
        return taken

    def rest(self) -> bytes:
        return self.take(len(self._data))

    def below(self, limit: int) -> int:
        """Return a number from 0 to limit - 1; it takes as many bytes as the limit has."""
        size = (max(limit - 1, 1).bit_length() + 7) // 8
        return int.from_bytes(self.take(size), "little") % limit

    def choose(self, values: Sequence[Value]) -> Value:
        return values[self.below(len(values))]

    def cut(self, text: str) -> list[str]:
        """Cut a text at places of the bytes' choice."""
        pieces = []
        while text and self:
            length = 1 + self.below(8)
            pieces.append(text[:length])
            text = text[length:]
        return [*pieces, text] if text else pieces
