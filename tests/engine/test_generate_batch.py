"""Whole batches, offline: results in order, errors raised or reported, managers kept or not."""

import logging

import pytest
from transformers import GenerationConfig

from engine import (
    ContinuousBatchingConfig,
    ContinuousBatchingManager,
    EngineDeadError,
    InvalidRequestError,
    PromptTooLongError,
    WorkloadHints,
)
from engine.restarts import RestartBudget
from engine.scheduler import Scheduler
from tests.engine.threads import Call

SMALL = ContinuousBatchingConfig(num_blocks=32, page_size=16, max_batch_tokens=64)
PROMPTS = [[n, n + 1, n + 2] for n in range(10)]


@pytest.fixture
def generate(tiny_model):
    """`generate_batch` with a small cache."""

    def call(inputs=PROMPTS, **options):
        return tiny_model.generate_batch(
            inputs, **{"continuous_batching_config": SMALL, "max_new_tokens": 4, **options}
        )

    yield call
    tiny_model.destroy_cached_continuous_batching_manager()


def tokens(outputs):
    return [output.generated_tokens for output in outputs.values()]


def test_results_stand_in_the_order_of_the_inputs(generate):
    outputs = generate()
    assert list(outputs) == [f"req_{n}" for n in range(10)]
    assert [output.prompt_ids for output in outputs.values()] == PROMPTS
    assert all(output.is_finished() for output in outputs.values())
    assert {len(found) for found in tokens(outputs)} == {4}


def test_no_inputs_have_no_results(generate):
    assert generate([]) == {}


def test_a_batch_is_as_if_each_prompt_were_alone(generate):
    assert tokens(generate()) == [tokens(generate([prompt]))[0] for prompt in PROMPTS]


def test_a_stream_is_read_to_its_end(generate):
    outputs = generate(streaming=True)
    assert all(output.is_finished() for output in outputs.values())
    assert tokens(outputs) == tokens(generate())


def test_sampling_parameters_hold_for_all(generate):
    config = ContinuousBatchingConfig(num_blocks=32, page_size=16, seed=5)
    hot = [tokens(generate(temperature=5.0, continuous_batching_config=config)) for _ in range(2)]
    assert hot[0] == hot[1] != tokens(generate())


def test_timestamps_are_recorded_when_asked_for(generate):
    assert {len(o.timestamps) for o in generate(record_timestamps=True).values()} == {4}


def test_the_progress_bar_counts_requests(generate, capsys):
    generate(progress_bar=True)
    assert "10/10" in capsys.readouterr().err
    generate()
    assert capsys.readouterr().err == ""


def test_the_generation_configuration_sets_the_defaults(generate):
    config = GenerationConfig(max_new_tokens=2, eos_token_id=None)
    outputs = generate(generation_config=config, max_new_tokens=None)
    assert {len(found) for found in tokens(outputs)} == {2}


@pytest.mark.parametrize(
    ("inputs", "options", "error"),
    [
        ([[1], []], {}, InvalidRequestError),
        ([[1]], {"unheard_of": 3}, InvalidRequestError),
        ([[1], [2] * 600], {}, PromptTooLongError),
        ([[1]], {"num_return_sequences": 0}, InvalidRequestError),
        ([[1]], {"num_return_sequences": "x"}, InvalidRequestError),
    ],
    ids=["empty prompt", "unknown keyword", "long prompt", "no answer", "some answers"],
)
def test_what_is_wrong_is_raised_before_anything_is_generated(generate, inputs, options, error):
    with pytest.raises(error):
        generate(inputs, **options)


def test_a_request_that_fails_is_in_the_result_with_its_error(generate, monkeypatch):
    update = Scheduler.update

    def failing(self, batch, sampled):
        for row, request in enumerate(batch.sampling):
            if request.prompt_ids == PROMPTS[3]:
                sampled.errors[row] = ValueError("no")
        return update(self, batch, sampled)

    monkeypatch.setattr(Scheduler, "update", failing)
    errors = [output.error for output in generate(warmup=False).values()]
    assert errors == [None] * 3 + ["the request failed: no"] + [None] * 6


@pytest.mark.parametrize("inputs", [PROMPTS, PROMPTS[:1]], ids=["many", "one"])
def test_an_engine_that_dies_is_raised_with_its_cause(generate, monkeypatch, inputs):
    """However few requests there are: a result with an error in it is easily overlooked."""
    cause = KeyError("our own mistake")

    def broken(self):
        raise cause

    monkeypatch.setattr(RestartBudget, "spend", lambda self: False)
    monkeypatch.setattr(Scheduler, "schedule_batch", broken)
    with pytest.raises(EngineDeadError, match="our own mistake") as caught:
        generate(inputs, warmup=False)
    assert caught.value.__cause__ is cause


def test_managers_are_not_kept_unless_asked_for(generate, tiny_model):
    generate()
    assert tiny_model.cached_manager is None
    generate(persistent_manager=True)
    assert isinstance(tiny_model.cached_manager, ContinuousBatchingManager)


def test_a_kept_manager_still_has_its_prefixes(generate):
    prompt = [list(range(40))]
    cached = [
        next(iter(generate(prompt, persistent_manager=True).values())).num_cached_tokens
        for _ in range(2)
    ]
    assert cached == [0, 39]


def test_a_kept_manager_is_not_bound_by_its_first_workload(generate, tiny_model):
    """Hints of a first call with one prompt would make all later calls run one by one."""
    generate(PROMPTS[:1], persistent_manager=True)
    assert tiny_model.cached_manager.resolved_config.max_requests_per_batch > 1


def test_new_settings_for_a_kept_manager_are_warned_of(generate, caplog):
    generate(persistent_manager=True)
    with caplog.at_level(logging.WARNING):
        generate(persistent_manager=True)
    assert "the kept manager is used" in caplog.text


def test_a_kept_manager_can_be_given_up(generate, tiny_model):
    generate(persistent_manager=True)
    kept = tiny_model.cached_manager
    tiny_model.destroy_cached_continuous_batching_manager()
    tiny_model.destroy_cached_continuous_batching_manager()
    assert tiny_model.cached_manager is None
    with pytest.raises(RuntimeError, match="destroyed"):
        kept.start()


def test_a_batch_that_is_not_kept_ends_a_kept_manager(generate, tiny_model):
    generate(persistent_manager=True)
    generate(persistent_manager=False)
    assert tiny_model.cached_manager is None


def test_two_threads_may_generate_at_once(generate):
    expected = tokens(generate())
    for call in [Call(generate) for _ in range(2)]:
        assert tokens(call.outcome()) == expected


def test_the_context_manager_finishes_what_it_accepted(tiny_model):
    with tiny_model.continuous_batching_context_manager(
        continuous_batching_config=SMALL, workload_hints=WorkloadHints(num_requests=3)
    ) as manager:
        assert manager.is_running()
        assert manager.warmed_up
        assert manager.resolved_config.max_requests_per_batch == 3
        manager.add_request([1], "a", max_new_tokens=30)
    assert not manager.is_running()
    assert len(manager.get_result("a").generated_tokens) == 30
    with pytest.raises(RuntimeError, match="destroyed"):
        manager.start()


def test_the_context_manager_stops_after_an_exception(tiny_model):
    class UnexpectedError(Exception):
        pass

    def leave():
        with tiny_model.continuous_batching_context_manager(
            continuous_batching_config=SMALL, warmup=False
        ) as manager:
            managers.append(manager)
            raise UnexpectedError

    managers: list[ContinuousBatchingManager] = []
    with pytest.raises(UnexpectedError):
        leave()
    assert not managers[0].is_running()
    assert not managers[0].warmed_up
