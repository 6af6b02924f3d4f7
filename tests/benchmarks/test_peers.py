"""Servers that are started, measured and stopped one after another."""

import json
import sys
from pathlib import Path

import psutil
import pytest

from benchmarks.peers import XLLAMACPP, llama_cpp, main, vllm

LOAD = ("--clients", "1", "2", "--requests", "1", "--input-tokens", "12", "--output-tokens", "3")


def test_each_is_started_measured_in_turn_and_stopped(tiny_model_folder, tmp_path, capsys):
    file = tmp_path / "turns.jsonl"
    kept = tmp_path / "new" / "models"
    options = ("--weights", "fp32", "int8", "--json", str(file), "--folder", str(kept))
    before = psutil.Process().children()
    main([str(tiny_model_folder), *options, *LOAD])
    assert psutil.Process().children() == before
    assert kept.is_dir()
    assert "slipstream fp32 against" in capsys.readouterr().out
    turns = [json.loads(line) for line in file.read_text().splitlines()]
    assert [(turn["target"], turn["load"]) for turn in turns] == [
        (f"slipstream {weights}", load)
        for weights in ("fp32", "int8")
        for load in ("1 client", "2 clients")
    ]
    assert all(not turn["summary"]["errors"] for turn in turns)


@pytest.mark.parametrize(
    ("program", "start"),
    [("/bin/llama-server", []), (sys.executable, [str(XLLAMACPP)])],
)
def test_llama_cpp_has_a_slot_for_each_client(program, start):
    command = llama_cpp(program, Path("m.gguf"), threads=2)(81)
    assert command[: 1 + len(start)] == [program, *start]
    given = command[1 + len(start) :]
    options = dict(zip(given[::2], given[1::2], strict=True))
    assert options == {
        "--model": "m.gguf", "--ctx-size": "16384", "--parallel": "32", "--threads": "2",
        "--port": "81",
    }  # fmt: skip


def test_vllm_gets_its_threads_and_a_format():
    command = vllm("python", Path("folder"), "bfloat16", threads=3)(81)
    assert command[0] == "env"
    assert "OMP_NUM_THREADS=3" in command[: command.index("python")]
    assert command[command.index("--dtype") + 1] == "bfloat16"
