"""Whoever takes over a model, and however often: forwards that share anything take turns."""

import copy
import gc
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

import engine
from engine import ContinuousBatchingConfig
from engine.models import turns
from engine.models.turns import Turn
from tests.engine.threads import DEADLINE_SECONDS, Call

CONFIG = ContinuousBatchingConfig(num_blocks=64, page_size=16, step_time_target=0.0)
PROMPTS = [[n, n + 1, n + 2] for n in range(6)]


def make_config() -> LlamaConfig:
    return LlamaConfig(
        vocab_size=97, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=256,
        initializer_range=0.3, bos_token_id=None, eos_token_id=None, pad_token_id=0,
    )  # fmt: skip


def make_model(config: LlamaConfig | None = None) -> PreTrainedModel:
    torch.manual_seed(0)
    return LlamaForCausalLM(config or make_config()).eval()


def the_same() -> tuple[PreTrainedModel, PreTrainedModel]:
    model = make_model()
    return model, model


def with_one_decoder() -> tuple[PreTrainedModel, PreTrainedModel]:
    first, second = make_model(), make_model()
    second.model = first.model
    return first, second


def with_one_configuration() -> tuple[PreTrainedModel, PreTrainedModel]:
    config = make_config()
    return make_model(config), make_model(config)


SHARERS: dict[str, Callable[[], tuple[PreTrainedModel, PreTrainedModel]]] = {
    "one model taken over twice": the_same,
    "two models over one decoder": with_one_decoder,
    "two models of one configuration": with_one_configuration,
}


class Doorkeeper:
    """Stands at the head of models and notes who is inside at the same time."""

    def __init__(self, *models: PreTrainedModel) -> None:
        self.inside = 0
        self.most = 0
        self.num_entries = 0
        self.entered = threading.Event()
        self.may_leave = threading.Event()
        self.may_leave.set()
        self._counting = threading.Lock()
        for head in {id(model.lm_head): model.lm_head for model in models}.values():
            head.register_forward_pre_hook(self._enter)
        for base in {id(model): model for model in models}.values():
            base.register_forward_pre_hook(self._begin)
            base.register_forward_hook(self._end)

    def _enter(self, *_: Any) -> None:
        self.entered.set()
        assert self.may_leave.wait(DEADLINE_SECONDS)

    def _begin(self, *_: Any) -> None:
        with self._counting:
            self.inside += 1
            self.num_entries += 1
            self.most = max(self.most, self.inside)

    def _end(self, *_: Any) -> None:
        with self._counting:
            self.inside -= 1


@pytest.mark.parametrize("kind", SHARERS)
def test_two_engines_that_share_something_are_not_in_a_forward_together(kind):
    models = SHARERS[kind]()
    wrapped = [engine.wrap(model) for model in models]
    expected = [
        [output.generated_tokens for output in generate(model).values()] for model in wrapped
    ]
    doorkeeper = Doorkeeper(*models)
    for _ in range(2):
        calls = [Call(generate, model) for model in wrapped]
        for call, tokens in zip(calls, expected, strict=True):
            assert [output.generated_tokens for output in call.outcome().values()] == tokens
    assert doorkeeper.num_entries > 40
    assert doorkeeper.most == 1


def generate(model: engine.PagedModel) -> dict[str, engine.GenerationOutput]:
    return model.generate_batch(
        PROMPTS, continuous_batching_config=CONFIG, max_new_tokens=12, warmup=False
    )


@pytest.mark.parametrize("kind", SHARERS)
def test_a_second_wrap_waits_for_the_forward_that_runs(kind):
    """Its probe, its fusion and its self-check change the same modules."""
    first, second = SHARERS[kind]()
    wrapped = engine.wrap(first)
    doorkeeper = Doorkeeper(first)
    doorkeeper.may_leave.clear()
    running = Call(generate, wrapped)
    assert doorkeeper.entered.wait(DEADLINE_SECONDS)
    name = first.config._attn_implementation
    before = [dict(vars(module)) for module in first.modules()]
    wrapping = Call(engine.wrap, second)
    wrapping.join(0.05)
    assert wrapping.is_alive(), "it did not wait"
    assert first.config._attn_implementation == name
    assert [vars(module) for module in first.modules()] == before
    doorkeeper.may_leave.set()
    running.outcome()
    generate(wrapping.outcome())


def test_models_that_share_nothing_do_not_wait_for_each_other():
    first, second = make_model(), make_model()
    wrapped = [engine.wrap(first), engine.wrap(second)]
    doorkeeper = Doorkeeper(first)
    doorkeeper.may_leave.clear()
    running = Call(generate, wrapped[0])
    assert doorkeeper.entered.wait(DEADLINE_SECONDS)
    generate(wrapped[1])
    doorkeeper.may_leave.set()
    running.outcome()


def test_a_turn_over_parts_of_two_others_excludes_both():
    class Part:
        pass

    a, b, c = Part(), Part(), Part()
    first, second, both = Turn([a]), Turn([b]), Turn([c, b, a])
    for single in (first, second):
        with single.taken():
            waiting = Call(lambda: both.taken().__enter__())
            waiting.join(0.02)
            assert waiting.is_alive()
        waiting.outcome()
    with both.taken(), both.taken():
        waiting = Call(lambda: second.taken().__enter__())
        waiting.join(0.02)
        assert waiting.is_alive()
    waiting.outcome()


def test_nothing_is_kept_of_a_model_that_is_gone_and_a_copy_has_locks_of_its_own():
    model = make_model()
    before = len(turns._locks)
    wrapped = engine.wrap(model)
    assert len(turns._locks) > before
    copied = copy.deepcopy(model)
    with wrapped.causal_lm._turn.taken():
        Call(engine.wrap, copied).outcome()
    del model, wrapped, copied
    gc.collect()
    assert len(turns._locks) <= before
