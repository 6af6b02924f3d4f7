r"""Servers over HTTP: time to the first text, time between tokens, throughput, goodput, errors.

    python -m benchmarks.serve                                  ours, on 127.0.0.1:8000
    python -m benchmarks.serve --clients 1 8 32 \
        --url slipstream=http://127.0.0.1:8000 --url llama.cpp=http://127.0.0.1:8080
    python -m benchmarks.serve --rate 2 4 8 --requests 200 --ttft-limit 500 --itl-limit 60

Any OpenAI-compatible server can be measured by its URL. Several take turns within every round, so
that a machine that slows down slows all of them; they must not work at the same time otherwise.
A key, if they want one, is read from SLIPSTREAM_API_KEY.
"""

import argparse
import dataclasses
import gc
import json
import math
import os
import shlex
import sys
import time
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

import uvloop
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from benchmarks.host import describe_host
from benchmarks.load.client import UnusableServerError, get_acquainted
from benchmarks.load.measurement import Plan, Turn, measure
from benchmarks.load.pacing import ClosedLoop, OpenLoop, Pacing
from benchmarks.load.report import show
from benchmarks.load.summary import Limits
from benchmarks.load.target import Target, parse_target
from benchmarks.load.workload import Endpoint, Workload

DEFAULT_URL = "slipstream=http://127.0.0.1:8000"
DEFAULT_CLIENTS = (1, 8, 32)
# Drawing the bar takes a few milliseconds, in which nothing that arrives is noticed.
SECONDS_BETWEEN_DRAWINGS = 1.0
PIPE_WIDTH = 120


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.serve",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--url", action="append", type=_target, metavar="NAME=URL", help="a server; repeatable")
    add("--model", action="append", default=[], metavar="[NAME=]MODEL", help="name of the model")
    add("--endpoint", type=Endpoint, choices=list(Endpoint), default=Endpoint.CHAT)
    load = parser.add_mutually_exclusive_group()
    load.add_argument(
        "--clients", type=_count, nargs="+", metavar="N", help="closed loops (1 8 32)"
    )
    load.add_argument(
        "--rate", type=_positive, nargs="+", metavar="R", help="open loops: requests per second"
    )
    add("--requests", type=int, default=0, metavar="N", help="of a turn (4 per client, or 64)")
    add("--input-tokens", type=_count, default=128, metavar="N", help="about so many: words (128)")
    add("--output-tokens", type=_count, default=64, metavar="N", help="of each answer (64)")
    add("--shared-prefix", type=int, default=0, metavar="WORDS", help="common to all prompts (0)")
    add("--rounds", type=_count, default=3, metavar="N", help="turns of each server (3)")
    add("--seed", type=int, default=0, metavar="N", help="of text and arrivals (0)")
    add("--ttft-limit", type=_positive, default=math.inf, metavar="MS", help="for goodput")
    add("--itl-limit", type=_positive, default=math.inf, metavar="MS", help="mean of an answer")
    add("--timeout", type=_positive, default=600.0, metavar="SECONDS", help="of a request (600)")
    add("--json", type=Path, metavar="FILE", help="write every turn there")
    options = parser.parse_args(arguments)
    try:
        options.plan = make_plan(options)
    except ValueError as error:
        parser.error(str(error))
    return options


def make_plan(options: argparse.Namespace) -> Plan:
    """Return what the options ask for.

    Raises:
        ValueError: They contradict each other.
    """
    if options.json is not None and not options.json.parent.is_dir():
        raise ValueError(f"there is no folder {options.json.parent} for --json")
    if options.requests < 0 or options.shared_prefix < 0:
        raise ValueError("--requests and --shared-prefix cannot be negative")
    workload = Workload(
        options.endpoint,
        options.input_tokens,
        options.output_tokens,
        options.shared_prefix,
        options.seed,
    )
    paces: list[Pacing] = [OpenLoop(rate) for rate in options.rate or ()] or [
        ClosedLoop(number) for number in options.clients or DEFAULT_CLIENTS
    ]
    return Plan(
        name_models(options.url or [parse_target(DEFAULT_URL)], options.model),
        paces,
        workload,
        options.rounds,
        options.requests,
        options.timeout,
        Limits(options.ttft_limit, options.itl_limit),
    )


def name_models(targets: Sequence[Target], models: Sequence[str]) -> list[Target]:
    """Return the targets with the models that `--model` names, for one of them or for all.

    Raises:
        ValueError: Two targets have one name.
    """
    names = [target.name for target in targets]
    if len(set(names)) < len(names):
        raise ValueError(f"every --url needs a name of its own; these are {', '.join(names)}")
    given: dict[str, str] = {}
    for text in models:
        name, _, model = text.partition("=")
        if name in names and model:
            given[name] = model
        else:
            given.update({other: text for other in names if other not in given})
    key = os.environ.get("SLIPSTREAM_API_KEY", "")
    return [
        dataclasses.replace(target, model=given.get(target.name, ""), api_key=key)
        for target in targets
    ]


async def prepare(plan: Plan) -> Plan:
    """Return the plan with what its servers tell and take."""
    targets = [
        await get_acquainted(target, plan.workload, plan.timeout_seconds) for target in plan.targets
    ]
    return dataclasses.replace(plan, targets=targets)


async def run(plan: Plan, turns: list[Turn], console: Console) -> None:
    """Measure; turns are added as they end."""
    drawn = time.perf_counter()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(
        *columns, TimeRemainingColumn(), console=console, auto_refresh=False, transient=True
    ) as bar:
        task = bar.add_task("requests", total=plan.total_requests)

        def on_request() -> None:
            nonlocal drawn
            bar.advance(task)
            if time.perf_counter() - drawn > SECONDS_BETWEEN_DRAWINGS:
                bar.refresh()
                drawn = time.perf_counter()

        await measure(plan, turns.append, on_request)


def facts_of(plan: Plan, arguments: Sequence[str]) -> dict[str, str]:
    """Return what the figures depend on, by name."""
    workload = plan.workload
    facts = describe_host()
    facts["generator"] = ", ".join(
        f"{name} {metadata.version(name)}" for name in ("httptools", "uvloop")
    )
    for target in plan.targets:
        taken = ", ".join(target.extras) or "neither ignore_eos nor stream_options"
        facts[target.name] = f"{target.url}, {target.model}, {target.software}, takes {taken}"
    facts["shape"] = (
        f"{workload.endpoint}, {workload.num_prompt_words} words in "
        f"({workload.num_shared_words} shared), {workload.num_output_tokens} tokens out, greedy"
    )
    facts["command"] = shlex.join(["python", "-m", "benchmarks.serve", *arguments])
    return facts


def main(arguments: Sequence[str]) -> int:
    """Measure and print; 0 if every turn had an answer, 1 if not, 130 after an interrupt."""
    options = parse_arguments(arguments)
    plan: Plan = options.plan
    turns: list[Turn] = []
    progress = Console(stderr=True)
    status = 0
    # What is there already is never looked through again while the clock runs.
    gc.collect()
    gc.freeze()
    try:
        plan = uvloop.run(prepare(plan))
        uvloop.run(run(plan, turns, progress))
    except UnusableServerError as error:
        progress.print(str(error), style="red", markup=False)
        return 1
    except KeyboardInterrupt:
        progress.print("interrupted; these turns were over")
        status = 130
    finally:
        gc.unfreeze()
    facts = facts_of(plan, arguments)
    console = Console()
    if not console.is_terminal:
        console.width = PIPE_WIDTH
    for name, value in facts.items():
        console.print(f"{name:>14}  {value}", highlight=False, markup=False, soft_wrap=True)
    if turns:
        show(console, turns)
    if options.json is not None:
        record = {"facts": facts, "turns": [dataclasses.asdict(turn) for turn in turns]}
        options.json.write_text(json.dumps(record, indent=1) + "\n")
    return status or int(any(not turn.summary.num_done for turn in turns))


def _target(text: str) -> Target:
    try:
        return parse_target(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not at least 1")
    return number


def _positive(text: str) -> float:
    number = float(text)
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is not a number above 0")
    return number


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
