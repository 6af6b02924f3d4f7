"""Memory limits as the kernel writes them, and the blocks that fit."""

from types import SimpleNamespace

import psutil
import pytest
import torch

from engine.cache.sizing import (
    LayerGeometry,
    available_bytes,
    available_host_bytes,
    bytes_per_block,
    num_blocks_that_fit,
)
from engine.errors import CacheTooSmallError

GIB = 1 << 30
V1_UNLIMITED = (1 << 63) - 4096


@pytest.fixture(autouse=True)
def machine(monkeypatch):
    """A machine with 8 GiB available."""
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=8 * GIB))


def write_v2(root, limit, usage, statistics="anon 1\ninactive_file 0\n"):
    (root / "memory.max").write_text(f"{limit}\n")
    (root / "memory.current").write_text(f"{usage}\n")
    (root / "memory.stat").write_text(statistics)


def write_v1(root, limit, usage, statistics="cache 1\ntotal_inactive_file 0\n"):
    (root / "memory").mkdir()
    (root / "memory" / "memory.limit_in_bytes").write_text(f"{limit}\n")
    (root / "memory" / "memory.usage_in_bytes").write_text(f"{usage}\n")
    (root / "memory" / "memory.stat").write_text(statistics)


@pytest.mark.parametrize("write", [write_v2, write_v1])
def test_the_control_group_bounds_what_is_available(write, tmp_path):
    write(tmp_path, 4 * GIB, GIB)
    assert available_host_bytes(tmp_path) == 3 * GIB


def test_file_cache_that_the_kernel_gives_up_counts_as_available(tmp_path):
    write_v2(tmp_path, 4 * GIB, 3 * GIB, f"anon 5\ninactive_file {2 * GIB}\n")
    assert available_host_bytes(tmp_path) == 3 * GIB


def test_version_1_counts_the_file_cache_of_the_whole_tree(tmp_path):
    write_v1(tmp_path, 4 * GIB, 3 * GIB, f"inactive_file {GIB}\ntotal_inactive_file {2 * GIB}\n")
    assert available_host_bytes(tmp_path) == 3 * GIB


@pytest.mark.parametrize(
    ("write", "limit"), [(write_v2, "max"), (write_v1, V1_UNLIMITED)], ids=["v2", "v1"]
)
def test_without_a_limit_the_machine_decides(write, limit, tmp_path):
    write(tmp_path, limit, GIB)
    assert available_host_bytes(tmp_path) == 8 * GIB


def test_without_control_groups_the_machine_decides(tmp_path):
    assert available_host_bytes(tmp_path) == 8 * GIB


def test_a_limit_above_the_machine_does_not_raise_what_is_available(tmp_path):
    write_v2(tmp_path, 100 * GIB, GIB)
    assert available_host_bytes(tmp_path) == 8 * GIB


def test_usage_above_the_limit_leaves_nothing(tmp_path):
    write_v2(tmp_path, GIB, 2 * GIB)
    assert available_host_bytes(tmp_path) == 0


@pytest.mark.parametrize("broken", ["memory.current", "memory.stat"])
def test_an_unreadable_control_group_is_as_good_as_none(broken, tmp_path):
    write_v2(tmp_path, GIB, 0)
    (tmp_path / broken).unlink()
    assert available_host_bytes(tmp_path) == 8 * GIB


def test_what_is_no_number_is_as_good_as_no_control_group(tmp_path):
    write_v2(tmp_path, GIB, "lots")
    assert available_host_bytes(tmp_path) == 8 * GIB


def test_a_cpu_is_asked_for_host_memory():
    assert 0 < available_bytes(torch.device("cpu")) <= 8 * GIB


def test_a_block_holds_a_page_of_keys_and_values_of_each_layer():
    layers = [LayerGeometry(8, 2, 16, 16, None), LayerGeometry(8, 4, 16, 8, 128)]
    expected = 10 * 2 * (2 * (16 + 16) + 4 * (16 + 8))
    assert bytes_per_block(layers, page_size=10, dtype=torch.bfloat16) == expected


def test_rows_of_8_bits_have_a_scale_each():
    layers = [LayerGeometry(8, 2, 16, 8, None)]
    assert bytes_per_block(layers, page_size=10, dtype=torch.int8) == 10 * 2 * (16 + 4 + 8 + 4)


def test_blocks_fill_the_share_of_the_memory_that_a_step_does_not_need():
    assert num_blocks_that_fit(1000, reserved_bytes=100, block_bytes=50, fraction=0.9) == 16


def test_fewer_than_two_blocks_are_refused_with_the_numbers():
    assert num_blocks_that_fit(200, reserved_bytes=0, block_bytes=100, fraction=1.0) == 2
    with pytest.raises(CacheTooSmallError, match=r"100 bytes.*199 bytes.*max_memory_percent"):
        num_blocks_that_fit(199, reserved_bytes=0, block_bytes=100, fraction=1.0)


def test_a_reserve_above_the_memory_is_refused():
    with pytest.raises(CacheTooSmallError):
        num_blocks_that_fit(100, reserved_bytes=1000, block_bytes=10, fraction=0.5)
