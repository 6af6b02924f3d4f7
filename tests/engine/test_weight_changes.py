"""Weights that change during a pause, or between two sessions: nothing computed before is used."""

import copy

import pytest
import torch
from transformers import GenerationConfig

from engine import ContinuousBatchingConfig, wrap
from engine.models.weights import WeightWatch
from tests.engine.threads import until

PROMPT = list(range(40))
SMALL = ContinuousBatchingConfig(num_blocks=64, page_size=16, max_batch_tokens=64)


@pytest.fixture
def model(tiny_model):
    """A model of this test's own, whose weights may be changed."""
    return wrap(copy.deepcopy(tiny_model.hf_model))


@pytest.fixture
def manager(model):
    manager = model.init_continuous_batching(
        GenerationConfig(max_new_tokens=6), continuous_batching_config=SMALL
    )
    manager.start()
    yield manager
    manager.stop(hard_stop=True)
    manager.destroy()


def replaced(model):
    for layer in model.hf_model.model.layers:
        layer.mlp.down_proj.weight = torch.nn.Parameter(-layer.mlp.down_proj.weight.detach())


def in_place(model):
    with torch.no_grad():
        for parameter in model.hf_model.parameters():
            parameter.mul_(-1.5)


def through_data(model):
    for parameter in model.hf_model.parameters():
        parameter.data.mul_(-1.5)


def as_state(model):
    model.hf_model.load_state_dict(
        {name: -1.5 * value for name, value in model.hf_model.state_dict().items()}
    )


CHANGES = [replaced, in_place, through_data, as_state]


def expected(model, tokens, count):
    """What the model answers on its own, greedily."""
    ids = torch.tensor([tokens])
    with torch.inference_mode():
        for _ in range(count):
            ids = torch.cat([ids, model.hf_model(ids).logits[:, -1:].argmax(-1)], dim=1)
    return ids[0, len(tokens) :].tolist()


def ask(manager):
    manager.add_request(PROMPT, "a", max_new_tokens=6)
    return manager.get_result("a")


@pytest.mark.parametrize("change", CHANGES)
def test_changed_weights_take_effect_and_old_prefixes_are_gone(manager, model, change):
    before = ask(manager).generated_tokens
    assert before == expected(model, PROMPT, 6)
    with manager.pause():
        change(model)
    output = ask(manager)
    assert output.num_cached_tokens == 0
    assert output.generated_tokens == expected(model, PROMPT, 6) != before


def test_a_pause_without_a_change_keeps_the_prefixes(manager):
    ask(manager)
    with manager.pause():
        pass
    assert ask(manager).num_cached_tokens == 39


@pytest.mark.parametrize("change", [in_place, through_data])
def test_a_running_request_goes_on_with_the_new_weights_alone(manager, model, change):
    """From there it is as if the new model had been given all tokens so far."""
    manager.add_request(PROMPT, "a", max_new_tokens=200, streaming=True)
    outputs = manager.request_id_iter("a")
    for _ in range(3):
        next(outputs)
    with manager.pause():
        change(model)
        count = len(manager._thread.loop._requests["a"].generated_tokens)
    *_, last = outputs
    answer = last.generated_tokens
    assert len(answer) == 200
    new = expected(model, PROMPT + answer[:count], 12)
    assert answer[count : count + 12] == new
    assert last.num_preemptions == 1


def test_what_was_swapped_to_the_host_is_forgotten_too(model):
    """Keys saved under the old weights must not come back under the new ones."""
    config = ContinuousBatchingConfig(
        num_blocks=8, page_size=16, cpu_offload_space=0.01, safety_margin=0.0
    )
    manager = model.init_continuous_batching(GenerationConfig(), continuous_batching_config=config)
    manager.start()
    ids = [manager.add_request([n, n + 1], max_new_tokens=60) for n in range(4)]
    until(lambda: manager.statistics().num_swapped_out > 0)
    with manager.pause():
        requests = manager._thread.loop._requests
        counts = {name: len(requests[name].generated_tokens) for name in ids if name in requests}
        in_place(model)
    answers = {name: manager.get_result(name).generated_tokens for name in ids}
    for number, (name, answer) in enumerate(answers.items()):
        count = counts.get(name, 60)
        rest = answer[count : count + 5]
        assert rest == expected(model, [number, number + 1, *answer[:count]], len(rest))
    manager.stop()
    manager.destroy()


def test_weights_changed_between_two_sessions_are_noticed(manager, model):
    ask(manager)
    manager.stop(keep_for_next_session=True)
    in_place(model)
    manager.start()
    output = ask(manager)
    assert output.num_cached_tokens == 0
    assert output.generated_tokens == expected(model, PROMPT, 6)


def test_the_prefix_cache_can_be_cleared_at_any_time(manager, model):
    ask(manager)
    manager.clear_prefix_cache()
    assert ask(manager).num_cached_tokens == 0
    manager.add_request([1, 2, 3], "long", max_new_tokens=200)
    until(lambda: manager.statistics().num_running)
    manager.clear_prefix_cache()
    output = manager.get_result("long")
    assert output.generated_tokens[:20] == expected(model, [1, 2, 3], 20)
    assert output.num_preemptions <= 1


def test_a_cache_cleared_while_stopped_is_clear_after_the_start(manager):
    ask(manager)
    manager.stop(keep_for_next_session=True)
    manager.clear_prefix_cache()
    manager.start()
    assert ask(manager).num_cached_tokens == 0


def test_clearing_reads_again_what_was_written_without_a_trace(manager, model):
    """One value among thousands, through `data`: nothing but the caller can know."""
    weight = model.hf_model.model.layers[0].mlp.down_proj.weight
    ask(manager)
    with manager.pause():
        weight.data[3, 1:] = 2.0
        manager.clear_prefix_cache()
    assert ask(manager).generated_tokens == expected(model, PROMPT, 6)


def test_a_watch_without_a_model_never_sees_a_change():
    watch = WeightWatch(None)
    assert not watch.have_changed()
    watch.remember()
    assert not watch.have_changed()
