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
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.\-]{0,63}")
_HEX = re.compile(r"[0-9a-f]{64}")


class KeyFormatError(ValueError):
    """A line of keys cannot be read; the text says which and never holds the key."""


@dataclass(frozen=True, slots=True)
class Key:
    """One key.

    Attributes:
        name: What logs call its holder.
        digest: sha256 of the key.
    """

    name: str
    digest: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class KeyRing:
    """The keys of clients and those of administrators.

    Attributes:
        clients: Open everything but /admin.
        admins: Open everything.
    """

    clients: tuple[Key, ...] = ()
    admins: tuple[Key, ...] = ()

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
    """Read keys: one in a line, as KEY or NAME KEY; blank lines and # comments are skipped.

    Args:
        lines: The text.
        origin: Where it stands, for errors and for the names of keys that have none.

    Raises:
        KeyFormatError: A line has too many words, or a key is too short, or a name is used twice.
    """
    keys: list[Key] = []
    for number, line in enumerate(lines, start=1):
        words = line.split("#", 1)[0].split()
        if not words:
            continue
        place = f"{origin}, line {number}"
        if len(words) > 2:
            raise KeyFormatError(f"{place}: write KEY or NAME KEY")
        name = words[0] if len(words) == 2 else f"key-{len(keys) + 1}"
        if not _NAME.fullmatch(name):
            raise KeyFormatError(f"{place}: a name has letters, digits, dots, dashes and low lines")
        if any(key.name == name for key in keys):
            raise KeyFormatError(f"{place}: the name {name} is used twice")
        keys.append(Key(name, _digest(words[-1], place)))
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
    return hashlib.sha256(text.encode()).digest()
