"""Put load on a running server: many streams at once, and what they got.

BASE_URL=http://127.0.0.1:8000/v1 MODEL=SmolLM2-135M-Instruct python examples/load.py 32
"""

import asyncio
import os
import sys
import time

from openai import AsyncOpenAI


async def ask(client: AsyncOpenAI, number: int) -> tuple[float, int]:
    """Return the seconds to the first piece of one answer, and how many pieces there were."""
    started, first, num_pieces = time.perf_counter(), 0.0, 0
    stream = await client.completions.create(
        model=os.environ.get("MODEL", "SmolLM2-135M-Instruct"),
        prompt=f"Story number {number}: once upon a time",
        max_tokens=64,
        stream=True,
    )
    async for _ in stream:
        first = first or time.perf_counter() - started
        num_pieces += 1
    return first, num_pieces


async def main() -> None:
    num_streams, started = int(sys.argv[1]) if len(sys.argv) > 1 else 16, time.perf_counter()
    url = os.environ.get("BASE_URL", "http://127.0.0.1:8000/v1")
    async with AsyncOpenAI(base_url=url, api_key="none", timeout=600) as client:
        answers = await asyncio.gather(*(ask(client, number) for number in range(num_streams)))
    rate = sum(num_pieces for _, num_pieces in answers) / (time.perf_counter() - started)
    slowest = max(first for first, _ in answers)
    print(f"{num_streams} streams, {rate:.0f} pieces a second, first piece within {slowest:.2f} s")


asyncio.run(main())
