"""What the command line shows: errors, notices, tables and progress bars.

Answers go to standard output, everything else to standard error, so that output can be piped.
Colours and bars appear on a terminal only; rich decides that from the stream it is given.
"""

import json
import logging
import shlex
from collections.abc import Iterable

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from server.log_format import make_formatter


def output_console() -> Console:
    """Return the console for what a command was asked to print."""
    return Console(highlight=False, soft_wrap=True)


def error_console() -> Console:
    """Return the console for errors, notices and progress."""
    return Console(stderr=True, highlight=False, soft_wrap=True)


def print_error(message: str) -> None:
    """Say in one line what is wrong; line breaks in the message become spaces."""
    line = escape(" ".join(message.split()))
    error_console().print(f"[bold red]slipstream:[/bold red] {line}")


def print_notice(message: str) -> None:
    """Say in one line what is being done."""
    error_console().print(f"[dim]slipstream:[/dim] {escape(message)}")


def print_configuration(rows: Iterable[tuple[str, str, str]]) -> None:
    """Print the resolved configuration: name, value and the reason for it."""
    table = Table(title="Configuration", title_justify="left", title_style="bold", box=None)
    table.add_column("setting", style="cyan", no_wrap=True)
    table.add_column("value", no_wrap=True)
    table.add_column("why", style="dim")
    for name, value, reason in rows:
        table.add_row(escape(name), escape(value), escape(reason))
    # A table must wrap inside its columns, which soft_wrap would prevent.
    Console(stderr=True, highlight=False).print(table)


def print_listening(host: str, port: int, model_name: str) -> None:
    """Say where the server listens and how to try it, ready to be pasted."""
    local = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    address = f"http://{f'[{local}]' if ':' in local else local}:{port}"
    question = {
        "model": model_name,
        "messages": [{"role": "user", "content": "What is the capital of France?"}],
        "temperature": 0,
    }
    console = error_console()
    console.print(f"[bold green]Slipstream listens on {address}[/bold green]  Try it:")
    console.print(
        escape(
            f"  curl {address}/v1/chat/completions -H 'Content-Type: application/json' "
            f"-d {shlex.quote(json.dumps(question, ensure_ascii=False))}"
        )
    )


def configure_logging(level: str, log_format: str = "text") -> None:
    """Send what the packages log, from a level on, to standard error."""
    handler = logging.StreamHandler()
    handler.setFormatter(make_formatter(log_format))
    for name in ("engine", "server", "uvicorn"):
        logger = logging.getLogger(name)
        logger.setLevel(level.upper())
        logger.handlers = [handler]
        logger.propagate = False


def progress_bar(console: Console, *, in_bytes: bool = False) -> Progress:
    """Return a bar that counts steps or bytes; it draws nothing when not on a terminal."""
    amount = DownloadColumn() if in_bytes else TaskProgressColumn()
    return Progress(
        TextColumn("{task.description}"), BarColumn(), amount, TimeRemainingColumn(),
        console=console, disable=not console.is_terminal,
    )  # fmt: skip
