"""The documented ways in, a test for each, named after it."""

import pytest
from transformers import GenerationConfig

from engine import (
    ContinuousBatchingConfig,
    ContinuousBatchingManager,
    InvalidRequestError,
    RequestStatus,
    WorkloadHints,
)

SMALL = ContinuousBatchingConfig(num_blocks=64, page_size=16)


def test_generate_batch(tiny_model, capsys):
    """A dictionary from ids to terminal outputs, in the order of the inputs; nothing is kept."""
    assert tiny_model.generate_batch([]) == {}
    outputs = tiny_model.generate_batch(
        [[1, 2], [3], [4, 5, 6]],
        GenerationConfig(max_new_tokens=4),
        SMALL,
        record_timestamps=True,
        progress_bar=True,
        warmup=False,
    )
    assert list(outputs) == ["req_0", "req_1", "req_2"]
    assert [output.prompt_ids for output in outputs.values()] == [[1, 2], [3], [4, 5, 6]]
    for output in outputs.values():
        assert output.status is RequestStatus.FINISHED
        assert len(output.generated_tokens) == len(output.timestamps) == 4
    assert "3/3" in capsys.readouterr().err
    assert not tiny_model.cached_manager
    one = tiny_model.generate_batch(
        [[1]], continuous_batching_config=SMALL, max_new_tokens=2, persistent_manager=True
    )
    assert len(one["req_0"].generated_tokens) == 2
    assert isinstance(tiny_model.cached_manager, ContinuousBatchingManager)
    with pytest.raises(InvalidRequestError, match="no_such_option"):
        tiny_model.generate_batch([[1]], no_such_option=1)
    tiny_model.destroy_cached_continuous_batching_manager()


def test_generate_batch_with_several_answers(tiny_model):
    """Children before their parent, as the documentation's dictionary has them."""
    outputs = tiny_model.generate_batch(
        [[1], [2]], continuous_batching_config=SMALL, max_new_tokens=2, num_return_sequences=2
    )
    assert list(outputs) == ["req_0__child#0", "req_0", "req_1__child#0", "req_1"]


def test_init_continuous_batching(tiny_model):
    """A manager that is not started, with the configuration resolved; a kept one as it is."""
    config = GenerationConfig(max_new_tokens=7)
    manager = tiny_model.init_continuous_batching(config, SMALL, WorkloadHints(num_requests=3))
    assert not manager.is_running()
    assert manager.generation_config is config
    assert manager.resolved_config.num_blocks == 64
    assert manager.resolved_config.max_requests_per_batch == 3
    tiny_model.cached_manager = manager
    assert tiny_model.init_continuous_batching() is manager
    manager.destroy()
    other = tiny_model.init_continuous_batching(continuous_batching_config=SMALL)
    assert other is not manager
    assert other.generation_config is tiny_model.generation_config
    other.destroy()


def test_continuous_batching_context_manager(tiny_model):
    """Warm and running inside; what was accepted is finished before it is left; kept if asked."""
    with tiny_model.continuous_batching_context_manager(
        continuous_batching_config=SMALL, persistent_manager=True
    ) as manager:
        assert manager.is_running()
        assert manager.warmed_up
        manager.add_request([1], "a", max_new_tokens=20)
    assert not manager.is_running()
    assert len(manager.get_result("a").generated_tokens) == 20
    assert tiny_model.cached_manager is manager
    with tiny_model.continuous_batching_context_manager(warmup=False) as again:
        assert again is manager
    assert tiny_model.cached_manager is None


def test_continuous_batching_context_manager_that_does_not_wait(tiny_model):
    """block=False and an expired timeout leave the engine finishing what it has accepted."""
    for options in ({"block": False}, {"timeout": 0.001}):
        with tiny_model.continuous_batching_context_manager(
            continuous_batching_config=SMALL, warmup=False, **options
        ) as manager:
            manager.add_request([1], "a", max_new_tokens=100)
        assert len(manager.get_result("a").generated_tokens) == 100
        manager.destroy()


def test_destroy_cached_continuous_batching_manager(tiny_model):
    """Destroys the kept manager; without one it does nothing."""
    tiny_model.destroy_cached_continuous_batching_manager()
    tiny_model.generate_batch(
        [[1]], continuous_batching_config=SMALL, max_new_tokens=1, persistent_manager=True
    )
    kept = tiny_model.cached_manager
    tiny_model.destroy_cached_continuous_batching_manager()
    assert tiny_model.cached_manager is None
    with pytest.raises(RuntimeError, match="destroyed"):
        kept.start()
