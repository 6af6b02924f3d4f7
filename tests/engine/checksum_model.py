"""A model whose next token is a checksum of what it reads back through the block table.

It keeps its tokens and positions where a real model keeps keys and values: a wrong slot, a copy
left out, a block reused too early, a position off by one, a token lost in a preemption all change
the answer. The oracle knows nothing of blocks: `expected_answer` is the same checksum of the
request's own tokens.
"""

import bisect
import zlib
from collections import Counter
from collections.abc import Callable, Iterable

import numpy as np
import torch

from engine.batch import BatchInputs, SampledTokens, ScheduledBatch
from engine.cache.block_manager import BlockManager
from engine.cache.paged_cache import PagedCache
from engine.cache.sizing import LayerGeometry
from engine.input_builder import InputBuilder
from engine.requests import GenerationOutput, RequestState
from engine.sampling.parameters import SamplingParams
from engine.scheduler import Scheduler
from engine.speculation import Verification

CPU = torch.device("cpu")
GEOMETRY = [LayerGeometry(1, 1, 1, 1, None)]


def checksum(tokens: np.ndarray, vocab_size: int) -> int:
    """Return the token that follows these, [n] int64."""
    return zlib.crc32(tokens.tobytes()) % vocab_size


def mostly_repeating(tokens: np.ndarray, vocab_size: int) -> int:
    """Return a token that seven times of eight is the next of a circle of four, else a checksum."""
    value, last = zlib.crc32(tokens.tobytes()), int(tokens[-1])
    if value % 8 == 0:
        return value // 8 % vocab_size
    return (last - last % 4 + (last + 1) % 4) % vocab_size


Follow = Callable[[np.ndarray, int], int]


def expected_answer(
    prompt: list[int], params: SamplingParams, vocab_size: int, follow: Follow = checksum
) -> list[int]:
    """Return what the model answers, from the prompt alone."""
    tokens = list(prompt)
    ends = params.eos_token_ids | params.stop_token_ids
    for _ in range(params.max_new_tokens):
        tokens.append(follow(np.array(tokens, dtype=np.int64), vocab_size))
        if tokens[-1] in ends:
            break
    return tokens[len(prompt) :]


class ChecksumModel:
    """A `Runner` over a cache of one layer, of which keys are tokens and values are positions.

    Attributes:
        follow: Says which token follows others.
    """

    def __init__(self, blocks: BlockManager, vocab_size: int, follow: Follow = checksum) -> None:
        self.follow = follow
        num_blocks, page_size = blocks.pool.num_blocks, blocks.page_size
        self.page_size = page_size
        self.vocab_size = vocab_size
        self.cache = PagedCache(GEOMETRY, num_blocks, page_size, dtype=torch.int64, device=CPU)
        self.cache.add_host_blocks(blocks.host.num_host_blocks)
        for tensor in self.cache._host_tensors:
            tensor.fill_(-8)
        self.tokens = self.cache.keys[0].view(-1).numpy()
        self.positions = self.cache.values[0].view(-1).numpy()
        self.tokens.fill(-7)
        self.positions.fill(-7)

    def histories(self, inputs: BatchInputs) -> list[np.ndarray]:
        """Write the step's tokens, and read back all up to each row whose logits are wanted."""
        slots = inputs.slots.numpy()
        assert len(np.unique(slots)) == len(slots), "two tokens share a slot"
        self.tokens[slots] = inputs.input_ids[0].numpy()
        self.positions[slots] = inputs.position_ids[0].numpy()
        table = inputs.block_table.numpy()
        read_back = []
        for row, length in enumerate(inputs.context_lengths):
            span = np.arange(length)
            read = table[row, span // self.page_size].astype(np.int64) * self.page_size
            read += span % self.page_size
            assert (self.positions[read] == span).all(), "a position is not where it should be"
            read_back.append(self.tokens[read])
        found = []
        for index in inputs.sample_indices.tolist():
            row = bisect.bisect_right(inputs.query_starts, index) - 1
            num_after = inputs.query_starts[row + 1] - 1 - index
            found.append(read_back[row][: len(read_back[row]) - num_after])
        return found

    def next_tokens(self, inputs: BatchInputs) -> list[int]:
        """Return what follows each row whose logits are wanted."""
        return [self.follow(tokens, self.vocab_size) for tokens in self.histories(inputs)]

    def prepare(self) -> None:
        """There is nothing to prepare."""

    def forward(self, inputs: BatchInputs) -> torch.Tensor:
        """Return [N, V] logits that are 1 at the next token and 0 elsewhere."""
        tokens = torch.tensor(self.next_tokens(inputs), dtype=torch.int64)
        return torch.nn.functional.one_hot(tokens, self.vocab_size).to(torch.float32)


class ChecksumEngine:
    """A scheduler over a checksum model, stepped by hand.

    Attributes:
        ends: Request id -> how many terminal outputs it has had.
    """

    def __init__(self, scheduler: Scheduler, vocab_size: int, follow: Follow = checksum) -> None:
        blocks = scheduler.blocks
        self.scheduler = scheduler
        self.model = ChecksumModel(blocks, vocab_size, follow)
        self.builder = InputBuilder(blocks.page_size, CPU)
        self.ends: Counter[str] = Counter()

    def compute(self, batch: ScheduledBatch) -> SampledTokens:
        """Copy and compute what a batch asks for; the guesses it has are forgotten."""
        return _sampled(self._next_tokens(batch)[: len(batch.sampling)])

    def _next_tokens(self, batch: ScheduledBatch) -> list[int]:
        self.model.cache.copy_blocks(batch.block_copies)
        return self.model.next_tokens(self.builder.build(batch))

    def step(self) -> list[RequestState]:
        """Run one step; return the requests that ended in it."""
        batch = self.scheduler.schedule_batch()
        assert batch.scheduled, "nothing is computed though requests wait"
        self.finish(batch)
        return [item.request for item in batch.scheduled if item.request.is_finished()]

    def finish(self, batch: ScheduledBatch) -> None:
        """Compute a step that has been scheduled, and take it in."""
        tokens = self._next_tokens(batch)
        num_own = len(batch.sampling)
        self.note(*self.scheduler.update(batch, _sampled(tokens[:num_own])))
        verification = Verification(batch)
        while rows := verification.advance():
            drawn = [tokens[num_own + row] for row in rows]
            self.note(*self.scheduler.update(verification.batch(), _sampled(drawn)))
        self.scheduler.speculation.learn(verification)

    def note(self, *outputs: GenerationOutput) -> None:
        """Count terminal outputs."""
        self.ends.update(output.request_id for output in outputs if output.is_finished())

    def check_ends(self, requests: Iterable[RequestState]) -> None:
        """Each request that has ended had one terminal output, and no other request had any."""
        assert self.ends == Counter(r.request_id for r in requests if r.is_finished())

    def check_findable_blocks(self) -> None:
        """Hold what the index says of each block against what lies in its slots."""
        for block, name in self.scheduler.blocks.index._name_of.items():
            start = block * self.model.page_size
            found = self.model.tokens[start : start + len(name.tokens)]
            assert found.tolist() == name.tokens.tolist(), f"block {block} holds something else"


def _sampled(tokens: list[int]) -> SampledTokens:
    return SampledTokens(tokens, [], [None] * len(tokens), {})
