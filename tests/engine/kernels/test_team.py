"""Threads that wait for each other, where there are more of them than processors."""

import contextlib
import os
import resource
import sys
from pathlib import Path

import pytest
import torch

from engine.kernels.cpu.library import kernels
from engine.kernels.cpu.linear import PackedLinear
from engine.kernels.cpu.mixture import Mixture, Routing
from engine.kernels.cpu.rows import Activation

HIDDEN, WIDTH, EXPERTS = 32, 32, 4
NUM_CALLS = 40
# Barriers of a call, the library's own at its start and end left out.
NUM_BARRIERS = 8


def random(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape)))


def run_on(processors: set[int]) -> None:
    """Move all threads there are: those of the team, too, which other tests may have started."""
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(ProcessLookupError):  # it ended meanwhile
            os.sched_setaffinity(int(task.name), processors)


@pytest.fixture
def two_threads_on_one_processor():
    threads, processors = torch.get_num_threads(), os.sched_getaffinity(0)
    torch.set_num_threads(2)
    try:
        run_on({min(processors)})
        yield
    finally:
        run_on(processors)
        torch.set_num_threads(threads)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere they yield")
def test_who_waits_sleeps(two_threads_on_one_processor):
    """A thread that keeps its processor, or asks for it again and again, loses it to others."""
    library = kernels()
    experts = [
        (
            PackedLinear(library, random(2 * WIDTH, HIDDEN), None).view,
            PackedLinear(library, random(HIDDEN, WIDTH), None).view,
        )
        for _ in range(EXPERTS)
    ]
    router = PackedLinear(library, random(EXPERTS, HIDDEN), None).view
    routing = Routing(chosen=2, normalises=True, shares=False)
    mixture = Mixture(library, router, experts, routing, Activation.SILU)
    x = random(5, HIDDEN)
    torch.set_num_threads(1)
    alone = mixture(x)
    torch.set_num_threads(2)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw
    together = [mixture(x) for _ in range(NUM_CALLS)]
    slept = resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw - before
    assert all(torch.equal(result, alone) for result in together)
    assert slept >= NUM_CALLS * NUM_BARRIERS
