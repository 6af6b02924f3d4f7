"""The settings under which tokens must not change, and the prompts that are run under them."""

import random
from dataclasses import dataclass
from itertools import product

from engine import ContinuousBatchingConfig
from tests.engine.parity.families import VOCAB_SIZE

NUM_PARALLEL = 16
MAX_NEW_TOKENS = 20
LONGEST_PROMPT = 90


@dataclass(frozen=True, slots=True)
class Settings:
    """One way to run a batch.

    Attributes:
        page_size: Positions in a block.
        chunk: Tokens in a step.
        sharing: Whether equal prefixes share blocks.
        small_cache: Whether the cache is so small that requests are preempted.
        scheduler: The scheduler's name.
    """

    page_size: int
    chunk: int
    sharing: bool
    small_cache: bool
    scheduler: str

    def __str__(self) -> str:
        words = [f"page{self.page_size}", f"chunk{self.chunk}", self.scheduler]
        words += ["shared"] * self.sharing + ["small"] * self.small_cache
        return "-".join(words)

    def config(self, longest_request: int, *, spare_tokens: int) -> ContinuousBatchingConfig:
        """Return the engine's configuration.

        Args:
            longest_request: Most tokens of a prompt and its answer; a small cache holds them.
            spare_tokens: What a small cache holds beside.
        """
        num_blocks = None
        if self.small_cache:
            num_blocks = -(-longest_request // self.page_size) + spare_tokens // self.page_size
        return ContinuousBatchingConfig(
            page_size=self.page_size,
            num_blocks=num_blocks or 2 * NUM_PARALLEL * (1 + longest_request // self.page_size),
            max_batch_tokens=self.chunk,
            max_requests_per_batch=NUM_PARALLEL,
            allow_block_sharing=self.sharing,
            scheduler_type=self.scheduler,
            safety_margin=0.0 if self.small_cache else None,
        )


# With one page for a whole request nothing grows, so nothing can be preempted.
ALL_SETTINGS = [
    settings
    for settings in (
        Settings(*values)
        for values in product(
            (4, 16, 256), (8, 64, 512), (True, False), (False, True), ("fifo", "prefill_first")
        )
    )
    if not (settings.small_cache and settings.page_size == 256)
]

# Every pair of values of two fields occurs in one of them.
PAIRWISE_SETTINGS = [
    Settings(4, 8, True, False, "fifo"),
    Settings(16, 64, False, True, "prefill_first"),
    Settings(256, 512, True, False, "prefill_first"),
    Settings(4, 64, True, True, "fifo"),
    Settings(16, 512, True, True, "fifo"),
    Settings(256, 8, False, False, "prefill_first"),
    Settings(4, 512, False, True, "prefill_first"),
    Settings(16, 8, True, False, "fifo"),
    Settings(256, 64, False, False, "fifo"),
    Settings(16, 8, True, True, "prefill_first"),
    Settings(4, 512, False, False, "fifo"),
]


def make_prompts(seed: int = 0) -> list[list[int]]:
    """Return prompts of 1 to 90 tokens; some begin alike, one occurs twice."""
    source = random.Random(seed)

    def tokens(count: int) -> list[int]:
        return [source.randrange(VOCAB_SIZE) for _ in range(count)]

    shared = tokens(37)
    prompts = [tokens(count) for count in (1, 2, 3, 7, 8, 9, 16, 33, LONGEST_PROMPT)]
    prompts += [shared + tokens(count) for count in (1, 3, 11, 40)]
    prompts += [shared[:21] + tokens(5), list(prompts[-1]), list(shared)]
    source.shuffle(prompts)
    assert len(prompts) == NUM_PARALLEL
    return prompts
