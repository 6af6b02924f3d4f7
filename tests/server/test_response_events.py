"""The events of a response reach their reader once each, in order, however slowly it reads."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from server.responses import run as run_module
from server.responses.run import EventUse, ResponseRun

NUM_EVENTS = 40


class Renderer:
    """Makes an event of each number."""

    has_ended = False

    def opening(self) -> list[int]:
        return [0]

    def events(self, choice: int) -> list[int]:
        return [choice]

    def closing(self, _usage: Any) -> list[int]:
        self.has_ended = True
        return [NUM_EVENTS]


class Answer:
    """A chat whose chunks come at their own pace."""

    generation = SimpleNamespace(close=lambda: None)

    def __init__(self, pauses: int) -> None:
        self._pauses = pauses

    async def chunks(self) -> Any:
        for number in range(1, NUM_EVENTS):
            for _ in range(self._pauses):
                await asyncio.sleep(0)
            yield SimpleNamespace(choices=[number])

    def usage(self) -> None:
        return None


@pytest.mark.parametrize("use", [EventUse.PASSED_ON, EventUse.KEPT])
@pytest.mark.parametrize(("writer", "reader"), [(0, 0), (0, 3), (1, 3), (3, 1), (0, 500)])
async def test_each_event_is_read_once(monkeypatch, use, writer, reader):
    monkeypatch.setattr(run_module, "event_frame", lambda event: event)
    answer, renderer = Answer(writer), Renderer()
    run = ResponseRun(answer, renderer, use)  # type: ignore[arg-type]
    run.start(on_end=lambda: None)
    seen: list[Any] = []
    async for event in run.follow():
        seen.append(event)
        for _ in range(reader):
            await asyncio.sleep(0)
    assert seen == list(range(NUM_EVENTS + 1))
