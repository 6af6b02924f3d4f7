"""Finding blocks by content: right ones only, whatever the hashes do."""

import numpy as np
import pytest

from engine.cache import prefix_index
from engine.cache.prefix_index import MAX_SIBLINGS_COMPARED, PrefixIndex, root_name


def page(*tokens):
    return np.array(tokens, dtype=np.int32)


def name(*pages, salt=""):
    found = root_name(salt)
    for tokens in pages:
        found = found.child(page(*tokens))
    return found


@pytest.fixture(params=["sha256", "constant"])
def hashes(request, monkeypatch):
    """Run a test with names that collide, too: they may cost speed only."""
    if request.param == "constant":
        monkeypatch.setattr(prefix_index, "chain_hash", lambda parent, content: b"same")


pytestmark = pytest.mark.usefixtures("hashes")


def test_a_block_is_found_by_its_tokens_and_its_history():
    index = PrefixIndex()
    index.insert(3, name((1, 2), (3, 4)))
    assert index.find(name((1, 2), (3, 4))) == 3


@pytest.mark.parametrize(
    ("pages", "salt"),
    [
        (((1, 2), (3, 5)), ""),
        (((1, 9), (3, 4)), ""),
        (((3, 4),), ""),
        (((1, 2), (1, 2), (3, 4)), ""),
        (((1, 2), (3, 4)), "tenant"),
        (((1, 2), (3,)), ""),
    ],
    ids=["tokens", "history", "no history", "longer history", "salt", "fewer tokens"],
)
def test_a_block_with_another_content_is_not_found(pages, salt):
    index = PrefixIndex()
    index.insert(3, name((1, 2), (3, 4)))
    assert index.find(name(*pages, salt=salt)) is None


def test_names_that_differ_only_in_an_early_page_are_unequal():
    """Guards against comparing no further than the parent."""
    assert name((1,), (2,), (3,), (4,)) != name((9,), (2,), (3,), (4,))
    assert name((1,), (2,), (3,), (4,)) == name((1,), (2,), (3,), (4,))


def test_a_name_equals_nothing_but_names():
    assert name((1,)) != "a string"


def test_the_first_of_two_blocks_with_one_content_is_kept():
    index = PrefixIndex()
    index.insert(3, name((1, 2)))
    index.insert(4, name((1, 2)))
    assert index.find(name((1, 2))) == 3
    assert 4 not in index
    assert len(index) == 1


def test_a_block_keeps_its_first_content_until_it_is_forgotten():
    index = PrefixIndex()
    index.insert(3, name((1, 2)))
    index.insert(3, name((5, 6)))
    assert index.find(name((5, 6))) is None
    index.forget(3)
    index.insert(3, name((5, 6)))
    assert index.find(name((5, 6))) == 3


def test_the_longest_common_prefix_wins_a_partial_match():
    index = PrefixIndex()
    parent = name((0, 0, 0, 0))
    index.insert(1, parent.child(page(1, 2, 9, 9)))
    index.insert(2, parent.child(page(1, 2, 3, 9)))
    index.insert(3, parent.child(page(1, 9, 9, 9)))
    assert index.find_partial(parent, page(1, 2, 3, 4)) == (2, 3)


def test_a_partial_match_needs_the_same_parent_and_one_common_token():
    index = PrefixIndex()
    index.insert(1, name((0, 0), (1, 2)))
    assert index.find_partial(name((0, 1)), page(1, 2)) is None
    assert index.find_partial(name((0, 0)), page(2, 1)) is None
    assert index.find_partial(name((0, 0)), page(1)) == (1, 1)


def test_a_tail_shorter_than_a_page_can_be_matched_in_part():
    index = PrefixIndex()
    index.insert(1, name((7,)))
    assert index.find_partial(root_name(""), page(7, 8, 9)) == (1, 1)


def test_a_partial_match_looks_at_the_newest_siblings_only():
    index = PrefixIndex()
    root = root_name("")
    index.insert(0, root.child(page(5, 6, 7)))
    for block in range(1, MAX_SIBLINGS_COMPARED):
        index.insert(block, root.child(page(5, 100 + block)))
    assert index.find_partial(root, page(5, 6, 7)) == (0, 3)
    index.insert(99, root.child(page(5, 99)))
    assert index.find_partial(root, page(5, 6, 7)) == (99, 1)


def test_forgetting_a_block_leaves_its_siblings_and_children():
    index = PrefixIndex()
    index.insert(1, name((1, 2)))
    index.insert(2, name((1, 3)))
    index.insert(3, name((1, 2), (4, 5)))
    index.forget(1)
    assert index.find(name((1, 2))) is None
    assert index.find_partial(root_name(""), page(1, 2)) == (2, 1)
    assert index.find(name((1, 2), (4, 5))) == 3
    assert len(index) == 2


def test_forgetting_the_last_sibling_leaves_nothing_behind():
    """A leak here grows with every prompt an engine has ever seen."""
    index = PrefixIndex()
    index.insert(1, name((1, 2)))
    index.forget(1)
    assert (index._block_of, index._name_of, index._siblings) == ({}, {}, {})


def test_forgetting_an_unknown_block_does_nothing():
    index = PrefixIndex()
    index.forget(7)
    assert len(index) == 0


def test_a_cleared_index_finds_nothing_and_fills_again():
    index = PrefixIndex()
    index.insert(1, name((1, 2)))
    index.clear()
    assert index.find(name((1, 2))) is None
    assert index.find_partial(root_name(""), page(1)) is None
    index.insert(1, name((1, 2)))
    assert index.find(name((1, 2))) == 1
