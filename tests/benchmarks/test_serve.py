"""The command, against a live server whose engine follows a script."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from subprocess import PIPE

import pytest

from benchmarks.serve import main
from tests.server.live import LiveServer, run_live

ROOT = Path(__file__).parents[2]
SHORT = ("--rounds", "2", "--requests", "6", "--input-tokens", "12", "--output-tokens", "5")


@pytest.fixture(scope="module")
def shared_live() -> Iterator[LiveServer]:
    with run_live() as server:
        yield server


@pytest.fixture
def live(shared_live) -> LiveServer:
    shared_live.reset()
    return shared_live


@pytest.mark.parametrize("load", [("--clients", "1", "3"), ("--rate", "500")])
@pytest.mark.parametrize("endpoint", ["chat", "completions"])
def test_two_servers_are_measured_in_turns(live, tmp_path, capsys, load, endpoint):
    file = tmp_path / "turns.json"
    urls = ("--url", f"one={live.url}", "--url", f"two={live.url}/v1")
    status = main([*urls, *load, *SHORT, "--endpoint", endpoint, "--json", str(file)])
    printed = capsys.readouterr().out
    assert status == 0, printed
    assert "one against" in printed
    assert "ignore_eos, stream_options" in printed
    turns = json.loads(file.read_text())["turns"]
    names = [turn["target"] for turn in turns]
    assert sorted(names[: len(names) // 2]) == sorted(names[len(names) // 2 :])
    assert names[0] == "one"
    assert names[-1] == "one", "the other one begins the second round"
    for turn in turns:
        summary = turn["summary"]
        assert (summary["num_done"], summary["errors"], summary["num_short"]) == (6, {}, 0)
        tokens = summary["tokens_per_second"] * summary["seconds"]
        assert tokens == pytest.approx(30), "six answers of five tokens"
        assert summary["prompt_tokens"] > 12
        assert summary["ttft_p99_ms"] >= summary["ttft_median_ms"] > 0


def test_requests_beyond_the_queue_are_counted_as_refused(live, capsys):
    # The first is the one that gets acquainted.
    live.manager.queue_full_after = 1 + 4
    status = main(["--url", f"one={live.url}", "--clients", "2", *SHORT, "--rounds", "1"])
    printed = capsys.readouterr().out
    assert status == 0
    assert "one: 2 failed: HTTP 429" in printed


def test_an_engine_that_fails_in_an_answer_is_counted(live, capsys):
    asked = []

    def script(input_ids, _arguments):
        asked.append(input_ids)
        tokens = live.tokenizer.encode("one two three four five six")
        return tokens if len(asked) == 1 else [*tokens[:2], RuntimeError("out of order")]

    live.manager.script = script
    status = main(["--url", f"one={live.url}", "--clients", "2", *SHORT, "--rounds", "1"])
    assert status == 1, "no turn without an answer goes unnoticed"
    assert "one: 6 failed: error event" in capsys.readouterr().out


def test_limits_are_judged(live, capsys):
    arguments = ["--url", live.url, "--clients", "1", *SHORT, "--ttft-limit", "60000"]
    assert main(arguments) == 0
    assert "good/s" in capsys.readouterr().out


def test_an_interrupt_shows_the_turns_that_are_over(live):
    asked = []

    def script(_input_ids, _arguments):
        asked.append(True)
        # One gets acquainted, six are the turn of one client; the next turn never ends.
        if len(asked) == 1 + 6 + 1:
            live.manager.paused.set()
        return live.tokenizer.encode("one two three four five six")

    live.manager.script = script
    command = [sys.executable, "-m", "benchmarks.serve", "--url", live.url, "--clients", "1", "2"]
    with subprocess.Popen([*command, *SHORT], cwd=ROOT, stdout=PIPE, stderr=PIPE, text=True) as run:
        try:
            live.manager.wait_until(lambda: len(asked) == 1 + 6 + 2, seconds=60)
            run.send_signal(signal.SIGINT)
            printed, said = run.communicate(timeout=60)
        finally:
            run.kill()
    assert run.returncode == 130, said
    assert "interrupted" in said
    assert "1 client " in printed
    assert "2 clients " not in printed
    live.manager.paused.clear()
    live.manager.wait_until(lambda: live.manager.num_active == 0)


def test_no_server_is_one_sentence(capsys):
    with run_live() as server:
        url = server.url
    assert main(["--url", f"gone={url}"]) == 1
    assert "gone lists no model" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--clients", "0"], "not at least 1"),
        (["--rate", "inf"], "not a number above 0"),
        (["--rate", "1", "--clients", "1"], "not allowed with"),
        (["--requests", "-1"], "cannot be negative"),
        (["--url", "a=h:1"], "NAME=URL"),
        (["--url", "a=http://h", "--url", "a=http://g"], "a name of its own"),
        (["--input-tokens", "20", "--shared-prefix", "20"], "too short"),
        (["--json", "/nowhere/at/all.json"], "no folder"),
    ],
)
def test_options_that_make_no_sense_are_refused(capsys, arguments, said):
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err
