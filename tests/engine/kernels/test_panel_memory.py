"""Packed weights share few mappings, keep apart, and leave their places to others."""

import errno
import gc
import mmap
import weakref

import torch

from engine.kernels.cpu.panel_memory import (
    ALIGNMENT,
    CHUNK_BYTES,
    LARGE_PAGE,
    MAX_SHARED_BYTES,
    PanelMemory,
)

SIZE = 3 << 20


def take(memory: PanelMemory, num_bytes: int = SIZE) -> torch.Tensor:
    return memory.empty(num_bytes, dtype=torch.uint8)


def test_pieces_follow_one_another_from_the_beginning_of_a_large_page():
    memory = PanelMemory()
    first, second = memory.empty(3, 5, dtype=torch.float32), take(memory)
    assert first.shape == (3, 5)
    assert first.data_ptr() % LARGE_PAGE == 0
    assert second.data_ptr() == first.data_ptr() + ALIGNMENT
    assert memory.holds(first)
    assert memory.holds(second)


def test_what_is_written_to_one_piece_is_in_no_other():
    memory = PanelMemory()
    pieces = [take(memory, num_bytes).fill_(i) for i, num_bytes in enumerate((1, 63, 64, 65, SIZE))]
    assert [set(piece.tolist()) for piece in pieces[:4]] == [{0}, {1}, {2}, {3}]
    assert bool((pieces[4] == 4).all())


def test_the_place_of_a_piece_that_is_gone_is_used_again_once_no_view_is_left():
    memory = PanelMemory()
    other, piece = take(memory), take(memory)
    address, view = piece.data_ptr(), piece[5:]
    del piece
    assert take(memory).data_ptr() != address
    del view
    gc.collect()
    assert take(memory).data_ptr() == address
    assert other.data_ptr() != address


def test_a_mapping_goes_with_its_last_piece():
    memory = PanelMemory()
    piece = take(memory)
    (chunk,) = memory._chunks
    del piece
    gc.collect()
    assert chunk() is None


def test_a_mapping_that_is_full_is_followed_by_another():
    memory = PanelMemory()
    pieces = [take(memory, MAX_SHARED_BYTES) for _ in range(CHUNK_BYTES // MAX_SHARED_BYTES + 2)]
    assert len(memory._chunks) == 2
    assert len({piece.data_ptr() for piece in pieces}) == len(pieces)


def test_a_large_piece_has_a_mapping_of_its_own():
    memory = PanelMemory()
    piece = take(memory, MAX_SHARED_BYTES + 1)
    assert piece.data_ptr() % LARGE_PAGE == 0
    assert memory.holds(piece)
    assert not memory.holds(torch.empty(4))
    assert not memory._chunks
    (chunk,) = memory._own
    gone = weakref.ref(chunk)
    del piece, chunk
    gc.collect()
    assert gone() is None


def test_a_process_that_may_not_reserve_so_much_gets_its_tensor_all_the_same(monkeypatch):
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr(mmap, "mmap", refuse)
    memory = PanelMemory()
    piece = take(memory).fill_(7)
    assert bool((piece == 7).all())
    assert not memory.holds(piece)


def test_pieces_can_be_changed_in_place_though_they_were_made_while_inferring():
    with torch.inference_mode():
        piece = take(PanelMemory())
    assert not piece.is_inference()
