"""Make the environment: torch first, in the build this machine can use, then everything else.

    python3 scripts/install.py [--venv .venv] [--test]

Run by `make`. It does nothing when what it reads has not changed since the last whole run, shows
one line of progress, keeps pip's own words in install.log, and says what went wrong in one line.
SLIPSTREAM_TORCH_INDEX names the package index with torch's CPU builds, where pip's own has none.
It must start under old Pythons too, to be able to say that they are too old.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CONSTRAINTS = ROOT / "constraints" / "ci.txt"
OLDEST = (3, 11)
# Room for the environment and for what pip unpacks on the way, in bytes.
CPU_BYTES = 3_000_000_000
GPU_BYTES = 12_000_000_000
NO_NETWORK = re.compile(
    r"NameResolutionError|NewConnectionError|Failed to establish|ConnectTimeout|ReadTimeout"
    r"|Name or service not known|Temporary failure in name|Network is unreachable|ProxyError"
)


class InstallError(Exception):
    """What is missing, in one line that says what to do."""


def main() -> int:
    """Make or update the environment and return the exit status."""
    parser = argparse.ArgumentParser(description="Make the environment of Slipstream.")
    parser.add_argument("--venv", type=Path, default=ROOT / ".venv", help="its folder (.venv)")
    parser.add_argument("--test", action="store_true", help="add what the tests need")
    options = parser.parse_args()
    try:
        install(options.venv, with_tests=options.test)
    except InstallError as error:
        print(f"install: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"install: {error}; make room or choose another folder", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("install: interrupted; the next run goes on from here", file=sys.stderr)
        return 130
    return 0


def install(venv: Path, *, with_tests: bool) -> None:
    """Bring the environment to what pyproject.toml and the constraints say."""
    check_python()
    stamps = [venv / ".installed"] + ([venv / ".installed-test"] if with_tests else [])
    wanted = fingerprint()
    if all(stamp.exists() and stamp.read_text() == wanted for stamp in stamps):
        for stamp in stamps:
            stamp.touch()
        return
    for stamp in stamps:
        stamp.unlink(missing_ok=True)
    has_gpu = has_nvidia_gpu()
    make_environment(venv, GPU_BYTES if has_gpu else CPU_BYTES)
    pip = Pip(venv)
    pip.install("the build tools", "setuptools>=77")
    install_torch(pip, has_gpu=has_gpu)
    extras = [name for name, wish in (("gpu", has_gpu), ("test", with_tests)) if wish]
    project = f"{ROOT}[{','.join(extras)}]" if extras else str(ROOT)
    pip.install("slipstream and what it needs", "--no-build-isolation", "--editable", project)
    build_kernels(venv)
    for stamp in stamps:
        stamp.write_text(wanted)
    print(f"install: {venv} is ready")


def build_kernels(venv: Path) -> None:
    """Compile the CPU kernels; without a compiler they are left out, which the builder says."""
    python = venv / "bin" / "python"
    subprocess.run([python, "-m", "engine.kernels.cpu"], cwd=ROOT, check=False)


def check_python() -> None:
    """Refuse a Python that is too old or cannot make environments."""
    if sys.version_info < OLDEST:
        raise InstallError(
            f"Python {platform.python_version()} is too old; install Python 3.11 or newer and name "
            "it, as in: make install PYTHON=python3.12"
        )
    probe = subprocess.run(
        [sys.executable, "-c", "import ensurepip, venv"], check=False, stderr=subprocess.DEVNULL
    )
    if probe.returncode:
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        raise InstallError(
            f"{sys.executable} cannot make environments; install its venv module "
            f"(Debian and Ubuntu: apt-get install python{version}-venv)"
        )


def fingerprint() -> str:
    """Return a hash of everything that decides what is installed."""
    digest = hashlib.sha256(f"{sys.version} {sys.executable} {has_nvidia_gpu()}".encode())
    for path in (ROOT / "pyproject.toml", CONSTRAINTS, Path(__file__)):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def has_nvidia_gpu() -> bool:
    """Return whether the driver's own tool finds a GPU."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return False
    return subprocess.run([tool, "-L"], check=False, capture_output=True).returncode == 0


def make_environment(venv: Path, needed: int) -> None:
    """Make the folder, or make it anew where an interrupt left half of one."""
    if (venv / "bin" / "python").exists():
        probe = [str(venv / "bin" / "python"), "-m", "pip", "--version"]
        if not subprocess.run(probe, check=False, capture_output=True).returncode:
            return
    free = shutil.disk_usage(venv.parent).free
    if free < needed:
        raise InstallError(
            f"{venv} needs about {needed / 1e9:.0f} GB and {free / 1e9:.1f} GB are free; make room"
        )
    print(f"install: making {venv}", flush=True)
    made = subprocess.run(
        [sys.executable, "-m", "venv", "--clear", str(venv)],
        check=False, capture_output=True, text=True,
    )  # fmt: skip
    if made.returncode:
        reason = (made.stderr or made.stdout).strip().splitlines() or ["no reason given"]
        raise InstallError(f"{venv} could not be made: {reason[-1]}")


def install_torch(pip: Pip, *, has_gpu: bool) -> None:
    """Install the build of torch that fits the machine.

    The local version "+cpu" is carried by CPU builds alone, so that asking for it can't give a CUDA
    build by accident. Where no index has one, the plain version is taken and said to be so.
    """
    version = pinned_version("torch")
    index = os.environ.get("SLIPSTREAM_TORCH_INDEX")
    options = ["--extra-index-url", index] if index else []
    if has_gpu or sys.platform != "linux":
        pip.install(f"torch {version}", *options, f"torch=={version}")
        return
    try:
        pip.install(f"torch {version}, CPU build", *options, f"torch=={version}+cpu")
    except InstallError:
        if not pip.found_no_match():
            raise
        if platform.machine() == "x86_64":
            print(
                "install: no index pip knows has torch's CPU build, so the large CUDA build comes; "
                "to avoid it: make install SLIPSTREAM_TORCH_INDEX=<the CPU index named on "
                "torch's install page>",
                file=sys.stderr,
            )
        pip.install(f"torch {version}", f"torch=={version}")


def pinned_version(name: str) -> str:
    """Return the version that the constraints give to a package."""
    found = re.search(rf"^{name}==([^\s+]+)", CONSTRAINTS.read_text(), re.MULTILINE)
    if found is None:
        raise InstallError(f"{CONSTRAINTS} does not pin {name}")
    return found[1]


class Pip:
    """pip of an environment, with one line of progress and its own words in a file."""

    def __init__(self, venv: Path) -> None:
        """Begin a new log."""
        self.python = venv / "bin" / "python"
        self.log = venv / "install.log"
        self.log.write_text("")
        self._output: list[str] = []

    def install(self, what: str, *arguments: str) -> None:
        """Install, with the pinned versions.

        Raises:
            InstallError: One line that says why it could not.
        """
        command = [
            str(self.python), "-m", "pip", "--disable-pip-version-check", "--no-input", "install",
            "--progress-bar", "off", "--constraint", str(CONSTRAINTS), *arguments,
        ]  # fmt: skip
        print(f"install: {what}", flush=True)
        self._output = []
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        with self.log.open("a") as log, child:
            assert child.stdout is not None
            for line in child.stdout:
                log.write(line)
                self._output.append(line)
                show_progress(line.strip())
        show_progress("")
        if child.returncode:
            raise InstallError(self._explain(what))

    def found_no_match(self) -> bool:
        """Return whether the last run ended because no index had the version."""
        output = "".join(self._output)
        return "No matching distribution" in output and not NO_NETWORK.search(output)

    def _explain(self, what: str) -> str:
        output = "".join(self._output)
        if "No space left" in output:
            return "no space left on the disk; make room and run it again"
        if NO_NETWORK.search(output):
            return f"no network: {what} cannot be downloaded; connect and run it again"
        errors = [line for line in self._output if line.startswith("ERROR:")]
        reason = errors[-1].removeprefix("ERROR:").strip() if errors else "pip failed"
        return f"{what}: {reason} (see {self.log})"


def show_progress(line: str) -> None:
    """Show what pip does: rewritten in place on a terminal, downloads alone elsewhere."""
    if sys.stdout.isatty():
        width = shutil.get_terminal_size().columns - 1
        sys.stdout.write(f"\r\x1b[2K{line[:width]}" if line else "\r\x1b[2K")
        sys.stdout.flush()
    elif line.startswith("Downloading") and "MB" in line:
        print(f"  {line}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
