"""Every example runs as it is, against a server that a user could have started."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted(path for path in (ROOT / "examples").iterdir() if path.suffix in (".py", ".sh"))
MAX_LINES = 40


def run(name: str, *arguments: str, url: str = "") -> str:
    path = ROOT / "examples" / name
    command = [str(path)] if path.suffix == ".sh" else [sys.executable, str(path)]
    done = subprocess.run(
        [*command, *arguments],
        env={**os.environ, "BASE_URL": f"{url}/v1", "MODEL": "tiny", "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, timeout=90, check=False, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_no_example_is_forgotten_here():
    names = {path.name for path in EXAMPLES}
    assert names == {
        "curl.sh",
        "chat_stream.py",
        "load.py",
        "offline_generate_batch.py",
        "structured_answer.py",
    }


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_an_example_is_short_and_says_how_to_run_it(path):
    text = path.read_text()
    assert len(text.splitlines()) <= MAX_LINES
    assert f"examples/{path.name}" in text


def test_curl(served_tiny_model):
    answer = run("curl.sh", url=served_tiny_model.url)
    assert '"tiny"' in answer
    assert "data: [DONE]" in answer


def test_chat_stream(served_tiny_model):
    assert " tokens]" in run("chat_stream.py", "Hello", url=served_tiny_model.url)


def test_structured_answer(served_tiny_model):
    assert run("structured_answer.py", url=served_tiny_model.url).startswith("mood=<Mood.")


def test_load(served_tiny_model):
    assert run("load.py", "8", url=served_tiny_model.url).startswith("8 streams, ")


def test_offline_generate_batch(tiny_model_folder):
    lines = run("offline_generate_batch.py", str(tiny_model_folder)).splitlines()
    assert len(lines) == 3
    assert all(" -> " in line for line in lines)
