"""Fuzz the parsers that read what a model has written, and the loaders of its files.

    python -m tests.reliability.fuzz TARGET [--seconds N] [--seed N] [--corpus FOLDER]

    TARGET     calls, reasoning, stops, tokens, gguf, safetensors
    --seconds  how long (60)
    --seed     of the first input (1)
    --corpus   where inputs that reach something new are kept; a run goes on from there

Needs atheris, which is no dependency: `pip install atheris`. Coverage is measured in this project's
modules only. What breaks a target is written to crash-* in the working folder; `--replay FILE` runs
one again, without atheris. A small version of the same checks is in `make test`.
"""

import argparse
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

# Which module holds a target and its name there, so that nothing is imported before it is to be
# watched.
TARGETS = {
    "calls": ("texts", "check_calls"),
    "reasoning": ("texts", "check_reasoning"),
    "stops": ("texts", "check_stops"),
    "tokens": ("texts", "check_tokens"),
    "gguf": ("files", "check_gguf"),
    "safetensors": ("files", "check_safetensors"),
}
WATCHED = [
    "server.tools", "server.reasoning", "server.message_parts", "server.stop_strings",
    "server.detokenizer", "server.vocabulary", "engine.models.gguf_file",
    "engine.models.gguf_config", "engine.models.gguf_model", "engine.models.gguf_blocks",
    "engine.models.loading",
]  # fmt: skip
MAX_SECONDS_OF_ONE = 60
MAX_MEMORY_MIB = 6000
MAX_INPUT_BYTES = 512


def target(name: str) -> Callable[[bytes], None]:
    """Import a target."""
    module, function = TARGETS[name]
    found: Callable[[bytes], None] = getattr(
        import_module(f"tests.reliability.fuzz.{module}"), function
    )
    return found


def main() -> None:
    """Read the arguments and fuzz until the time is over."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.reliability.fuzz",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("target", choices=TARGETS)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--corpus", type=Path)
    parser.add_argument("--replay", type=Path)
    arguments = parser.parse_args()
    if arguments.replay is not None:
        target(arguments.target)(arguments.replay.read_bytes())
        return
    atheris = import_module("atheris")
    with atheris.instrument_imports(include=WATCHED):
        run = target(arguments.target)
    options = [
        f"-max_total_time={arguments.seconds}",
        f"-seed={arguments.seed}",
        f"-timeout={MAX_SECONDS_OF_ONE}",
        f"-rss_limit_mb={MAX_MEMORY_MIB}",
        f"-max_len={MAX_INPUT_BYTES}",
        "-print_final_stats=1",
    ]
    if arguments.corpus is not None:
        arguments.corpus.mkdir(parents=True, exist_ok=True)
        options.append(str(arguments.corpus))
    atheris.Setup([sys.argv[0], *options], run)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
