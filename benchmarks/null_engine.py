"""An engine whose model costs nothing, turned by hand, for measuring everything else.

Reaches into `engine` below its public names on purpose: what is measured is the loop itself. One
thread; the event loop that outputs go to stands still while a step is timed.
"""

import asyncio
import time
from types import TracebackType

import torch

from engine.admission import AdmissionGate
from engine.batch import BatchInputs
from engine.cache.block_manager import BlockManager
from engine.cache.paged_cache import PagedCache
from engine.cache.sizing import LayerGeometry
from engine.input_builder import InputBuilder
from engine.loop import Channels, EngineLoop, StepParts
from engine.mailbox import Mailbox
from engine.models.weights import WeightWatch
from engine.output_router import OutputRouter
from engine.pause import PauseGate
from engine.requests import GenerationOutput, RequestState
from engine.result_store import ResultStore
from engine.sampling.parameters import SamplingParams
from engine.sampling.sampler import Sampler
from engine.scheduler import Scheduler

PAGE_SIZE = 256
VOCAB_SIZE = 32
PREFILL_TOKENS = 65_536
CPU = torch.device("cpu")


class NullRunner:
    """Answers every step with the same logits."""

    def __init__(self, num_rows: int) -> None:
        """Make the logits once."""
        self._logits = torch.zeros(num_rows, VOCAB_SIZE)
        self._logits[:, 7] = 1.0

    def forward(self, inputs: BatchInputs) -> torch.Tensor:
        """Return a view."""
        return self._logits[: len(inputs.sample_indices)]

    def prepare(self) -> None:
        """Do nothing: there is nothing to wait for."""


class NullEngine:
    """A loop with all its channels and no model."""

    def __init__(self, num_rows: int, num_tokens: int) -> None:
        """Make room.

        Args:
            num_rows: Requests that may run at once.
            num_tokens: Positions that each may use.
        """
        num_blocks = num_rows * (num_tokens // PAGE_SIZE + 2)

        def make_scheduler() -> Scheduler:
            return Scheduler(
                BlockManager(num_blocks, PAGE_SIZE, allow_sharing=True),
                max_batch_tokens=PREFILL_TOKENS,
                max_requests=num_rows,
                num_reserved_blocks=0,
            )

        cache = PagedCache(
            [LayerGeometry(1, 1, 1, 1, None)], num_blocks, PAGE_SIZE, dtype=torch.int8, device=CPU
        )
        parts = StepParts(
            scheduler=make_scheduler(),
            input_builder=InputBuilder(PAGE_SIZE, CPU),
            cache=cache,
            runner=NullRunner(num_rows),
            sampler=Sampler(return_logprobs=False),
            make_scheduler=make_scheduler,
            weights=WeightWatch(None),
        )
        self._mailbox = Mailbox()
        self._router = OutputRouter(ResultStore())
        self._gate = AdmissionGate(0)
        pause = PauseGate(self._mailbox.poke)
        self._engine = EngineLoop(parts, Channels(self._mailbox, self._gate, pause, self._router))
        self._events = asyncio.new_event_loop()
        self._num_submitted = 0
        self.num_outputs = 0

    def __enter__(self) -> "NullEngine":
        """Nothing is to be done."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the event loop."""
        self._events.close()

    def submit(self, count: int, num_prompt_tokens: int, *, max_new_tokens: int) -> None:
        """Add streamed greedy requests whose prompts have nothing in common."""
        for number in range(self._num_submitted, self._num_submitted + count):
            prompt = [number % VOCAB_SIZE, number // VOCAB_SIZE, *range(num_prompt_tokens - 2)]
            params = SamplingParams(temperature=0.0, max_new_tokens=max_new_tokens)
            request = RequestState(f"r{number}", prompt, params, streaming=True)
            self._events.run_until_complete(self._register(request.request_id))
            self._gate.acquire()
            self._mailbox.post(request)
        self._num_submitted += count

    def run_until_decoding(self, num_rows: int) -> None:
        """Compute the prompts, and a few tokens more."""
        while self.num_outputs < 8 * num_rows:
            self.timed_turn()

    def timed_turn(self) -> float:
        """Run one step; return how long it took, in seconds. Outputs are handled afterwards."""
        begin = time.thread_time()
        self._engine.turn()
        elapsed = time.thread_time() - begin
        self._events.call_soon(self._events.stop)
        self._events.run_forever()
        return elapsed

    async def _register(self, request_id: str) -> None:
        self._router.register(request_id, self._count)

    def _count(self, output: GenerationOutput) -> None:
        del output
        self.num_outputs += 1
