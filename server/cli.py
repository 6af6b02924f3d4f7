"""The `slipstream` command: reads arguments, starts what they ask for, says errors in one line.

Nothing heavy is imported until a command runs, so that help and refusals come at once: `COMMANDS`
names the modules, and `_run` is the only place of the project that imports by name.
"""

import argparse
import dataclasses
import gc
import importlib
import json
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from server.address import check_address, check_exposure
from server.console import output_console, print_error
from server.environment import calm_worker_threads, read_keys, read_settings
from server.setting_values import WEIGHTS, SettingsError
from server.settings import Settings, load_settings
from server.startup_errors import StartupError
from server.time_slices import shorten_time_slices
from server.version import VERSION

# Command -> the module whose `run(settings)` does it.
COMMANDS = {"serve": "server.launch", "fetch": "server.fetch", "config": "server.show_config"}

SERVE_EXAMPLES = """examples:
  slipstream serve                                the default model on http://127.0.0.1:8000
  slipstream serve ./my-model --port 9000         a local folder in Hugging Face format
  slipstream serve org/name --host 0.0.0.0 --api-keys-file keys.txt
                                                  a model of the hub, for those who have a key
  slipstream serve ./my-model.gguf                a GGUF file, its weights kept as they are
  slipstream serve ./my-model --weights int8      a quarter of the memory, and faster
  slipstream serve --config configs/cpu.toml --set engine.page_size=32 --set server.max_choices=4

then, from anywhere:
  curl http://127.0.0.1:8000/v1/chat/completions -H 'Content-Type: application/json' \\
    -d '{"messages": [{"role": "user", "content": "Hello"}], "model": "SmolLM2-135M-Instruct"}'
"""
EXAMPLES = """examples:
  slipstream serve             serve the default model on http://127.0.0.1:8000
  slipstream serve --help      every way to choose a model and to configure the server
  slipstream fetch             download and check the default model, and stop
  slipstream config            print the settings in force and where each comes from
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status.

    Returns:
        0 when all went well, 1 when the server could not start, 2 for wrong arguments or settings,
        130 after an interrupt.
    """
    options = build_parser().parse_args(arguments)
    try:
        return _run(options)
    except SettingsError as error:
        print_error(str(error))
        return 2
    except StartupError as error:
        print_error(str(error))
        return 1
    except KeyboardInterrupt:
        print_error("interrupted")
        return 128 + signal.SIGINT
    finally:
        gc.enable()


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    parser = argparse.ArgumentParser(
        prog="slipstream",
        description="An OpenAI-compatible inference server with its own paged-cache engine.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="store_true", help="print the version and stop")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    serve = commands.add_parser(
        "serve",
        help="load a model and answer requests",
        description="Load a model and answer OpenAI-style requests until interrupted.",
        epilog=SERVE_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_serve_options(serve)
    config = commands.add_parser(
        "config",
        help="print the settings in force",
        description="Print what `serve` with the same options would run with; secrets are masked.",
    )
    _add_serve_options(config)
    fetch = commands.add_parser(
        "fetch",
        help="prepare the default model without serving it",
        description="Download, unpack and verify the default model, then print its folder.",
    )
    fetch.set_defaults(config=None, overrides=[])
    return parser


def _add_serve_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model",
        nargs="?",
        metavar="MODEL",
        help="a local folder, a GGUF file or a hub name; without it, the default model (135M "
        "parameters, fetched once)",
    )
    parser.add_argument(
        "--served-name",
        action="append",
        metavar="NAME",
        help="a name clients may use for the model; may be repeated",
    )
    _add_format_options(parser)
    _add_network_options(parser)
    _add_settings_options(parser)


def _add_format_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--weights",
        metavar="FORMAT",
        help=f"what weights are stored as on a CPU: {', '.join(WEIGHTS)}; auto is bf16 where that "
        "loses nothing, bf16x3 needs a processor with a tile unit",
    )
    parser.add_argument(
        "--activations",
        metavar="FORMAT",
        help="what weights of 8 and 4 bits are multiplied with on a CPU: fp32, or int8, which is "
        "two to four times as fast",
    )
    parser.add_argument(
        "--kv-cache-dtype",
        metavar="FORMAT",
        help="what keys and values are kept as on a CPU: auto (the model's dtype, or fp16 with "
        "activations of 8 bits), fp32, bf16, fp16 or int8, which takes a quarter of the memory",
    )
    parser.add_argument(
        "--no-fusion",
        action="store_false",
        default=None,
        dest="fusion",
        help="compute with the model's own Hugging Face forward instead of fused kernels: slower, "
        "to compare answers with. What --weights and --activations pack stays packed, module by "
        "module; with --weights fp32 torch computes everything",
    )


def _add_network_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--host", help="address to listen on (127.0.0.1; 0.0.0.0 for all)")
    parser.add_argument("--port", help="port to listen on (8000; 0 takes a free one)")
    parser.add_argument("--api-keys-file", metavar="FILE", help="keys of clients, one in a line")
    parser.add_argument("--admin-keys-file", metavar="FILE", help="keys of /admin, one in a line")
    parser.add_argument(
        "--allow-unauthenticated",
        action="store_true",
        default=None,
        help="listen on an address that others reach although there is no key",
    )
    parser.add_argument(
        "--drain-timeout",
        metavar="SECONDS",
        help="how long running streams may finish after SIGTERM (30)",
    )


def _add_settings_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="a TOML file with the settings of docs/configuration.md; see configs/",
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        dest="overrides",
        metavar="SECTION.KEY=VALUE",
        help="override one setting; may be repeated, and wins over everything else",
    )


def _run(options: argparse.Namespace) -> int:
    if options.version:
        output_console().print(f"slipstream {VERSION}")
        return 0
    if options.command is None:
        build_parser().print_help()
        return 0
    settings = _load(options)
    if options.command == "serve":
        check_address(settings.server)
        check_exposure(settings)
        # Hardly anything made at a start is garbage, and looking for it takes a seventh of the
        # time; the server collects once and begins to again when it listens.
        gc.disable()
    calm_worker_threads()
    shorten_time_slices()
    # The command's module brings the model library with it, seconds that help need not wait for.
    module = importlib.import_module(COMMANDS[options.command])
    status: int = module.run(settings)
    return status


def _load(options: argparse.Namespace) -> Settings:
    """Put file, environment and command line together."""
    overrides = [*_named_overrides(options), *options.overrides]
    settings = load_settings(options.config, overrides, read_settings())
    return dataclasses.replace(settings, keys=read_keys(settings.security))


def _named_overrides(options: argparse.Namespace) -> list[str]:
    """Return the options that have a setting of their own as overrides, in TOML."""
    texts = {
        "model.path": "model",
        "model.served_names": "served_name",
        "model.weights": "weights",
        "model.activations": "activations",
        "model.fusion": "fusion",
        "engine.kv_cache_dtype": "kv_cache_dtype",
        "server.host": "host",
        "security.api_keys_file": "api_keys_file",
        "security.admin_keys_file": "admin_keys_file",
        "security.allow_unauthenticated": "allow_unauthenticated",
    }
    numbers = {"server.port": "port", "server.shutdown_timeout_seconds": "drain_timeout"}
    given = vars(options)
    return [
        *(
            f"{name}={json.dumps(given[option], ensure_ascii=False)}"
            for name, option in texts.items()
            if given.get(option) is not None
        ),
        *(f"{name}={given[o]}" for name, o in numbers.items() if given.get(o) is not None),
    ]


if __name__ == "__main__":
    sys.exit(main())
