"""Which attention runs, and that the choice needs no package that is absent."""

import importlib.util
import sys
from types import ModuleType
from typing import Any

import pytest
import torch

from engine.attention.select_backend import BackendChoice, choose_backend, make_backend
from engine.attention.torch_reference import TorchReferenceBackend

CUDA = torch.device("cuda")
GOOD: dict[str, Any] = {"allow_flash": True, "has_sinks": False}


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let it look as if flash-attn were there; only its spec is asked for."""
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        "importlib.util.find_spec",
        lambda name: object() if name == "flash_attn" else find_spec(name),
    )


@pytest.fixture
def absent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("device", "dtype", "page_size", "changes", "reason"),
    [
        ("cpu", torch.bfloat16, 256, {}, "on cpu"),
        ("cuda", torch.bfloat16, 256, {"allow_flash": False}, "auto_switch_to_flash is off"),
        ("cuda", torch.float32, 256, {}, "does not compute in torch.float32"),
        ("cuda", torch.bfloat16, 16, {}, "pages of 256"),
        ("cuda", torch.bfloat16, 256, {"has_sinks": True}, "no attention sinks"),
    ],
)
def test_torch_runs_where_flash_cannot(device, dtype, page_size, changes, reason):
    choice = choose_backend(torch.device(device), dtype, page_size, **GOOD | changes)
    assert choice.name == "torch"
    assert reason in choice.reason


@pytest.mark.usefixtures("absent")
def test_torch_runs_where_flash_is_not_installed():
    choice = choose_backend(CUDA, torch.bfloat16, 256, **GOOD)
    assert choice == BackendChoice("torch", "flash-attn is not installed")


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("page_size", [256, 512])
def test_flash_runs_where_it_can(dtype, page_size):
    assert choose_backend(CUDA, dtype, page_size, **GOOD).name == "flash"


def test_the_torch_backend_is_made_without_flash(monkeypatch):
    monkeypatch.setitem(sys.modules, "flash_attn", None)  # importing it raises
    backend = make_backend(BackendChoice("torch", "a test"), 16)
    assert isinstance(backend, TorchReferenceBackend)


def test_the_flash_backend_is_imported_only_when_chosen(monkeypatch):
    package: Any = ModuleType("flash_attn")
    package.flash_attn_varlen_func = lambda *args, **kwargs: None
    monkeypatch.setitem(sys.modules, "flash_attn", package)
    assert "engine.attention.flash" not in sys.modules
    try:
        backend = make_backend(BackendChoice("flash", "a test"), 256)
        assert type(backend).__name__ == "FlashBackend"
    finally:
        sys.modules.pop("engine.attention.flash", None)
