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
    first = hashlib.sha256(b"first-key-here").hexdigest()
    assert [key.name for key in found] == [f"key-{first[:12]}", "anna", "bob"]
    for text, key in zip(
        ("first-key-here", "second-key-here", "third-key-here"), found, strict=True
    ):
        assert find_key(found, text.encode()) == key
    assert find_key(found, digest.encode()) is None, "the hash itself opens nothing"
    assert find_key(found, b"") is None


@pytest.mark.parametrize(
    "line",
    [
        f"a b {SECRET}",
        f"näme {SECRET}",
        f"sha256:{SECRET}",
        "short",
        f"a/b {SECRET}",
        f"{SECRET}-ä",
    ],
)
def test_a_line_that_is_no_key_is_named_and_not_shown(line):
    with pytest.raises(KeyFormatError, match=r"keys\.txt, line 2: ") as caught:
        parse_keys(["", line], origin="keys.txt")
    assert SECRET not in str(caught.value)


def test_a_comment_begins_a_line_or_follows_a_blank():
    lines = ["first#key#here", "anna other-key#here # hers", "\t# nobodys-key", "#nobodys-key"]
    found = parse_keys(lines, origin="f")
    assert len(found) == 2
    assert find_key(found, b"first#key#here") == found[0]
    assert find_key(found, b"other-key#here") == found[1]


def ring(clients: list[str], admins: list[str] | None = None) -> KeyRing:
    return KeyRing(parse_keys(clients, origin="one"), parse_keys(admins or [], origin="other"))


@pytest.mark.parametrize(
    ("clients", "admins"),
    [
        (["a first-key-here", "a other-key-here"], []),
        (["a first-key-here"], ["a other-key-here"]),
        ([f"key-{hashlib.sha256(SECRET.encode()).hexdigest()[:12]} other-key-here", SECRET], []),
    ],
)
def test_a_name_stands_for_one_key(clients, admins):
    with pytest.raises(KeyFormatError, match="line 1, too"):
        ring(clients, admins)


@pytest.mark.parametrize(
    ("clients", "admins"),
    [
        ([SECRET, SECRET], []),
        ([f"a {SECRET}", f"b {SECRET}"], []),
        ([f"a {SECRET}"], [f"sha256:{hashlib.sha256(SECRET.encode()).hexdigest()}"]),
    ],
)
def test_a_key_stands_for_one_holder(clients, admins):
    with pytest.raises(KeyFormatError, match="the key of one, line 1, too") as caught:
        ring(clients, admins)
    assert SECRET not in str(caught.value)


def test_every_key_is_compared_whatever_is_presented(monkeypatch):
    found = parse_keys([f"{letter}-key-number" for letter in "abcd"], origin="f")
    compared = []

    def spy(one: bytes, other: bytes) -> bool:
        compared.append(one)
        return hmac.compare_digest(one, other)

    monkeypatch.setattr(keys, "hmac", type("spied", (), {"compare_digest": staticmethod(spy)}))
    for presented in (b"a-key-number", b"d-key-number", b"nothing of ours", b""):
        compared.clear()
        find_key(found, presented)
        assert len(compared) == 4


def test_a_ring_shows_no_secret():
    digest = hashlib.sha256(SECRET.encode()).digest()
    shown = repr(KeyRing(clients=(Key("a", digest),)))
    assert digest.hex() not in shown
    assert repr(digest) not in shown
