"""Block tables: what a request is given, what it leaves behind, and what others may use of it."""

import numpy as np
import pytest

from engine.batch import BlockCopy
from engine.cache.block_manager import BlockManager
from tests.engine.builders import make_request
from tests.engine.soundness import check_blocks

PAGE = 4


@pytest.fixture
def holders(cache_is_sound):
    """The requests that hold blocks when the test is over; others must hold none."""
    return cache_is_sound.holders


def make_blocks(num_blocks=8, **options):
    return BlockManager(num_blocks, PAGE, **{"allow_sharing": True, **options})


def compute(blocks, request, num_tokens=None):
    """Do what a step does: make room, compute, enter in the index."""
    num_tokens = request.num_tokens if num_tokens is None else num_tokens
    assert blocks.extend(request, num_tokens)
    request.num_computed = num_tokens
    blocks.commit(request)


def leave_behind(blocks, prompt, **options):
    """Let a request with this prompt come and go; return the blocks it had."""
    request = make_request("before", prompt)
    compute(blocks, request)
    table = list(request.block_ids)
    blocks.free(request, **options)
    return table


def tokens(count, first=1):
    return list(range(first, first + count))


@pytest.mark.parametrize(("num_tokens", "num_blocks"), [(1, 1), (4, 1), (5, 2), (8, 2), (9, 3)])
def test_a_request_gets_as_many_blocks_as_its_positions_need(num_tokens, num_blocks, holders):
    blocks, request = make_blocks(), make_request()
    assert blocks.num_missing_blocks(request, num_tokens) == num_blocks
    assert blocks.extend(request, num_tokens)
    holders.append(request)
    assert len(request.block_ids) == num_blocks
    assert blocks.num_missing_blocks(request, num_tokens) == 0


def test_extending_beyond_the_free_blocks_changes_nothing(holders):
    blocks, request = make_blocks(num_blocks=2), make_request()
    assert blocks.extend(request, 4)
    assert not blocks.extend(request, 13)
    holders.append(request)
    assert len(request.block_ids) == 1
    assert blocks.pool.num_free == 1


def test_extending_never_shrinks(holders):
    blocks, request = make_blocks(), make_request()
    assert blocks.extend(request, 9)
    assert blocks.extend(request, 2)
    holders.append(request)
    assert len(request.block_ids) == 3


def test_a_prompt_seen_before_is_attached_but_for_its_last_token(holders):
    blocks = make_blocks()
    table = leave_behind(blocks, tokens(9))
    request = make_request("again", tokens(9))
    assert blocks.attach_prefix(request) is None
    holders.append(request)
    assert request.block_ids == table[:2]
    assert (request.num_computed, request.num_cached_tokens) == (8, 8)


def test_a_prompt_of_whole_pages_leaves_its_last_token_to_compute(holders):
    """Its logits are needed, and they are computed and not stored."""
    blocks = make_blocks()
    table = leave_behind(blocks, tokens(8))
    request = make_request("again", tokens(8))
    copy = blocks.attach_prefix(request)
    holders.append(request)
    assert request.num_computed == 7
    assert copy == BlockCopy(table[1], request.block_ids[1], 3)
    assert request.block_ids[1] != table[1]


def test_a_partly_matching_page_is_copied_up_to_the_first_difference(holders):
    blocks = make_blocks()
    table = leave_behind(blocks, [1, 2, 3, 4, 5, 6, 7, 8])
    request = make_request("other", [1, 2, 3, 4, 5, 6, 0, 0, 0])
    copy = blocks.attach_prefix(request)
    holders.append(request)
    assert copy == BlockCopy(table[1], request.block_ids[1], 2)
    assert request.block_ids[0] == table[0]
    assert request.num_computed == 6


def test_the_tail_of_an_ended_request_can_be_copied(holders):
    blocks = make_blocks()
    table = leave_behind(blocks, tokens(6))
    request = make_request("longer", tokens(12))
    copy = blocks.attach_prefix(request)
    holders.append(request)
    assert copy == BlockCopy(table[1], request.block_ids[1], 2)
    assert request.num_computed == 6


def test_generated_tokens_are_found_by_a_following_turn(holders):
    blocks = make_blocks()
    first = make_request("turn 1", tokens(3))
    first.generated_tokens.extend([10, 11, 12, 13, 14, 15])
    compute(blocks, first, first.num_tokens - 1)
    blocks.free(first)
    second = make_request("turn 2", [*tokens(3), 10, 11, 12, 13, 14, 15, 50, 51])
    blocks.attach_prefix(second)
    holders.append(second)
    assert second.num_computed == 8


def test_the_only_free_block_is_not_copied_into_itself(holders):
    blocks = make_blocks(num_blocks=2)
    leave_behind(blocks, tokens(4))
    other = make_request("other", tokens(4, first=50))
    compute(blocks, other)
    request = make_request("again", [1, 2, 0, 0])
    assert blocks.pool.num_free == 1
    assert blocks.attach_prefix(request) is None
    holders.extend([other, request])
    assert (request.block_ids, request.num_computed) == ([], 0)


def test_detaching_undoes_attaching():
    blocks = make_blocks()
    leave_behind(blocks, tokens(9))
    request = make_request("again", tokens(8))
    blocks.attach_prefix(request)
    blocks.detach(request)
    assert (request.block_ids, request.num_computed, request.num_indexed_blocks) == ([], 0, 0)
    assert blocks.pool.num_free == 8
    assert blocks.attach_prefix(request) is not None
    assert request.num_computed == 7
    blocks.detach(request)


def test_a_block_is_shared_while_its_first_holder_still_runs(holders):
    blocks = make_blocks()
    first, second = make_request("first", tokens(9)), make_request("second", tokens(9))
    compute(blocks, first)
    blocks.attach_prefix(second)
    holders.extend([first, second])
    assert second.block_ids == first.block_ids[:2]
    assert [blocks.pool.ref_count(block) for block in second.block_ids] == [2, 2]


def test_an_open_block_is_not_found():
    """Its holder still writes to it."""
    blocks = make_blocks()
    first, second = make_request("first", tokens(6)), make_request("second", tokens(6))
    compute(blocks, first)
    blocks.attach_prefix(second)
    assert second.num_computed == 4
    blocks.free(first)
    blocks.free(second)


def test_a_reused_block_is_no_longer_found(holders):
    blocks = make_blocks(num_blocks=2)
    leave_behind(blocks, tokens(8))
    other = make_request("other", tokens(8, first=50))
    compute(blocks, other)
    again = make_request("again", tokens(8))
    assert blocks.attach_prefix(again) is None
    holders.append(other)
    assert again.num_computed == 0


def test_the_tail_of_a_prompt_is_reused_before_its_head():
    blocks = make_blocks(num_blocks=3)
    table = leave_behind(blocks, tokens(12))
    assert blocks.pool.free_blocks() == table[::-1]


def test_a_failed_request_leaves_nothing_to_find():
    """What it wrote may be the reason for its failure."""
    blocks = make_blocks()
    leave_behind(blocks, tokens(9), discard=True)
    request = make_request("again", tokens(9))
    assert blocks.attach_prefix(request) is None
    assert (request.num_computed, len(blocks.index)) == (0, 0)


def test_a_failed_request_leaves_what_others_hold_too(holders):
    blocks = make_blocks()
    first, second = make_request("first", tokens(5)), make_request("second", tokens(5))
    compute(blocks, first)
    blocks.attach_prefix(second)
    blocks.free(first, discard=True)
    holders.append(second)
    assert second.block_ids[0] in blocks.index
    assert blocks.pool.ref_count(second.block_ids[0]) == 1


def test_a_second_block_with_the_same_content_is_blank_when_freed(holders):
    blocks = make_blocks()
    first, second = make_request("first", tokens(4)), make_request("second", tokens(4))
    for request in (first, second):
        compute(blocks, request)
    block = second.block_ids[0]
    blocks.free(second)
    holders.append(first)
    assert block not in blocks.index
    assert blocks.pool.free_blocks()[0] == block


def test_what_follows_a_second_block_is_found_behind_the_first():
    """Two equal prompts are computed side by side; both answers must be findable later."""
    blocks = make_blocks()
    for name, answer in (("first", [20, 21, 22, 23]), ("second", [30, 31, 32, 33])):
        request = make_request(name, tokens(4))
        request.generated_tokens.extend(answer)
        assert blocks.extend(request, 8)
        request.num_computed = 8
        blocks.free(request)
    follower = make_request("follower", [*tokens(4), 30, 31, 32, 33, 9])
    blocks.attach_prefix(follower)
    assert follower.num_computed == 8
    blocks.free(follower)


def test_salts_keep_requests_apart():
    blocks = make_blocks()
    leave_behind(blocks, tokens(9))
    request = make_request("again", tokens(9), salt="tenant")
    assert blocks.attach_prefix(request) is None
    assert request.num_computed == 0


def test_nothing_is_shared_or_indexed_when_sharing_is_off():
    blocks = make_blocks(allow_sharing=False)
    leave_behind(blocks, tokens(9))
    request = make_request("again", tokens(9))
    assert blocks.attach_prefix(request) is None
    assert (len(blocks.index), request.num_computed) == (0, 0)


def test_a_preempted_request_finds_its_own_blocks_again():
    blocks = make_blocks()
    request = make_request("r", tokens(5))
    request.generated_tokens.extend([20, 21, 22])
    compute(blocks, request, 7)
    blocks.free(request)
    request.num_preemptions = 1
    blocks.attach_prefix(request)
    assert request.num_computed == 7
    # The prompt's share of the cache is reported as it was when the request first started.
    assert request.num_cached_tokens == 0
    blocks.free(request)


def test_names_of_blocks_are_made_once(monkeypatch):
    """A blocked queue head is matched in every step; hashing its prompt each time would show."""
    blocks, request = make_blocks(), make_request("r", tokens(9))
    leave_behind(blocks, tokens(9))
    blocks.attach_prefix(request)
    names = list(request.block_names)
    blocks.detach(request)
    blocks.attach_prefix(request)
    assert all(new is old for new, old in zip(request.block_names, names, strict=True))
    blocks.detach(request)


def test_the_accounting_check_notices_a_leak():
    """The check that guards every engine test must itself be able to fail."""
    blocks, request = make_blocks(), make_request("r", tokens(5))
    compute(blocks, request)
    with pytest.raises(AssertionError):
        check_blocks(blocks, [])
    blocks.index.name_of(request.block_ids[0])._content = np.int32(9).tobytes() * 4
    with pytest.raises(AssertionError):
        check_blocks(blocks, [request])
    blocks.free(request, discard=True)
    blocks.index.clear()
