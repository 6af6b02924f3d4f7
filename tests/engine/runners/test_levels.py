"""The preset levels with torch's own compiler: the model's own answers, to the bit."""

import copy

import pytest
import torch
from transformers import GenerationConfig

from engine import ContinuousBatchingConfig, wrap
from tests.engine.control import loop_of

pytestmark = [
    pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning"),
    pytest.mark.timeout(600),
]

PROMPTS = [[(7 * i + row) % 199 for i in range(3 + 11 * row)] for row in range(6)]


def answers(model, **fields):
    """Greedy answers in a crowd, then alone, and the runner that computed them."""
    config = ContinuousBatchingConfig(
        num_blocks=64, page_size=16, max_batch_tokens=32, return_logprobs=True, **fields
    )
    manager = model.init_continuous_batching(GenerationConfig(), config)
    runner = loop_of(manager)._parts.runner
    manager.warmup()
    manager.start()
    together = manager.add_requests(PROMPTS, max_new_tokens=8)
    found = [manager.get_result(name) for name in together]
    for prompt in PROMPTS:
        found.append(manager.get_result(manager.add_request(prompt, max_new_tokens=8)))
    manager.stop()
    manager.destroy()
    return [(output.generated_tokens, output.logprobs) for output in found], runner


def check_level(model, level, max_requests):
    torch._dynamo.reset()
    expected, _ = answers(model, max_requests_per_batch=max_requests)
    computed, runner = answers(
        model, max_requests_per_batch=max_requests, default_compile_level=level
    )
    assert runner.failure is None
    assert computed == expected
    torch._dynamo.reset()


def test_code_that_was_generated_answers_as_the_model_does(tiny_model):
    check_level(tiny_model, 1, 1)


@pytest.mark.long
@pytest.mark.parametrize("in_layers", [False, True])
@pytest.mark.parametrize("level", [1, 2, 3])
def test_every_level_answers_as_the_model_does(tiny_model, level, in_layers):
    """Also where the compiler sees the layers and not one call for all of them."""
    model = wrap(copy.deepcopy(tiny_model.hf_model))
    if in_layers:
        model.causal_lm.in_place = model.causal_lm.replacements
    check_level(model, level, 4)
