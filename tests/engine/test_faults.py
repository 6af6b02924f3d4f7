"""One request's fault is its own: the others get the very tokens they get alone."""

import numpy as np
import pytest
import torch

from engine import FinishReason, RequestFailedError
from tests.engine.control import loop_of

POISON = 198
CANARIES = {f"canary {n}": [n, 2 * n + 1, 5, 6, 7] for n in range(6)}


@pytest.fixture
def alone(make_manager):
    """The canaries' answers with nobody beside them."""
    manager = make_manager()
    manager.start()
    answers = {}
    for name, prompt in CANARIES.items():
        manager.add_request(prompt, name, max_new_tokens=12)
        answers[name] = manager.get_result(name).generated_tokens
    manager.stop()
    return answers


def run_with_canaries(manager, bad):
    """Run bad requests between canaries; return the bad ones' outputs and the canaries' answers."""
    for number, (name, prompt) in enumerate(CANARIES.items()):
        manager.add_request(prompt, name, max_new_tokens=12)
        if number < len(bad) and bad[number] is not None:
            manager.add_request(bad[number], f"bad {number}", max_new_tokens=12)
    manager.start()
    outputs = {output.request_id: output for output in manager}
    answers = {name: outputs[name].generated_tokens for name in CANARIES}
    return [outputs[f"bad {number}"] for number in range(len(bad))], answers


@pytest.mark.parametrize("num_bad", [1, 3, 6])
def test_a_forward_that_raises_for_one_prompt_fails_that_request_only(controlled, alone, num_bad):
    manager, runner = controlled()
    runner.poison = POISON
    failed, answers = run_with_canaries(manager, [[1, 2, POISON, n] for n in range(num_bad)])
    assert answers == alone
    for output in failed:
        assert isinstance(output.exception, RequestFailedError)
        assert str(output.exception.__cause__) == "poison"
        assert output.generated_tokens == []


def test_a_fault_in_a_later_chunk_of_a_prompt_fails_that_request_only(controlled, alone):
    manager, runner = controlled(max_batch_tokens=8)
    runner.poison = POISON
    (output,), answers = run_with_canaries(manager, [[*range(100, 130), POISON]])
    assert output.finish_reason is FinishReason.ERROR
    assert answers == alone


def not_finite(value):
    def edit(inputs, logits):
        """Spoil the row of each request whose prompt begins with the poison."""
        logits = logits.clone()
        tokens = inputs.input_ids[0].tolist()
        for row, index in enumerate(inputs.sample_indices.tolist()):
            if tokens[index] == POISON:
                logits[row, 3:9] = value
        return logits

    return edit


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("options", [{}, {"return_logprobs": True}], ids=["argmax", "processed"])
def test_logits_that_are_not_finite_fail_their_request_only(controlled, alone, value, options):
    manager, runner = controlled(**options)
    runner.edit = not_finite(value)
    (output,), answers = run_with_canaries(manager, [[1, 2, POISON]])
    assert "not finite" in output.error
    assert answers == alone


def test_a_sampler_that_raises_for_one_request_fails_that_request_only(
    make_manager, alone, monkeypatch
):
    manager = make_manager()
    sampler = loop_of(manager)._parts.sampler
    sample = sampler.sample

    def broken(logits, requests):
        if any(POISON in request.prompt_ids for request in requests):
            raise ZeroDivisionError("sampler")
        return sample(logits, requests)

    monkeypatch.setattr(sampler, "sample", broken)
    (output,), answers = run_with_canaries(manager, [[1, POISON]])
    assert isinstance(output.exception.__cause__, ZeroDivisionError)
    assert answers == alone


def test_parameters_that_leave_no_token_fail_their_request_only(make_manager, alone):
    manager = make_manager()
    every = list(range(199))
    manager.add_request([9], "bad 0", max_new_tokens=2, min_new_tokens=2, eos_token_id=every)
    (output,), answers = run_with_canaries(manager, [None])
    assert "leave no token" in output.error
    assert answers == alone


def test_what_a_failed_request_wrote_is_not_found_by_the_next(controlled):
    """Its keys may be the reason; the next request with that prompt computes its own."""
    manager, runner = controlled(max_batch_tokens=16)
    good = list(range(40))
    runner.poison = POISON
    manager.start()
    manager.add_request([*good, POISON], "bad", max_new_tokens=2)
    assert manager.get_result("bad").exception is not None
    manager.add_request(good, "good", max_new_tokens=2)
    assert manager.get_result("good").num_cached_tokens == 0


def test_not_a_number_in_reused_blocks_reaches_nobody(make_manager, alone):
    """Slots beyond a request's context hold what others left there."""
    manager = make_manager(num_blocks=24, page_size=16)
    cache = loop_of(manager)._parts.cache
    for tensor in (*cache.keys, *cache.values):
        tensor.fill_(float("nan"))
    _, answers = run_with_canaries(manager, [])
    assert answers == alone


def test_an_engine_whose_every_forward_raises_still_answers_each_request(controlled):
    manager, runner = controlled()

    def broken(inputs, logits):
        raise RuntimeError("the device is gone")

    runner.edit = broken
    ids = manager.add_requests([[n] for n in range(9)], max_new_tokens=2)
    manager.start()
    outputs = list(manager)
    assert sorted(output.request_id for output in outputs) == sorted(ids)
    assert {output.error for output in outputs} == {"the request failed: the device is gone"}
    assert manager.is_running()


def test_a_fault_costs_few_forwards(controlled):
    """The culprit is found by halving, not one by one."""
    manager, runner = controlled()
    runner.poison = POISON
    for number in range(31):
        manager.add_request([number], max_new_tokens=1)
    manager.add_request([POISON], max_new_tokens=1)
    manager.start()
    assert len(list(manager)) == 32
    assert runner.num_forwards <= 2 * np.log2(32) + 1


def test_a_raising_forward_leaves_the_model_usable(controlled, tiny_model):
    manager, runner = controlled()
    runner.poison = POISON
    manager.start()
    manager.add_request([POISON], "bad")
    assert manager.get_result("bad").exception is not None
    manager.stop()
    with torch.inference_mode():
        assert tiny_model.hf_model(torch.tensor([[1, 2]])).logits.isfinite().all()
