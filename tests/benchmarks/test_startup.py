"""Servers that a benchmark starts."""

import sys
import time

import pytest

from benchmarks.startup import free_port, process, wait_for_port


def test_what_a_server_printed_last_says_why_it_ended():
    command = [sys.executable, "-c", "print('first'); raise SystemExit('fastapi is missing')"]
    reason = "^a server ended before it answered; fastapi is missing$"
    with pytest.raises(SystemExit, match=reason), process(command) as server:
        wait_for_port(server, free_port(), time.perf_counter())
