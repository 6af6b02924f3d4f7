"""transformers' continuous batching with a model that costs nothing, turned by hand.

The same measurement as `null_engine` makes of ours, for comparison: its own loop body on this
thread, a forward that returns the same logits every time, outputs into its queue.
"""

import logging
import statistics
import time
from typing import Any

import torch
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM
from transformers.generation.configuration_utils import ContinuousBatchingConfig
from transformers.generation.continuous_batching import ContinuousBatchingManager
from transformers.modeling_outputs import CausalLMOutputWithPast

from benchmarks.null_engine import PAGE_SIZE, VOCAB_SIZE

BATCH_TOKENS = 1_024
# Its tables of indices and masks grow with the product of these; beyond, one shape takes minutes.
MAX_CACHED_TOKENS = 200_000


def transformers_steps(
    num_rows: int, context: int, num_waiting: int, num_steps: int
) -> float | None:
    """Return its median cost of a step, in microseconds; None for shapes too large to try."""
    if num_rows * context > MAX_CACHED_TOKENS:
        return None
    manager = _make_manager(num_rows, context + num_steps + 64)
    for row in range(num_rows):
        prompt = [row % VOCAB_SIZE, row // VOCAB_SIZE, *[7] * (context - 2)]
        manager.add_request(prompt, streaming=True, max_new_tokens=num_steps + 50)
    processor = manager._create_batch_processor()
    manager.batch_processor = processor
    manager.current_batch = 0

    def turn() -> float:
        begin = time.thread_time()
        manager._generation_loop_body(processor, False)
        return time.thread_time() - begin

    with torch.inference_mode():
        while manager.output_router.output_queue.qsize() < 4 * num_rows:
            turn()
        for _ in range(num_waiting):
            manager.add_request([7] * 16, streaming=True, max_new_tokens=4)
        turn()
        return statistics.median(turn() for _ in range(num_steps)) * 1e6


def _make_manager(num_rows: int, num_tokens: int) -> Any:
    """Return a manager over a model that is never run."""
    logging.getLogger("transformers").setLevel(logging.ERROR)
    config = LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
        max_position_embeddings=num_tokens,
        eos_token_id=None,
        bos_token_id=None,
        pad_token_id=0,
    )
    model = LlamaForCausalLM(config).eval()
    model.set_attn_implementation("sdpa")
    logits = torch.zeros(1, BATCH_TOKENS, VOCAB_SIZE)
    logits[:, :, 5] = 1.0

    def forward(logits_to_keep: torch.Tensor | int = 0, **_: object) -> CausalLMOutputWithPast:
        count = len(logits_to_keep) if isinstance(logits_to_keep, torch.Tensor) else BATCH_TOKENS
        return CausalLMOutputWithPast(logits=logits[:, :count])

    model.forward = forward
    return ContinuousBatchingManager(
        model,
        GenerationConfig(do_sample=False, eos_token_id=-1),
        ContinuousBatchingConfig(
            page_size=PAGE_SIZE,
            num_blocks=num_rows * (num_tokens // PAGE_SIZE + 2),
            max_batch_tokens=BATCH_TOKENS,
            max_requests_per_batch=num_rows,
        ),
    )
