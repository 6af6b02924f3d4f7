"""What runs beside the suite counts as part of it, and never outlives it; stand-ins for both."""

import os
import re
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.engine.threads import until

ROOT = Path(__file__).parents[2]
CONFTEST = """
import sys
from pathlib import Path
from scripts.soak import Beside

def pytest_configure(config):
    command = (sys.executable, "-c", Path("beside.py").read_text())
    config.pluginmanager.register(Beside(command, limit_seconds={limit}))
"""
PASSES = "print('all is well')"
FAILS = "import sys; print('a long story'); sys.exit(3)"
STAYS = """
import os, subprocess, sys, time
from pathlib import Path
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
Path("unfinished").write_text(f"{os.getpid()} {child.pid}")
Path("unfinished").rename("pids")
time.sleep(600)
"""
WAIT = """
import os, signal, time
from pathlib import Path
def test_it():
    while not Path("pids").exists():
        time.sleep(0.01)
"""
GOOD, BAD = "def test_it(): pass", "def test_it(): assert False"


def run(folder: Path, suite: str, beside: str, limit: float = 60.0) -> tuple[int, str]:
    """Run a suite and what runs beside it; return the exit status and what was printed."""
    (folder / "conftest.py").write_text(CONFTEST.format(limit=limit))
    (folder / "test_suite.py").write_text(suite)
    (folder / "beside.py").write_text(beside)
    (folder / "pytest.ini").write_text("[pytest]\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider"],
        cwd=folder, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
    )  # fmt: skip
    return done.returncode, done.stdout


def has_ended(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.mark.parametrize(
    ("suite", "beside", "status", "counts"),
    [
        (GOOD, PASSES, 0, "2 passed"),
        (GOOD, FAILS, 1, "1 failed, 1 passed"),
        (BAD, PASSES, 1, "1 failed, 1 passed"),
        (BAD, FAILS, 1, "2 failed"),
    ],
)
def test_either_failure_fails_both_and_the_summary_comes_last(
    tmp_path, suite, beside, status, counts
):
    code, text = run(tmp_path, suite, beside)
    assert code == status
    assert re.fullmatch(rf"=+ {counts} in .*=", text.splitlines()[-1])
    assert ("a long story" if beside == FAILS else "all is well") in text
    assert ("soak: exit status 3" in text) == (beside == FAILS)


def test_what_does_not_end_is_ended_and_has_failed(tmp_path):
    code, text = run(tmp_path, WAIT, STAYS, limit=3.0)
    assert code == 1
    assert "soak: not over after 3 seconds" in text
    assert all(map(has_ended, map(int, (tmp_path / "pids").read_text().split())))


@pytest.mark.parametrize("end", ["raise KeyboardInterrupt", "import pytest; pytest.exit('')"])
def test_an_interrupted_suite_ends_it_at_once(tmp_path, end):
    code, _ = run(tmp_path, f"{WAIT}    {end}\n", STAYS)
    assert code == 2
    assert all(map(has_ended, map(int, (tmp_path / "pids").read_text().split())))


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such signal")
def test_a_killed_suite_takes_it_along(tmp_path):
    run(tmp_path, f"{WAIT}    os.kill(os.getpid(), signal.SIGKILL)\n", STAYS)
    pid, child = map(int, (tmp_path / "pids").read_text().split())
    try:
        until(lambda: has_ended(pid))
    finally:
        psutil.Process(child).kill()


@pytest.mark.parametrize(("tests", "soaks"), [("", True), ("tests/server", False)])
def test_only_the_whole_suite_has_it_beside(tests, soaks):
    plan = subprocess.run(
        ["make", "--no-print-directory", "--dry-run", "test", f"TESTS={tests}"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert ("-m pytest -p scripts.soak" in plan.stdout) == soaks
    assert (f"-m pytest {tests}\n" in plan.stdout) != soaks
