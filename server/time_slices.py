"""How long a thread of this process runs before another program's may have its turn. Linux only.

A step's threads wait for each other hundreds of times. One that sleeps for a moment and then may
not have its processor back before a neighbour's slice is over makes the whole step wait for
milliseconds. Whoever asks for short slices is let in at once, and gets no more time in all.
"""

import contextlib
import ctypes
import os
import struct
import sys

# The shortest that the kernel gives.
SLICE_NANOSECONDS = 100_000
# Numbers of sched_setattr, by what os.uname() calls the machine.
SYSTEM_CALLS = {"x86_64": 314, "aarch64": 274}
# struct sched_attr: size, policy, flags, nice, priority, runtime, deadline, period. For an ordinary
# policy the runtime is the slice, from Linux 6.12 on; before, nobody reads it.
_ATTRIBUTES = struct.Struct("=IIQiIQQQ")


def shorten_time_slices() -> None:
    """Ask for short slices for this thread, and for all that it starts from now on.

    Where there is no such thing, or it is refused, nothing changes.
    """
    number = SYSTEM_CALLS.get(os.uname().machine)
    if sys.platform != "linux" or number is None:
        return
    with contextlib.suppress(OSError, AttributeError):
        if os.sched_getscheduler(0) != os.SCHED_OTHER:
            return
        niceness = os.getpriority(os.PRIO_PROCESS, 0)
        attributes = _ATTRIBUTES.pack(
            _ATTRIBUTES.size, os.SCHED_OTHER, 0, niceness, 0, SLICE_NANOSECONDS, 0, 0
        )
        ctypes.CDLL(None).syscall(number, 0, attributes, 0)
