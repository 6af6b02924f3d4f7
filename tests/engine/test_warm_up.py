"""Warming up: what is run, how long it may take, and that nothing of it is left."""

import time

import pytest

from engine import warm_up as module
from engine.warm_up import SHAPES


def test_chunks_and_decoding_rows_of_growing_sizes_are_run(controlled, monkeypatch):
    manager, runner = controlled(max_batch_tokens=256)
    monkeypatch.setattr(module, "WARM_UP_SECONDS", 60.0)
    sizes = []

    def note(inputs, logits):
        sizes.append((inputs.input_ids.shape[1], len(inputs.sample_indices)))
        return logits

    runner.edit = note
    manager.warmup()
    fitting = [shape for shape in SHAPES if shape[1] <= 510]
    for num_rows, num_prompt in fitting:
        assert (min(256, num_rows * num_prompt)) in [tokens for tokens, _ in sizes]
        assert (num_rows, num_rows) in sizes, "no step of decoding rows"


def test_warming_up_twice_runs_once(controlled):
    manager, runner = controlled()
    manager.warmup()
    assert manager.warmed_up
    before = runner.num_forwards
    manager.warmup()
    manager.start()
    manager.warmup()
    assert runner.num_forwards == before
    manager.stop()


def test_a_slow_model_is_not_warmed_up_for_long(controlled, monkeypatch):
    manager, runner = controlled()
    monkeypatch.setattr(module, "WARM_UP_SECONDS", 0.05)

    def slow(_, logits):
        time.sleep(0.03)
        return logits

    runner.edit = slow
    manager.warmup()
    assert runner.num_forwards == 2


@pytest.mark.parametrize("fields", [{"num_blocks": 2}, {"max_requests_per_batch": 1}])
def test_a_small_engine_is_warmed_up_too(make_manager, fields):
    manager = make_manager(**fields)
    manager.warmup()
    statistics = manager.statistics()
    assert (statistics.num_live, statistics.num_running) == (0, 0)
    assert statistics.num_free_blocks == statistics.num_blocks
