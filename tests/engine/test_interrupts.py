"""Ctrl-C inside generate_batch: it ends at once, and nothing is left behind."""

import pytest

from engine import ContinuousBatchingConfig, FinishReason, mixin
from engine.admission import AdmissionGate
from engine.scheduler import Scheduler

PROMPTS = [[n, n + 1, n + 2] for n in range(10)]


def test_an_interrupt_cancels_what_is_unfinished(tiny_model, cache_is_sound, monkeypatch):
    """Leaving must not wait for answers that nobody will get."""

    def interrupted(request_ids, **_):
        yield next(iter(request_ids))
        raise KeyboardInterrupt

    monkeypatch.setattr(mixin, "tqdm", interrupted)
    config = ContinuousBatchingConfig(num_blocks=256, page_size=16, max_requests_per_batch=2)
    with pytest.raises(KeyboardInterrupt):
        tiny_model.generate_batch(PROMPTS, continuous_batching_config=config, max_new_tokens=400)
    (manager,) = cache_is_sound.managers
    assert not manager.is_running()
    reasons = [output.finish_reason for output in iter(lambda: manager.get_result(timeout=0), None)]
    assert reasons.count(FinishReason.CANCELLED) >= len(PROMPTS) - 3


def test_an_interrupt_while_waiting_for_a_place_cancels_what_was_submitted(
    tiny_model, cache_is_sound, monkeypatch
):
    acquire = AdmissionGate.acquire_in_turn

    def interrupted(gate, num_places):
        if gate.num_waiting == 3:
            raise KeyboardInterrupt
        acquire(gate, num_places)

    monkeypatch.setattr(AdmissionGate, "acquire_in_turn", interrupted)
    config = ContinuousBatchingConfig(num_blocks=32, page_size=16)
    monkeypatch.setattr(Scheduler, "_admit", lambda scheduler, plan: None)
    with pytest.raises(KeyboardInterrupt):
        tiny_model.generate_batch(PROMPTS, continuous_batching_config=config, warmup=False)
    (manager,) = cache_is_sound.managers
    reasons = [output.finish_reason for output in iter(lambda: manager.get_result(timeout=0), None)]
    assert reasons == [FinishReason.CANCELLED] * 3
