"""The manager's documented methods, a test for each, named after it.

What each does in every corner is tested where it lives; here stands what the documentation promises
to somebody who reads nothing else.
"""

import asyncio
import logging
import time

import pytest
import torch

from engine import (
    DuplicateRequestError,
    EngineStoppingError,
    FinishReason,
    InvalidRequestError,
    PromptTooLongError,
    QueueFullError,
    RequestStatus,
)
from tests.engine.threads import Call, until


@pytest.fixture
def running(make_manager):
    manager = make_manager()
    manager.start()
    yield manager
    if manager.is_running():
        manager.stop(hard_stop=True)


def test_add_request(make_manager):
    """Ids are req_N; accepted before start(); refusals are immediate and typed."""
    manager = make_manager(max_queue_size=3)
    assert manager.add_request([1], max_new_tokens=2) == "req_0"
    assert manager.add_request([1], "mine", max_new_tokens=2) == "mine"
    with pytest.raises(DuplicateRequestError):
        manager.add_request([1], "mine")
    with pytest.raises(InvalidRequestError, match="input_ids"):
        manager.add_request([])
    with pytest.raises(PromptTooLongError):
        manager.add_request([1] * 5000)
    with pytest.raises(InvalidRequestError, match="top_q"):
        manager.add_request([1], top_q=3)
    manager.add_request([2], max_new_tokens=2, eos_token_id=[5, -1], temperature=0.0)
    began = time.perf_counter()
    with pytest.raises(QueueFullError):
        manager.add_request([3])
    assert time.perf_counter() - began < 1.0
    manager.start()
    assert {output.status for output in manager} == {RequestStatus.FINISHED}
    manager.stop()
    with pytest.raises(EngineStoppingError):
        manager.add_request([1])


def test_add_requests(running):
    """Ids are contiguous and in the order of the inputs, whatever the order of computing."""
    inputs = [[3, 2, 1], [1, 2, 3], [2, 2, 2]]
    ids = running.add_requests(inputs, max_new_tokens=2, streaming=True)
    assert ids == ["req_0", "req_1", "req_2"]
    for name, prompt in zip(ids, inputs, strict=True):
        *_, last = running.request_id_iter(name)
        assert last.prompt_ids == prompt


def test_cancel_request(running):
    """Ends a request wherever it is, with a terminal output; an unknown id is ignored."""
    running.cancel_request("unknown")
    running.add_request([1], "a", max_new_tokens=400, streaming=True)
    assert running.get_result("a") is not None
    running.cancel_request("a")
    *_, last = running.request_id_iter("a")
    assert (last.status, last.finish_reason) == (RequestStatus.CANCELLED, FinishReason.CANCELLED)
    assert 0 < len(last.generated_tokens) < 400


def test_get_result(running):
    """By id or any, without reordering the others; None when the time is up or nothing can come."""
    for name in "abc":
        running.add_request([1], name, max_new_tokens=2)
        until(lambda: running.statistics().num_live == 0)
    assert running.get_result("b").request_id == "b"
    assert [running.get_result().request_id for _ in range(2)] == ["a", "c"]
    assert running.get_result(timeout=0.01) is None
    assert running.get_result("unknown") is None


def test_iter(running):
    """Yields the outputs of all, and ends when every request has ended."""
    ids = running.add_requests([[n] for n in range(5)], max_new_tokens=3)
    assert sorted(output.request_id for output in running) == ids


def test_request_id_iter(running):
    """Yields one request's outputs, to its terminal one; the others stay where they are."""
    running.add_request([1], "a", max_new_tokens=3, streaming=True)
    running.add_request([2], "b", max_new_tokens=3)
    outputs = list(running.request_id_iter("a"))
    assert [len(output.generated_tokens) for output in outputs] == [1, 2, 3]
    assert running.get_result("b").is_finished()


async def test_register_result_handler(running):
    """Called on the loop it was registered on; its outputs go nowhere else; removed at the end."""
    outputs: asyncio.Queue = asyncio.Queue()
    running.register_result_handler("a", outputs.put_nowait)
    running.add_request([1], "a", max_new_tokens=3, streaming=True)
    counts = [len((await outputs.get()).generated_tokens) for _ in range(3)]
    assert counts == [1, 2, 3]
    assert len(running._store) == 0
    running.add_request([1], "a", max_new_tokens=3)
    assert (await asyncio.to_thread(running.get_result, "a")).is_finished()


def test_register_result_handler_without_an_event_loop(running):
    with pytest.raises(RuntimeError):
        running.register_result_handler("a", print)


def test_warmup(make_manager):
    """Runs before start(), is remembered, and leaves no output."""
    manager = make_manager()
    manager.warmup()
    assert manager.warmed_up
    manager.start()
    assert manager.get_result(timeout=0.01) is None
    manager.stop()
    assert manager.warmed_up


def test_start(make_manager, caplog):
    """Starts a thread; a second call warns; works again after a stop."""
    manager = make_manager()
    manager.start()
    with caplog.at_level(logging.WARNING):
        manager.start()
    assert "runs already" in caplog.text
    manager.stop()
    manager.start()
    manager.add_request([1], "a", max_new_tokens=2)
    assert manager.get_result("a").is_finished()
    manager.stop()


def test_stop(make_manager, tiny_model):
    """Drains by default; hard fails what is left with its tokens; keeps the manager if asked to."""
    manager = make_manager()
    manager.start()
    manager.add_request([1], "a", max_new_tokens=30)
    manager.stop()
    assert len(manager.get_result("a").generated_tokens) == 30
    manager.start()
    manager.add_request([1], "b", max_new_tokens=450, streaming=True)
    assert manager.get_result("b") is not None
    manager.stop(hard_stop=True, keep_for_next_session=True)
    *_, last = manager.request_id_iter("b")
    assert last.status is RequestStatus.FAILED
    assert "before this request completed" in last.error
    assert last.generated_tokens
    assert tiny_model.init_continuous_batching() is manager


def test_stop_that_does_not_wait(controlled):
    """block=False and an expired timeout return early; what was accepted is finished."""
    manager, runner = controlled()
    runner.hold()
    manager.start()
    manager.add_request([1], "a", max_new_tokens=5)
    runner.wait_for_forward()
    manager.stop(block=False)
    manager.stop(timeout=0.01)
    assert manager.is_running()
    runner.go()
    assert manager.get_result("a").finish_reason is FinishReason.LENGTH
    manager.join(time.perf_counter())
    assert not manager.is_running()


def test_join(running):
    """Waits for the thread to end, for at most as long as it is told."""
    waiting = Call(running.join, time.perf_counter(), 20.0)
    began = time.perf_counter()
    running.join(time.perf_counter(), timeout=0.02)
    assert time.perf_counter() - began < 5.0
    assert waiting.is_alive()
    running.stop(block=False)
    waiting.outcome()
    assert not running.is_running()


def test_destroy(make_manager, tiny_model):
    """Stops for good, forgets a kept manager, and may be called again."""
    manager = make_manager()
    manager.start()
    manager.add_request([1], "a", max_new_tokens=3)
    manager.stop(keep_for_next_session=True)
    assert tiny_model.cached_manager is manager
    manager.destroy()
    manager.destroy()
    assert tiny_model.cached_manager is None
    assert manager.get_result("a").is_finished()
    with pytest.raises(RuntimeError, match="destroyed"):
        manager.start()


def test_is_running(make_manager):
    manager = make_manager()
    assert not manager.is_running()
    manager.start()
    assert manager.is_running()
    manager.stop()
    assert not manager.is_running()


def test_pause(running, tiny_model):
    """The loop stands still between two steps; requests and cache are kept; holds are counted."""
    running.add_request([1], "a", max_new_tokens=300, streaming=True)
    assert running.get_result("a") is not None
    with running.pause(), running.pause(), torch.inference_mode():
        before = running.statistics().num_steps
        tiny_model.hf_model(torch.tensor([[1, 2]]))
        assert running.statistics().num_steps == before
        with pytest.raises(RuntimeError, match="own pause"):
            running.stop()
    *_, last = running.request_id_iter("a")
    assert len(last.generated_tokens) == 300


def test_pause_of_what_does_not_run(make_manager):
    with pytest.raises(RuntimeError), make_manager().pause():
        pytest.fail("the pause was entered")


def test_switch_to_cb_friendly_attn(make_manager, tiny_model):
    """The model's own attention is untouched; a model that cannot be paged is refused."""
    manager = make_manager()
    before = tiny_model.hf_model.config._attn_implementation
    manager.switch_to_cb_friendly_attn(tiny_model.hf_model)
    manager.switch_to_cb_friendly_attn(tiny_model, auto_switch_to_flash=False)
    assert tiny_model.hf_model.config._attn_implementation == before
