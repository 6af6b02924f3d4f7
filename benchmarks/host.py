"""Describes the machine and the checkout, without loading torch."""

import platform
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console

ROOT = Path(__file__).parents[1]


def describe_host() -> dict[str, str]:
    """Return date, commit, processor, Python and, where there are any, GPUs, by name."""
    facts = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": _output("git", "describe", "--always", "--dirty") or "unknown",
        "processor": _processor(),
        "python": platform.python_version(),
    }
    if shutil.which("nvidia-smi") is not None:
        gpus = _output("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader")
        facts["gpu"] = "; ".join(gpus.splitlines()) or "none that answers"
    return facts


def print_facts(
    console: Console, facts: Mapping[str, str], program: str, arguments: Sequence[str]
) -> None:
    """Print what stands above every table: the machine, and the command that measured."""
    command = f"python -m benchmarks.{program} {' '.join(arguments)}".rstrip()
    for name, value in {**facts, "command": command}.items():
        console.print(f"{name:>14}  {value}", highlight=False)


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return f"{len(names)} x {names[0]}" if names else platform.machine()


def _output(*command: str) -> str:
    """Return what a command prints; nothing if it fails."""
    try:
        run = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    except OSError:
        return ""
    return run.stdout.strip() if run.returncode == 0 else ""
