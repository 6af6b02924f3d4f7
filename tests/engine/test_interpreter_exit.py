"""A program that forgets its engine ends all the same."""

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BEFORE = """
    import asyncio, engine
    from transformers import LlamaConfig, LlamaForCausalLM
    shape = dict(hidden_size=16, intermediate_size=16, num_hidden_layers=1, vocab_size=50)
    config = LlamaConfig(num_attention_heads=2, num_key_value_heads=2, eos_token_id=None, **shape)
    model = engine.wrap(LlamaForCausalLM(config))
    settings = engine.ContinuousBatchingConfig(num_blocks=64, page_size=16)
    manager = model.init_continuous_batching(continuous_batching_config=settings)
"""
ENDINGS = {
    "while it runs": "manager.start(); manager.add_request([1], max_new_tokens=900); del manager",
    "before it was started": "manager.add_request([1])",
    "with a handler on a dead loop": """
    async def handle():
        manager.register_result_handler("a", print)
        manager.add_request([1], "a", max_new_tokens=900, streaming=True)
    manager.start()
    asyncio.run(handle())
    """,
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_forgotten_engine_does_not_keep_the_interpreter(ending):
    code = textwrap.dedent(BEFORE) + textwrap.dedent(ENDINGS[ending])
    # An engine that kept the interpreter would do so for ever: idle, it waits for requests.
    ended = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=100
    )
    assert ended.returncode == 0, ended.stderr
    assert "Traceback" not in ended.stderr
