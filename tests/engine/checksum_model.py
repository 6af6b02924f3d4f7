"""A model whose next token is a checksum of what it reads back through the block table.

It keeps its tokens and positions where a real model keeps keys and values: a wrong slot, a copy
left out, a block reused too early, a position off by one, a token lost in a preemption all change
the answer. The oracle knows nothing of blocks: `expected_answer` is the same checksum of the
request's own tokens.
"""

import zlib
from collections import Counter
from collections.abc import Iterable

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

CPU = torch.device("cpu")
GEOMETRY = [LayerGeometry(1, 1, 1, 1, None)]


def checksum(tokens: np.ndarray, vocab_size: int) -> int:
    """Return the token that follows these, [n] int64."""
    return zlib.crc32(tokens.tobytes()) % vocab_size


def expected_answer(prompt: list[int], params: SamplingParams, vocab_size: int) -> list[int]:
    """Return what the model answers, from the prompt alone."""
    tokens = list(prompt)
    ends = params.eos_token_ids | params.stop_token_ids
    for _ in range(params.max_new_tokens):
        tokens.append(checksum(np.array(tokens, dtype=np.int64), vocab_size))
        if tokens[-1] in ends:
            break
    return tokens[len(prompt) :]


class ChecksumModel:
    """A `Runner` over a cache of one layer, of which keys are tokens and values are positions."""

    def __init__(self, blocks: BlockManager, vocab_size: int) -> None:
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

    def next_tokens(self, inputs: BatchInputs) -> list[int]:
        """Write the step's tokens, read each sampling request back, return its next token."""
        slots = inputs.slots.numpy()
        assert len(np.unique(slots)) == len(slots), "two tokens share a slot"
        self.tokens[slots] = inputs.input_ids[0].numpy()
        self.positions[slots] = inputs.position_ids[0].numpy()
        table = inputs.block_table.numpy()
        drawn = {}
        for row, length in enumerate(inputs.context_lengths):
            span = np.arange(length)
            read = table[row, span // self.page_size].astype(np.int64) * self.page_size
            read += span % self.page_size
            assert (self.positions[read] == span).all(), "a position is not where it should be"
            drawn[inputs.query_starts[row + 1] - 1] = checksum(self.tokens[read], self.vocab_size)
        return [drawn[index] for index in inputs.sample_indices.tolist()]

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

    def __init__(self, scheduler: Scheduler, vocab_size: int) -> None:
        blocks = scheduler.blocks
        self.scheduler = scheduler
        self.model = ChecksumModel(blocks, vocab_size)
        self.builder = InputBuilder(blocks.page_size, CPU)
        self.ends: Counter[str] = Counter()

    def compute(self, batch: ScheduledBatch) -> SampledTokens:
        """Copy and compute what a batch asks for."""
        self.model.cache.copy_blocks(batch.block_copies)
        tokens = self.model.next_tokens(self.builder.build(batch))
        return SampledTokens(tokens, [], [None] * len(tokens), {})

    def step(self) -> list[RequestState]:
        """Run one step; return the requests that ended in it."""
        batch = self.scheduler.schedule_batch()
        assert batch.scheduled, "nothing is computed though requests wait"
        self.note(*self.scheduler.update(batch, self.compute(batch)))
        return [item.request for item in batch.scheduled if item.request.is_finished()]

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
