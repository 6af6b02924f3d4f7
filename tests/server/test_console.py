"""What the command writes: one line for an error, a line to try that a shell takes as it is."""

import json
import logging
import shlex

import pytest

from server.console import (
    configure_logging,
    print_configuration,
    print_error,
    print_listening,
)


def test_an_error_is_one_line_and_no_markup(capsys):
    print_error("first\n  second [bold]third[/bold]")
    written = capsys.readouterr()
    assert written.err == "slipstream: first second [bold]third[/bold]\n"
    assert written.out == ""


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("127.0.0.1", "http://127.0.0.1:80"),
        ("0.0.0.0", "http://127.0.0.1:80"),
        ("::", "http://[::1]:80"),
        ("::1", "http://[::1]:80"),
    ],
)
def test_the_line_to_try_reaches_the_server(capsys, host, address):
    print_listening(host, 80, "it's [a] model")
    first, second = capsys.readouterr().err.splitlines()
    assert f"listens on {address} " in first
    command = shlex.split(second)
    assert command[:2] == ["curl", f"{address}/v1/chat/completions"]
    assert json.loads(command[-1])["model"] == "it's [a] model"


def test_the_configuration_names_value_and_reason(capsys):
    print_configuration([("page_size", "32 tokens", "as set"), ("seed", "[random]", "none set")])
    text = capsys.readouterr().err
    assert [word in text for word in ("page_size", "32 tokens", "as set", "[random]")] == [True] * 4


def test_logging_touches_the_two_packages_only():
    loggers = [logging.getLogger(name) for name in ("engine", "server")]
    before = [(each.level, each.handlers, each.propagate) for each in loggers]
    root = logging.getLogger().handlers[:]
    try:
        configure_logging("error")
        configure_logging("warning")
        assert [each.level for each in loggers] == [logging.WARNING] * 2
        assert [len(each.handlers) for each in loggers] == [1, 1], "a second call adds nothing"
        assert logging.getLogger().handlers == root
    finally:
        for each, (level, handlers, propagate) in zip(loggers, before, strict=True):
            each.level, each.handlers, each.propagate = level, handlers, propagate
