"""A server's threads ask for short slices, and keep their priority and policy."""

import os
import subprocess
import sys

import pytest

from server.time_slices import shorten_time_slices

LINUX_WITH_SLICES = (6, 12)
CODE = """
import ctypes, os, struct, threading
from server.time_slices import SYSTEM_CALLS, _ATTRIBUTES, shorten_time_slices

def attributes():
    read = ctypes.create_string_buffer(_ATTRIBUTES.size)
    number = SYSTEM_CALLS[os.uname().machine] + 1  # sched_getattr
    assert ctypes.CDLL(None).syscall(number, 0, read, _ATTRIBUTES.size, 0) == 0
    _, policy, _, niceness, _, slice_, _, _ = _ATTRIBUTES.unpack(read.raw)
    print(policy, niceness, slice_)

os.nice(3)
attributes()
shorten_time_slices()
attributes()
thread = threading.Thread(target=attributes)
thread.start()
thread.join()
"""


def linux_version() -> tuple[int, ...]:
    if sys.platform != "linux":
        return (0, 0)
    return tuple(int(part) for part in os.uname().release.split(".")[:2])


@pytest.mark.skipif(linux_version() < LINUX_WITH_SLICES, reason="the kernel has no such slices")
def test_slices_are_short_for_the_thread_and_those_that_it_starts():
    run = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    before, own, child = (tuple(map(int, line.split())) for line in run.stdout.splitlines())
    assert own == child == (os.SCHED_OTHER, before[1], 100_000)


@pytest.mark.skipif(sys.platform != "linux", reason="Linux only")
def test_another_policy_is_left_alone():
    code = (
        "import os; os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))\n"
        "from server.time_slices import shorten_time_slices; shorten_time_slices()\n"
        "print(os.sched_getscheduler(0) == os.SCHED_BATCH)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "True\n"


@pytest.mark.parametrize("call", ["sched_getscheduler", "getpriority"])
@pytest.mark.skipif(sys.platform != "linux", reason="Linux only")
def test_a_sandbox_that_refuses_to_tell_is_no_reason_to_fail(monkeypatch, call):
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, call, refuse)
    shorten_time_slices()
