"""The installer says in one line what is missing; pip itself is not run here."""

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

ROOT = Path(__file__).parents[2]
OFFLINE = (
    "WARNING: Retrying after connection broken by NewConnectionError\n"
    "ERROR: No matching distribution found for x\n"
)


@pytest.fixture
def installer() -> ModuleType:
    spec = importlib.util.spec_from_file_location("install", ROOT / "scripts" / "install.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def venv(tmp_path) -> Path:
    """An environment whose Python prints the file beside it and fails."""
    folder = tmp_path / "venv"
    (folder / "bin").mkdir(parents=True)
    python = folder / "bin" / "python"
    python.write_text(f'#!/bin/sh\necho "$@" >> {folder}/calls\ncat {folder}/says\nexit 1\n')
    python.chmod(0o755)
    (folder / "says").touch()
    return folder


def failure(installer, venv, output: str) -> str:
    (venv / "says").write_text(output)
    with pytest.raises(installer.InstallError) as caught:
        installer.Pip(venv).install("torch", "torch==1")
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_no_network_is_said(installer, venv):
    assert failure(installer, venv, OFFLINE).startswith("no network: torch cannot be downloaded")


def test_no_space_is_said(installer, venv):
    assert failure(installer, venv, "ERROR: [Errno 28] No space left on device\n").startswith(
        "no space left on the disk"
    )


def test_any_other_reason_is_quoted_with_the_log(installer, venv):
    text = failure(installer, venv, "ERROR: first\nERROR: resolution impossible\n")
    assert text == f"torch: resolution impossible (see {venv}/install.log)"


def test_an_old_python_is_named(installer, monkeypatch):
    monkeypatch.setattr(installer, "sys", SimpleNamespace(version_info=(3, 9, 1)))
    with pytest.raises(installer.InstallError, match=r"too old; install Python 3\.11 or newer"):
        installer.check_python()


def test_a_missing_venv_module_is_named(installer, monkeypatch):
    failed = SimpleNamespace(returncode=1)
    monkeypatch.setattr(installer.subprocess, "run", lambda *_, **__: failed)
    with pytest.raises(installer.InstallError, match="install its venv module"):
        installer.check_python()


def test_no_room_is_said_before_anything_is_made(installer, monkeypatch, tmp_path):
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=10**9))
    with pytest.raises(installer.InstallError, match=r"needs about 3 GB and 1\.0 GB are free"):
        installer.make_environment(tmp_path / "venv", installer.CPU_BYTES)


def test_a_machine_without_a_gpu_asks_for_the_cpu_build_first(installer, venv, capsys):
    (venv / "says").write_text("ERROR: No matching distribution found for torch\n")
    with pytest.raises(installer.InstallError):
        installer.install_torch(installer.Pip(venv), has_gpu=False)
    first, second = (venv / "calls").read_text().splitlines()
    version = installer.pinned_version("torch")
    assert first.endswith(f" torch=={version}+cpu")
    assert second.endswith(f" torch=={version}")
    assert "SLIPSTREAM_TORCH_INDEX=" in capsys.readouterr().err


def test_the_index_for_torch_is_passed_on(installer, venv, monkeypatch):
    monkeypatch.setenv("SLIPSTREAM_TORCH_INDEX", "file:///wheels")
    with pytest.raises(installer.InstallError):
        installer.install_torch(installer.Pip(venv), has_gpu=False)
    assert "--extra-index-url file:///wheels torch==" in (venv / "calls").read_text()


def test_a_network_failure_is_not_taken_for_a_missing_build(installer, venv):
    (venv / "says").write_text(OFFLINE)
    with pytest.raises(installer.InstallError, match="no network"):
        installer.install_torch(installer.Pip(venv), has_gpu=False)
    assert len((venv / "calls").read_text().splitlines()) == 1


def test_nothing_is_done_twice(installer, venv, monkeypatch):
    for name in (".installed", ".installed-test"):
        (venv / name).write_text(installer.fingerprint())
    monkeypatch.setattr(installer, "make_environment", None)
    installer.install(venv, with_tests=True)


def test_an_error_is_one_line_and_status_1(tmp_path):
    run = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "install.py"), "--venv", "/dev/null/venv"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.returncode == 1
    assert run.stderr.startswith("install: ")
    assert run.stderr.count("\n") == 1
