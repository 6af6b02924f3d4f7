"""A streamed answer of 20,000 tokens: its last token costs what its first did.

Counted, not timed: calls, and bytes that a step takes, which is where a copy of what is already
there would show however few calls it takes.
"""

import asyncio
import itertools
import tracemalloc

import pytest
import torch

from engine.input_builder import InputBuilder
from engine.output_router import OutputRouter
from engine.result_store import ResultStore
from engine.sampling.sampler import Sampler
from tests.engine.builders import make_request, make_scheduler
from tests.engine.test_scheduling_cost import num_calls

NUM_TOKENS = 20_000
PAGE = 256
VOCAB_SIZE = 50
# As many steps as fill one block, so that both windows take a new one once.
WINDOW = PAGE
# Tables grow by an entry a block, and lists double now and then: a copy of the answer is 160 kB.
SLACK_BYTES = 8_000


class NullEngine:
    """Everything of a step but the model, for one streamed request."""

    def __init__(self, router: OutputRouter, num_tokens: int, **params) -> None:
        self.scheduler = make_scheduler(num_blocks=num_tokens // PAGE + 2, page_size=PAGE)
        self.builder = InputBuilder(PAGE, torch.device("cpu"))
        self.sampler = Sampler(return_logprobs=True)
        self.router = router
        self.logits = torch.linspace(-1.0, 1.0, VOCAB_SIZE)[None]
        self.request = make_request("a", max_new_tokens=num_tokens, **params)
        self.request.streaming = True
        self.request.timestamps = []
        self.scheduler.add(self.request)

    def step(self) -> None:
        """Make one token and deliver it."""
        batch = self.scheduler.schedule_batch()
        self.builder.build(batch)
        sampled = self.sampler.sample_batch(self.logits, batch)
        self.router.deliver(self.scheduler.update(batch, sampled))


def cost(engine: NullEngine) -> tuple[int, int]:
    """Return the calls of one window of steps, and the least bytes a step of a second one takes."""
    calls = sum(num_calls(engine.step) for _ in range(WINDOW))
    taken = []
    tracemalloc.start()
    for _ in range(WINDOW // 4):
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        engine.step()
        taken.append(tracemalloc.get_traced_memory()[1] - before)
    tracemalloc.stop()
    return calls, min(taken)


@pytest.mark.parametrize(
    ("num_tokens", "params"),
    [
        (NUM_TOKENS, {}),
        # Many times slower a token, and a copy of 4,000 is seen as well.
        (
            NUM_TOKENS // 5,
            {"temperature": 0.8, "top_p": 0.9, "repetition_penalty": 1.1, "top_logprobs": 2},
        ),
    ],
    ids=["greedy", "everything"],
)
async def test_the_last_token_costs_what_the_first_did(num_tokens, params):
    router = OutputRouter(ResultStore())
    new_tokens: list[int] = []

    def handle(output):
        new_tokens.extend(output.new_tokens)

    router.register("a", handle)
    engine = NullEngine(router, num_tokens, **params)
    while len(engine.request.generated_tokens) < WINDOW:
        engine.step()
    early_calls, early_bytes = cost(engine)
    for count in itertools.count():
        if len(engine.request.generated_tokens) >= num_tokens - 2 * WINDOW:
            break
        engine.step()
        if count % 64 == 0:
            await asyncio.sleep(0)
    late_calls, late_bytes = cost(engine)
    assert late_calls <= 1.02 * early_calls
    assert late_bytes <= early_bytes + SLACK_BYTES
    while not engine.request.is_finished():
        engine.step()
    await asyncio.sleep(0)
    assert new_tokens == engine.request.generated_tokens
    assert len(new_tokens) == num_tokens
