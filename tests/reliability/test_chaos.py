"""Everything at once, for a while: no wrong answer, no lost request (R15, R19, R21)."""

import asyncio
import json
import logging
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from engine.faults import FaultPoint
from tests.engine.threads import until
from tests.integration.engine_server import (
    Connection,
    EngineServer,
    joined_texts,
    run_clients,
    run_engine_server,
)
from tests.reliability.tally import (
    bytes_per_minute,
    counted,
    logs_not_kept,
    resident_bytes,
    settled_footprint,
)

logger = logging.getLogger(__name__)

PATH = "/v1/completions"
POISON = "~"
NUM_CLIENTS = 24
MAX_GROWTH_BYTES = 50 * 2**20
# After each round everybody has gone, and what is left is looked at.
ROUND_SECONDS = 15.0
# By then everything that is kept for the next request is there.
NUM_WARM_UP_ROUNDS = 8
MAX_BYTES_PER_MINUTE = 10**6
PROMPTS = [f"{'chaos ' * repeats}{letter}" for repeats in (0, 4, 20) for letter in "abcd"]
LENGTHS = (1, 8, 40)


@dataclass
class Tally:
    """What the clients have seen."""

    counts: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)


@dataclass
class Chaos:
    """One run: a server, the right answers, and what has happened so far."""

    server: EngineServer
    answers: dict[tuple[str, int], str]
    draw: random.Random
    tally: Tally = field(default_factory=Tally)

    def body(self, **fields: Any) -> dict[str, Any]:
        return {"temperature": 0, "ignore_eos": True, **fields}

    async def ask_well(self) -> None:
        """Read a whole answer, streamed or not; it must be the right one."""
        prompt, length = self.draw.choice(PROMPTS), self.draw.choice(LENGTHS)
        stream = self.draw.random() < 0.6
        body = self.body(prompt=prompt, max_tokens=length, stream=stream)
        connection = await Connection.send(self.server.port, PATH, body)
        if stream:
            text = joined_texts(await connection.events())[0]
        else:
            status, answer = await connection.whole()
            assert status == 200, answer
            text = answer["choices"][0]["text"]
        await connection.close()
        self.tally.counts["well"] += 1
        if text != self.answers[prompt, length]:
            self.tally.wrong.append(text)

    async def leave(self) -> None:
        """Go in the middle, or before the first byte."""
        stream = self.draw.random() < 0.7
        body = self.body(prompt=self.draw.choice(PROMPTS), max_tokens=200, stream=stream)
        connection = await Connection.send(self.server.port, PATH, body)
        if stream:
            await connection.events(self.draw.randint(1, 6))
        else:
            await asyncio.sleep(self.draw.random() * 0.05)
        await connection.close(abruptly=self.draw.random() < 0.5)
        self.tally.counts["left"] += 1

    async def read_slowly(self) -> None:
        """Take an answer piece by piece, with long looks aside."""
        prompt = self.draw.choice(PROMPTS)
        body = self.body(prompt=prompt, max_tokens=40, stream=True)
        connection = await Connection.send(self.server.port, PATH, body)
        events: list[str] = []
        while piece := await connection.events(8):
            events += piece
            await asyncio.sleep(0.1)
        await connection.close()
        self.tally.counts["well"] += 1
        if joined_texts(events)[0] != self.answers[prompt, 40]:
            self.tally.wrong.append("slow")

    async def poison(self) -> None:
        """Break the step that one is in."""
        body = self.body(prompt=POISON + self.draw.choice(PROMPTS), max_tokens=4)
        connection = await Connection.send(self.server.port, PATH, body)
        status, answer = await connection.whole()
        await connection.close()
        assert (status, answer["error"]["code"]) == (500, "request_failed")
        self.tally.counts["poisoned"] += 1

    async def ask_badly(self) -> None:
        """Send what is refused."""
        bad: list[tuple[dict[str, Any], int]] = [
            ({"prompt": "a", "max_tokens": -5}, 400),
            ({"prompt": [10**9]}, 400),
            ({"prompt": "a", "n": 10**9}, 400),
            ({"prompt": "x" * 5000}, 400),
            ({"prompt": "x" * 9_000_000}, 413),
            ({"prompt": "a", "stop_token_ids": [10**6]}, 400),
        ]
        body, expected = self.draw.choice(bad)
        connection = await Connection.send(self.server.port, PATH, body)
        status, answer = await connection.whole()
        await connection.close()
        assert status == expected, answer
        self.tally.counts["refused"] += 1

    async def send_rubbish(self) -> None:
        """Bytes that are no request, or only the beginning of one."""
        rubbish = [
            b"\0" * 100,
            b"GET / HT",
            b"POST /v1/completions HTTP/1.1\r\n\r\n{",
            b"\r\n" * 50,
        ]
        _, writer = await asyncio.open_connection("127.0.0.1", self.server.port)
        writer.write(self.draw.choice(rubbish))
        await writer.drain()
        writer.close()
        self.tally.counts["rubbish"] += 1

    async def run(self, seconds: float) -> None:
        """Let clients do one thing after another until the time is over."""
        ends = time.monotonic() + seconds
        actions: list[tuple[Callable[[], Awaitable[None]], int]] = [
            (self.ask_well, 10), (self.leave, 4), (self.read_slowly, 2), (self.poison, 1),
            (self.ask_badly, 2), (self.send_rubbish, 1),
        ]  # fmt: skip

        async def client() -> None:
            while time.monotonic() < ends:
                act, *_ = self.draw.choices(*zip(*actions, strict=True))
                await act()

        await asyncio.gather(*(client() for _ in range(NUM_CLIENTS)))


def check_chaos(tiny_model, num_rounds: int, seconds: float, seed: int) -> dict[str, float]:
    """Let it happen in rounds of so many seconds; what has happened is logged and returned."""
    with logs_not_kept():
        summary = run_chaos(tiny_model, num_rounds, seconds, seed)
    logger.warning("chaos: %s", json.dumps(summary))
    return summary


def run_chaos(tiny_model, num_rounds: int, seconds: float, seed: int) -> dict[str, float]:
    with run_engine_server(tiny_model, num_blocks=64, safety_margin=0.0) as server:
        answers = {
            (prompt, length): server.text(prompt, max_tokens=length, ignore_eos=True)
            for prompt in PROMPTS
            for length in LENGTHS
        }
        token = server.tokenizer.encode(POISON, add_special_tokens=False)[0]
        server.manager._channels.faults.arm(FaultPoint.FORWARD, token=token)
        warm = Chaos(server, answers, random.Random(seed))
        run_clients(warm.run(2.0), 100)
        server.wait_until_idle()
        memory, footprint = [(0.0, resident_bytes())], settled_footprint(server)
        counted_before = counted(server, "requests")
        chaos = Chaos(server, answers, random.Random(seed + 1))
        for number in range(num_rounds):
            run_clients(chaos.run(seconds), seconds + 200)
            server.wait_until_idle()
            # The test's own connection was closed by the server if nobody used it for a while.
            assert server.http.get("/live").status_code == 200
            until(lambda: server.footprint() == footprint)
            memory.append(((number + 1) * seconds, resident_bytes()))
        growth = memory[-1][1] - memory[0][1]
        told, seen = counted(server, "requests") - counted_before, chaos.tally.counts
        assert chaos.tally.wrong == []
        assert min(seen.values()) > 0, seen
        assert told["failed"] == seen["poisoned"]
        # Whoever leaves before the engine has the request leaves nothing that could be counted.
        assert seen["well"] <= told["completed"] <= seen["well"] + seen["left"]
        assert told["completed"] + told["cancelled"] <= seen["well"] + seen["left"]
        assert server.manager.statistics().num_live == 0
        assert len(server.state.running) == 0
        assert server.state.admission.num_preparing == 0
        assert growth < MAX_GROWTH_BYTES, f"{growth / 2**20:.0f} MiB"
        summary = {"seconds": memory[-1][0], "growth_mib": round(growth / 2**20, 1), **seen, **told}
        if steady := memory[NUM_WARM_UP_ROUNDS + 1 :]:
            summary["bytes_per_minute"] = round(bytes_per_minute(steady))
        return summary


def test_chaos_for_a_moment(tiny_model):
    check_chaos(tiny_model, 1, 10.0, seed=1)


@pytest.mark.long
@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_chaos_for_ten_minutes(tiny_model):
    found = check_chaos(tiny_model, 40, ROUND_SECONDS, seed=2)
    assert found["bytes_per_minute"] <= MAX_BYTES_PER_MINUTE


@pytest.mark.parametrize("growth", [0, 2_000_000, -500_000])
def test_growth_is_seen_through_what_comes_and_goes(growth):
    draw = random.Random(0)
    samples = [
        (15.0 * number, 500_000_000 + growth * number // 4 + draw.choice([0, 0, 0, 17_000_000]))
        for number in range(32)
    ]
    assert abs(bytes_per_minute(samples) - growth) < 100_000
