"""Who may ask: keys as hashes, compared in constant time.

A key is a bearer secret of high entropy, so that one sha256 is enough to keep it: there is nothing
to guess by trying. Plain keys are hashed while they are read and kept nowhere. Pure.
"""

import hashlib
import hmac
import re
from collections.abc import Iterable
from dataclasses import dataclass, field

HASHED = "sha256:"
MIN_KEY_CHARACTERS = 8
# Hexadecimal digits of its hash that name a key without a name.
NAME_DIGITS = 12
_COMMENT = re.compile(r"(^|\s)#.*")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.\-]{0,63}")
_HEX = re.compile(r"[0-9a-f]{64}")


class KeyFormatError(ValueError):
    """A line of keys cannot be used; the text says which and never holds the key."""


@dataclass(frozen=True, slots=True)
class Key:
    """One key.

    Attributes:
        name: Its holder, in logs and as the owner of what is left here.
        digest: sha256 of the key.
        place: Where it was read, for errors.
    """

    name: str
    digest: bytes = field(repr=False)
    place: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class KeyRing:
    """The keys of clients and those of administrators; no two are alike or have one name.

    Attributes:
        clients: Open everything but /admin.
        admins: Open everything.
    """

    clients: tuple[Key, ...] = ()
    admins: tuple[Key, ...] = ()

    def __post_init__(self) -> None:
        """Raise KeyFormatError if a name or a key would stand for two holders."""
        digests: dict[bytes, Key] = {}
        names: dict[str, Key] = {}
        for key in (*self.clients, *self.admins):
            other = digests.setdefault(key.digest, key)
            if other is not key:
                raise KeyFormatError(f"{key.place}: it is the key of {other.place}, too")
            other = names.setdefault(key.name, key)
            if other is not key:
                raise KeyFormatError(
                    f"{key.place}: the name {key.name} is that of {other.place}, too"
                )

    def named(self, name: str) -> Key | None:
        """Return the key of a holder, None if there is no such key any more."""
        return next((key for key in (*self.clients, *self.admins) if key.name == name), None)

    @property
    def is_empty(self) -> bool:
        """Whether nobody needs a key, because there is none."""
        return not self.clients and not self.admins


def find_key(keys: Iterable[Key], presented: bytes) -> Key | None:
    """Return the key that was presented.

    Every key is compared, in time that depends on neither: an early end would tell which matched.
    """
    digest = hashlib.sha256(presented).digest()
    found = None
    for key in keys:
        if hmac.compare_digest(key.digest, digest):
            found = key
    return found


def parse_keys(lines: Iterable[str], *, origin: str) -> tuple[Key, ...]:
    """Read keys: one in a line, as KEY or NAME KEY.

    Blank lines are skipped, and comments, which a # begins at the start of a line or after a blank;
    elsewhere it is part of a key. A key without a name is called after its hash, so that its name
    is its own whatever other keys there are, and where.

    Args:
        lines: The text.
        origin: Where it stands, for errors.

    Raises:
        KeyFormatError: A line has too many words, or a name or a key cannot be one.
    """
    keys: list[Key] = []
    for number, line in enumerate(lines, start=1):
        words = _COMMENT.sub("", line).split()
        if not words:
            continue
        place = f"{origin}, line {number}"
        if len(words) > 2:
            raise KeyFormatError(f"{place}: write KEY or NAME KEY")
        digest = _digest(words[-1], place)
        name = words[0] if len(words) == 2 else f"key-{digest.hex()[:NAME_DIGITS]}"
        if not _NAME.fullmatch(name):
            raise KeyFormatError(f"{place}: a name has letters, digits, dots, dashes and low lines")
        keys.append(Key(name, digest, place))
    return tuple(keys)


def _digest(text: str, place: str) -> bytes:
    """Return the hash of a key that is written as it is or as its hash."""
    if text.startswith(HASHED):
        digits = text.removeprefix(HASHED).lower()
        if not _HEX.fullmatch(digits):
            raise KeyFormatError(f"{place}: write {HASHED} and 64 hexadecimal digits")
        return bytes.fromhex(digits)
    if len(text) < MIN_KEY_CHARACTERS:
        raise KeyFormatError(f"{place}: a key has at least {MIN_KEY_CHARACTERS} characters")
    if not text.isascii():
        raise KeyFormatError(f"{place}: a key has ASCII characters only, since headers have")
    return hashlib.sha256(text.encode()).digest()
