"""64 clients at once, a third of which leave in the middle: the others never notice."""

import asyncio
import random
from dataclasses import dataclass
from typing import Any

import pytest

import engine
from tests.integration.engine_server import (
    Connection,
    EngineServer,
    ServedModel,
    joined_texts,
    run_clients,
    run_engine_server,
)

NUM_CLIENTS = 64
NUM_ROUNDS = 3
MAX_TOKENS = 32
# The test's own limit is shorter; the default model needs minutes for its answers alone.
PATIENCE_SECONDS = 600
TEXTS = [f"{'slipstream ' * repeats}{letter}" for repeats in (0, 3, 12) for letter in "abcd"]
PATHS = ("/v1/completions", "/v1/chat/completions")


@dataclass(frozen=True)
class Client:
    """What one client asks for, and when it leaves.

    Attributes:
        path: Of the request.
        body: Of the request.
        leaves_after: Events after which it leaves, or milliseconds if it does not stream; None
            reads to the end.
        abruptly: Leave with a reset.
    """

    path: str
    body: dict[str, Any]
    leaves_after: int | None
    abruptly: bool

    @property
    def question(self) -> tuple[str, str]:
        """What the answer depends on."""
        return self.path, str({**self.body, "stream": False})


def make_clients(seed: int, count: int = NUM_CLIENTS) -> list[Client]:
    """Return clients of whom a third leave; prompts are ragged and some begin alike."""
    draw = random.Random(seed)
    clients = []
    for number in range(count):
        path = draw.choice(PATHS)
        text = draw.choice(TEXTS)
        asked: dict[str, Any] = {"prompt": text}
        if path.endswith("chat/completions"):
            asked = {"messages": [{"role": "user", "content": text}]}
        options = {
            "temperature": 0,
            "ignore_eos": True,
            "max_tokens": MAX_TOKENS,
            "n": draw.choice([1, 1, 2]),
        }
        leaves = number % 3 == 0
        clients.append(
            Client(
                path,
                {**asked, **options, "stream": draw.random() < 0.75},
                draw.randint(0, MAX_TOKENS // 2) if leaves else None,
                draw.random() < 0.5,
            )
        )
    draw.shuffle(clients)
    return clients


async def be(client: Client, port: int) -> dict[int, str] | None:
    """Do what the client does; return the texts, or None if it left."""
    connection = await Connection.send(port, client.path, client.body)
    try:
        if client.leaves_after is not None:
            if client.body["stream"]:
                await connection.events(client.leaves_after)
            else:
                await asyncio.sleep(client.leaves_after / 1000)
            return None
        if client.body["stream"]:
            return joined_texts(await connection.events())
        status, answer = await connection.whole()
        assert status == 200, answer
        return {
            choice["index"]: choice["text"] if "text" in choice else choice["message"]["content"]
            for choice in answer["choices"]
        }
    finally:
        leaves = client.leaves_after is not None
        await connection.close(abruptly=leaves and client.abruptly)


def answers_alone(server: EngineServer, clients: list[Client]) -> dict[tuple[str, str], Any]:
    """Return the answer to each question when nobody else asks."""

    async def ask_in_turn() -> dict[tuple[str, str], Any]:
        answers: dict[tuple[str, str], Any] = {}
        for client in clients:
            if client.question not in answers:
                body = {**client.body, "stream": False}
                patient = Client(client.path, body, None, False)
                answers[client.question] = await be(patient, server.port)
        return answers

    return run_clients(ask_in_turn(), PATIENCE_SECONDS)


def storm(clients: list[Client], port: int) -> list[dict[int, str] | None]:
    async def all_at_once() -> list[dict[int, str] | None]:
        return await asyncio.gather(*(be(client, port) for client in clients))

    return run_clients(all_at_once(), PATIENCE_SECONDS)


def check_crowds(served: ServedModel, crowds: list[list[Client]], num_blocks: int) -> None:
    """Let one crowd after another ask; each leaves the server as it was."""
    with run_engine_server(served, num_blocks=num_blocks, safety_margin=0.0) as server:
        expected = answers_alone(server, [client for crowd in crowds for client in crowd])
        # One task that watches for a shutdown comes with the first stream of a server, and stays.
        assert server.complete("first", stream=True, max_tokens=1).status_code == 200
        server.wait_until_idle()
        before = server.footprint()
        for crowd in crowds:
            answers = storm(crowd, server.port)
            server.wait_until_idle()
            for client, answer in zip(crowd, answers, strict=True):
                assert answer is None or answer == expected[client.question]
            assert server.footprint() == before
        assert server.manager.statistics().num_preemptions > 0, "the crowd did not fill the cache"
        assert server.http.get("/health").status_code == 200


def test_a_crowd_with_leavers(tiny_model):
    check_crowds(tiny_model, [make_clients(seed) for seed in range(NUM_ROUNDS)], 48)


@pytest.mark.long
def test_a_crowd_with_leavers_at_the_default_model(default_model, default_model_tokenizer):
    served = ServedModel(engine.load(default_model.folder), default_model_tokenizer)
    check_crowds(served, [make_clients(seed, 32) for seed in range(NUM_ROUNDS)], 20)
