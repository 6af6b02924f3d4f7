"""Keys: read once, kept as hashes, compared all, shown never."""

import hashlib
import hmac

import pytest

from server import keys
from server.keys import Key, KeyFormatError, KeyRing, find_key, parse_keys

SECRET = "a-secret-of-some-length"


def test_a_line_is_a_key_or_a_name_and_a_key():
    digest = hashlib.sha256(b"third-key-here").hexdigest()
    lines = ["# ours", "", "first-key-here", "anna second-key-here  # Anna", f"bob sha256:{digest}"]
    found = parse_keys(lines, origin="file")
    assert [key.name for key in found] == ["key-1", "anna", "bob"]
    for text, key in zip(
        ("first-key-here", "second-key-here", "third-key-here"), found, strict=True
    ):
        assert find_key(found, text.encode()) == key
    assert find_key(found, digest.encode()) is None, "the hash itself opens nothing"
    assert find_key(found, b"") is None


@pytest.mark.parametrize(
    "line", [f"a b {SECRET}", f"näme {SECRET}", f"sha256:{SECRET}", "short", f"a/b {SECRET}"]
)
def test_a_line_that_is_no_key_is_named_and_not_shown(line):
    with pytest.raises(KeyFormatError, match=r"keys\.txt, line 2: ") as caught:
        parse_keys(["", line], origin="keys.txt")
    assert SECRET not in str(caught.value)


def test_a_name_stands_for_one_key():
    with pytest.raises(KeyFormatError, match="used twice"):
        parse_keys(["a first-key-here", "a other-key-here"], origin="f")


def test_every_key_is_compared_whatever_is_presented(monkeypatch):
    ring = parse_keys([f"{letter}-key-number" for letter in "abcd"], origin="f")
    compared = []

    def spy(one: bytes, other: bytes) -> bool:
        compared.append(one)
        return hmac.compare_digest(one, other)

    monkeypatch.setattr(keys, "hmac", type("spied", (), {"compare_digest": staticmethod(spy)}))
    for presented in (b"a-key-number", b"d-key-number", b"nothing of ours", b""):
        compared.clear()
        find_key(ring, presented)
        assert len(compared) == 4


def test_a_ring_shows_no_secret():
    digest = hashlib.sha256(SECRET.encode()).digest()
    ring = KeyRing(clients=(Key("a", digest),))
    assert digest.hex() not in repr(ring)
    assert repr(digest) not in repr(ring)
