"""The command as a user meets it: help that comes at once, and errors in one line."""

import gc
import json
import re
import socket
import subprocess
import sys
import time

import httpx
import pytest

from server.cli import main
from server.version import VERSION
from tests.serve_process import serving

HEAVY = {"torch", "transformers", "fastapi", "uvicorn", "huggingface_hub"}


def refusal(capsys, *arguments: str) -> tuple[int, str]:
    status = main(arguments)
    written = capsys.readouterr()
    assert written.out == ""
    assert written.err.count("\n") == 1, written.err
    return status, written.err


def test_the_version_is_printed(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"slipstream {VERSION}\n"


def test_no_command_prints_the_help(capsys):
    assert main([]) == 0
    assert "slipstream serve --help" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["serve", "fetch"])
def test_help_teaches_and_ends(capsys, command):
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0
    assert f"usage: slipstream {command}" in capsys.readouterr().out


def test_help_loads_nothing_heavy():
    """Seconds of imports before a help text would be the first thing a new user sees."""
    code = (
        "import sys, contextlib, server.cli\n"
        "with contextlib.suppress(SystemExit): server.cli.main(['serve', '--help'])\n"
        f"print(sorted({HEAVY!r} & set(sys.modules)), file=sys.stderr)"
    )
    started = time.perf_counter()
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stderr == "[]\n"
    assert time.perf_counter() - started < 5, "0.2 s on an idle machine"


def test_a_wrong_setting_is_one_line_and_status_2(capsys):
    status, text = refusal(capsys, "serve", "--set", "server.prot=1")
    assert status == 2
    assert text == "slipstream: server.prot is not a setting; did you mean port?\n"


def test_a_port_that_is_no_number_is_named(capsys):
    assert refusal(capsys, "serve", "--port", "http") == (
        2,
        "slipstream: server.port is 'http'; write a whole number\n",
    )


def test_a_taken_port_is_said_before_the_model_is_looked_for(capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        status, text = refusal(capsys, "serve", "/no/such/folder", "--port", str(port))
    assert status == 1
    assert text == (
        f"slipstream: port {port} on 127.0.0.1 is taken; stop what uses it, or give another "
        "--port\n"
    )


def test_a_foreign_address_is_refused(capsys):
    status, text = refusal(capsys, "serve", "--host", "192.0.2.1", "--port", "0")
    assert status == 1
    assert "192.0.2.1 is not an address of this machine; give --host 127.0.0.1" in text


def test_named_options_yield_to_set(capsys):
    status, text = refusal(capsys, "serve", "--port", "1", "--set", "server.port=x")
    assert (status, "'x'" in text) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "fusion"),
    [
        ([], "true"),
        (["--no-fusion"], "false"),
        (["--no-fusion", "--set", "model.fusion=true"], "true"),
    ],
)
def test_fusion_is_switched_off_by_an_option(capsys, arguments, fusion):
    assert main(["config", *arguments]) == 0
    assert re.search(rf"model\.fusion = {fusion} ", capsys.readouterr().out)


def test_fusion_is_switched_off_by_the_environment(capsys, monkeypatch):
    monkeypatch.setenv("SLIPSTREAM_MODEL_FUSION", "false")
    assert main(["config"]) == 0
    assert re.search(r"model\.fusion = false  # environment", capsys.readouterr().out)


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["/no/such/folder"], 1, "the folder /no/such/folder does not exist"),
        (["--set", "engine.pagesize=3"], 2, "engine.pagesize is not a setting; did you mean page"),
        (["org/name"], 1, "org/name is no local folder and the hub cannot be reached"),
        (["{tiny}", "--set", "engine.num_blocks=1"], 1, "num_blocks"),
        (["{tiny}", "--set", "engine.page_size=x"], 1, "page_size"),
        (["{tiny}", "--weights", "int3"], 2, "model.weights is 'int3'; write one of auto, fp32"),
        (
            ["{tiny}", "--weights", "int8", "--set", "model.dtype=bfloat16"],
            1,
            "weights='int8' needs activations in float32, and the model's dtype is torch.bfloat16",
        ),
        (
            ["{tiny}", "--kv-cache-dtype", "int4"],
            1,
            "kv_cache_dtype is 'int4'; it must be one of auto, fp32, bf16, fp16, int8",
        ),
        (["{tiny}", "--set", "model.chat_template=/no/file"], 1, "the chat template /no/file"),
    ],
)
def test_what_keeps_a_server_from_starting_is_one_line(
    capsys, monkeypatch, tiny_model_folder, arguments, status, message
):
    monkeypatch.setattr("server.launch.configure_logging", lambda *_: None)
    filled = [argument.replace("{tiny}", str(tiny_model_folder)) for argument in arguments]
    assert main(["serve", "--port", "0", *filled]) == status
    assert gc.isenabled()
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("slipstream: ")
    assert message in last


def test_a_server_says_its_configuration_and_the_line_to_try(served_tiny_model):
    text = "".join(served_tiny_model.lines)
    assert "page_size" in text
    assert f"curl {served_tiny_model.url}/v1/chat/completions" in text
    body = json.loads(text[text.index("-d '") + 4 : text.rindex("'")])
    answer = httpx.post(
        f"{served_tiny_model.url}/v1/chat/completions", json={**body, "max_tokens": 4}
    )
    assert answer.status_code == 200
    assert answer.json()["model"] == "tiny"


def test_a_server_ends_well_on_sigterm_and_serves_packed_weights_under_other_names(
    tiny_model_folder,
):
    names = ("--served-name", "a", "--served-name", "b")
    with serving(str(tiny_model_folder), "--weights", "int8", *names) as server:
        request = {"model": "b", "prompt": "Hello", "max_tokens": 4}
        answer = httpx.post(f"{server.url}/v1/completions", json=request)
        assert answer.status_code == 200
        models = httpx.get(f"{server.url}/v1/models").json()
        assert [model["id"] for model in models["data"]] == ["a", "b"]
        assert server.stop() == 0
    assert "Traceback" not in "".join(server.lines)
