"""A crowd of requests begins a few in each turn of the loop; nobody else waits for it."""

import asyncio
from typing import Any

from server.turns import REQUESTS_PER_TURN, Turns
from tests.server.live import run_live

NOTHING: Any = None


def scope(number: int, method: str = "POST") -> dict[str, Any]:
    return {"type": "http", "method": method, "number": number}


class Begun:
    """An application that notes which requests begin, and in which turn of the loop."""

    def __init__(self) -> None:
        self.layer = Turns(self._answer)
        self.requests: list[int] = []
        self.turns: list[int] = []
        self._turn = 0

    async def _answer(self, scope, _receive, _send) -> None:
        self.requests.append(scope["number"])
        self.turns.append(self._turn)

    def ask(self, number: int, method: str = "POST") -> "asyncio.Task[None]":
        return asyncio.create_task(self.layer(scope(number, method), NOTHING, NOTHING))

    async def pass_turns(self, count: int) -> None:
        for _ in range(count):
            await asyncio.sleep(0)
            self._turn += 1


async def test_a_crowd_begins_a_few_in_each_turn_and_in_order():
    begun = Begun()
    crowd = [begun.ask(number) for number in range(10 * REQUESTS_PER_TURN)]
    await begun.pass_turns(12)
    assert all(task.done() for task in crowd)
    assert begun.requests == list(range(10 * REQUESTS_PER_TURN))
    assert max(map(begun.turns.count, begun.turns)) == REQUESTS_PER_TURN


async def test_one_after_another_nobody_waits():
    begun = Begun()
    for number in range(3 * REQUESTS_PER_TURN):
        task = begun.ask(number)
        await begun.pass_turns(2)
        assert task.done()


async def test_who_asks_for_no_work_does_not_wait_behind_a_crowd():
    begun = Begun()
    crowd = [begun.ask(number) for number in range(100)]
    looking = begun.ask(-1, "GET")
    await begun.pass_turns(1)
    assert begun.requests == [*range(REQUESTS_PER_TURN), -1]
    for task in (*crowd, looking):
        task.cancel()


async def test_who_comes_later_begins_later():
    begun = Begun()
    crowd = [begun.ask(number) for number in range(3 * REQUESTS_PER_TURN)]
    await begun.pass_turns(2)
    late = begun.ask(99)
    await begun.pass_turns(4)
    assert late.done()
    assert begun.requests == [*range(len(crowd)), 99]


async def test_who_leaves_while_waiting_takes_nobody_s_turn():
    begun = Begun()
    crowd = [begun.ask(number) for number in range(4 * REQUESTS_PER_TURN)]
    await begun.pass_turns(1)
    gone = crowd[REQUESTS_PER_TURN : 3 * REQUESTS_PER_TURN]
    for task in gone:
        task.cancel()
    await begun.pass_turns(2)
    assert begun.requests == [
        *range(REQUESTS_PER_TURN), *range(3 * REQUESTS_PER_TURN, 4 * REQUESTS_PER_TURN)
    ]  # fmt: skip
    again = begun.ask(99)
    await begun.pass_turns(2)
    assert again.done()


def test_the_layer_is_the_outermost_of_a_server():
    """Else what lies outside of it is done for a whole crowd in one turn."""
    with run_live() as server:
        layers = server.server.config.app.user_middleware  # type: ignore[union-attr]
        assert layers[0].cls is Turns
