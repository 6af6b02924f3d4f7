"""Asks one server one thing, and learns beforehand how it wants to be asked."""

import asyncio
import dataclasses
import json
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from benchmarks.load.answer import Answer, Outcome
from benchmarks.load.connection import ExchangeError, exchange
from benchmarks.load.target import COUNT_TOKENS, IGNORE_EOS, Target
from benchmarks.load.workload import Workload

# From what measures best to what every server takes.
DIALECTS: tuple[Mapping[str, Any], ...] = (
    {**IGNORE_EOS, **COUNT_TOKENS},
    COUNT_TOKENS,
    IGNORE_EOS,
    {},
)
# How servers say that they don't take a field.
REFUSALS = ("HTTP 400", "HTTP 422")
# How they say that they are still loading, and how often they are asked.
UNAVAILABLE = 503
SECONDS_BETWEEN_LOOKS = 0.2
# Path and field where servers tell their version.
VERSIONS = (("/version", "version"), ("/props", "build_info"))


class UnusableServerError(Exception):
    """A server cannot be measured; the text says which, why, and what to do."""


async def ask(
    target: Target, request: bytes, start_seconds: float, timeout_seconds: float
) -> Outcome:
    """Send a request and return what came of it; a failure is an outcome too."""
    answer = Answer()
    try:
        async with asyncio.timeout(timeout_seconds):
            answer.finish(await exchange(target, request, answer.receive))
    except TimeoutError:
        answer.fail("timeout", f"not over after {timeout_seconds:g} s")
    except ExchangeError as error:
        kind, _, detail = str(error).partition(": ")
        answer.fail(kind, detail)
    return answer.outcome(start_seconds, time.perf_counter())


async def get_acquainted(target: Target, workload: Workload, timeout_seconds: float) -> Target:
    """Return the target with model, accepted fields and version; its model is warm afterwards.

    A server that is still loading its model is waited for.

    Raises:
        UnusableServerError: It doesn't answer, or not even the plainest request.
    """
    await _loaded(target, timeout_seconds)
    if not target.model:
        target = dataclasses.replace(target, model=await _first_model(target, timeout_seconds))
    target = dataclasses.replace(target, software=await _software(target, timeout_seconds))
    for extras in DIALECTS:
        (prompt,) = workload.prompts(1, round_number=-1)
        request = workload.request(target, prompt, extras)
        outcome = await ask(target, request, time.perf_counter(), timeout_seconds)
        if not outcome.error:
            return dataclasses.replace(target, extras=extras)
        if outcome.error not in REFUSALS:
            break
    raise UnusableServerError(
        f"{target.name} ({target.url}, model {target.model!r}) failed its first request: "
        f"{outcome.error}. {outcome.detail}".rstrip()
    )


async def _loaded(target: Target, timeout_seconds: float) -> None:
    """Wait while the server answers that it cannot answer yet; the last look decides nothing."""
    request = target.get(f"{target.base}/models")
    with suppress(ExchangeError, TimeoutError):
        async with asyncio.timeout(timeout_seconds):
            while True:
                if await exchange(target, request, _pass_over) != UNAVAILABLE:
                    return
                await asyncio.sleep(SECONDS_BETWEEN_LOOKS)


def _pass_over(_status: int, _data: bytes, _seconds: float) -> None:
    """Take a body that nobody needs."""


async def _first_model(target: Target, timeout_seconds: float) -> str:
    """Return the first name of the list of models."""
    body = await _get_json(target, f"{target.base}/models", timeout_seconds)
    names = [model.get("id") for model in body.get("data") or () if isinstance(model, dict)]
    if not names or not names[0]:
        raise UnusableServerError(
            f"{target.name} lists no model at {target.url}/models; is it running? If it is, say "
            f"--model {target.name}=MODEL"
        )
    return str(names[0])


async def _software(target: Target, timeout_seconds: float) -> str:
    """Return the version a server tells, or that it tells none."""
    root = target.base.removesuffix("/v1")
    for path, field in VERSIONS:
        version = (await _get_json(target, root + path, timeout_seconds)).get(field)
        if isinstance(version, str):
            return f"version {version}"
    return "version not told"


async def _get_json(target: Target, path: str, timeout_seconds: float) -> Mapping[str, Any]:
    """Return the object at a path; an empty one where there is none."""
    pieces: list[bytes] = []
    try:
        async with asyncio.timeout(timeout_seconds):
            status = await exchange(
                target, target.get(path), lambda _status, data, _seconds: pieces.append(data)
            )
        body = json.loads(b"".join(pieces)) if status == 200 else {}
    except (ExchangeError, TimeoutError, ValueError):
        return {}
    return body if isinstance(body, dict) else {}
