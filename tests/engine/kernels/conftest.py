"""The kernels, compiled for every instruction set that this processor runs."""

import ctypes

import pytest

from engine.kernels.cpu import build as kernel_build
from engine.kernels.cpu.library import open_library
from tests.engine.kernels.instruction_sets import runnable


@pytest.fixture(params=runnable(), ids=lambda target: target.name, scope="package")
def library(request) -> ctypes.CDLL:
    path = kernel_build.build(request.param)
    assert path is not None, "the kernels must build where the tests run"
    return open_library(path)
