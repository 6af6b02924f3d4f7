"""Runs the soak in a process of its own while pytest runs the suite; `-p scripts.soak` adds it.

The suite keeps the terminal. What the soak writes goes to a file; its result is one more result of
the suite, printed before pytest's summary and counted in it, so that the exit status is that of
both. The soak stands back behind the suite, and never outlives it.
"""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from pathlib import Path
from typing import IO

import pytest

NAME = "soak"
COMMAND = (
    sys.executable, "-m", "pytest", "-q", "-m", "soak", "-p", "no:cacheprovider",
    "tests/reliability",
    # The figures of a soak that passes are what it logs.
    "-o", "log_cli=true", "-o", "log_cli_level=WARNING",
)  # fmt: skip
NICENESS = 10
# The soak has a limit of its own, which leaves a better trace; this one ends what does not hear it.
LIMIT_SECONDS = 1500.0
_PR_SET_PDEATHSIG = 1


def pytest_configure(config: pytest.Config) -> None:
    """Run the soak in this session."""
    config.pluginmanager.register(Beside(COMMAND))


class Beside:
    """A command that runs beside the tests of a session, and whose failure is one of theirs."""

    def __init__(self, command: tuple[str, ...], limit_seconds: float = LIMIT_SECONDS) -> None:
        """Take the command; it is started with the first test.

        Args:
            command: What to run, in the current folder.
            limit_seconds: How long it may take in all.
        """
        self._command = command
        self._limit_seconds = limit_seconds
        self._log = ""
        self._passed = False

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Generator[None, object, object]:
        """Start the command, let the tests run, wait for it, and report how it ended."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "log"
            with path.open("wb") as log, _running(self._command, log) as process:
                began = time.monotonic()
                result = yield
                ending = self._wait(process, began)
            self._log = path.read_text(errors="replace").strip()
        self._passed = not ending
        report = pytest.TestReport(
            nodeid=NAME,
            location=(NAME, None, NAME),
            keywords={},
            outcome="failed" if ending else "passed",
            longrepr=f"{self._log}\n\n{NAME}: {ending}" if ending else None,
            when="call",
        )
        session.config.hook.pytest_runtest_logreport(report=report)
        return result

    def pytest_terminal_summary(self, terminalreporter: "pytest.TerminalReporter") -> None:
        """Print what it wrote, if it passed; otherwise its failure has shown it."""
        if self._passed:
            terminalreporter.section(NAME)
            terminalreporter.write_line(self._log)

    def _wait(self, process: "subprocess.Popen[bytes]", began: float) -> str:
        """Return how it failed, the empty string if it did not."""
        try:
            status = process.wait(max(0.0, self._limit_seconds - (time.monotonic() - began)))
        except subprocess.TimeoutExpired:
            return f"not over after {self._limit_seconds:g} seconds"
        return f"exit status {status}" if status else ""


@contextlib.contextmanager
def _running(
    command: tuple[str, ...], log: IO[bytes]
) -> Generator["subprocess.Popen[bytes]", None, None]:
    """Run a command until the block ends, however it does."""
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
        # Ctrl-C is for the suite, which ends the soak with everything that it has started.
        start_new_session=True, preexec_fn=_stand_back,
    )  # fmt: skip
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _stand_back() -> None:
    """In the child: take the time that others leave, and end with the parent, even a killed one."""
    os.nice(NICENESS)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
