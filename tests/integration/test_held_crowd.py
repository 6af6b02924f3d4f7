"""Many held answers at once, in a cache that is too small for them: each follows its own form."""

import asyncio
import re

from tests.integration.engine_server import (
    Connection,
    joined_texts,
    run_clients,
    run_engine_server,
)

PATTERNS = ["[a-f]{30,60}", "(yes|no) [0-9]{20,40}", "x{50}", "[A-Z][a-z]{1,70}"]
NUM_CLIENTS = 32


def body(number: int) -> dict:
    pattern = PATTERNS[number % len(PATTERNS)]
    return {
        "prompt": [20 + (number + k) % 60 for k in range(40)],
        "guided_regex": f"{pattern}!" if number % 3 else f"{pattern}[.]",
        "max_tokens": 100,
        "temperature": 1 if number % 2 else 0,
        "seed": number,
        "n": 1 + number % 3,
        "stream": number % 4 != 3,
    }


async def ask(port: int, number: int) -> None:
    asked = body(number)
    connection = await Connection.send(port, "/v1/completions", asked)
    if number % 7 == 5:  # some leave in the middle
        await connection.events(3)
        await connection.close(abruptly=True)
        return
    if asked["stream"]:
        texts = joined_texts(await connection.events())
    else:
        status, answer = await connection.whole()
        assert status == 200, answer
        texts = {choice["index"]: choice["text"] for choice in answer["choices"]}
    await connection.close()
    assert len(texts) == asked["n"]
    for text in texts.values():
        assert re.fullmatch(asked["guided_regex"], text), text


def test_every_answer_of_a_crowd_follows_its_own_form(tiny_model):
    with run_engine_server(tiny_model, num_blocks=48) as server:

        async def crowd() -> None:
            await asyncio.gather(*(ask(server.port, number) for number in range(NUM_CLIENTS)))

        run_clients(crowd())
        server.wait_until_idle()
        assert server.manager.statistics().num_preemptions > 0, "the cache was large enough"
