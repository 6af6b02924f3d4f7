"""Many threads at once, submitting, cancelling, iterating, pausing: answers and accounts hold."""

import asyncio
import random

import pytest

from engine import FinishReason, QueueFullError
from tests.engine.threads import Call, until

NUM_PER_THREAD = 25


def make_prompts(count):
    """Return prompts that share a prefix with some others."""
    draw = random.Random(3)
    shared = [draw.randrange(199) for _ in range(20)]
    prompts = []
    for _ in range(count):
        prefix = shared[: draw.choice([0, 7, 16, 20])]
        prompts.append(prefix + [draw.randrange(199) for _ in range(draw.randint(1, 12))])
    return prompts


PROMPTS = make_prompts(NUM_PER_THREAD)


@pytest.fixture
def alone(make_manager):
    """Each prompt's answer when it runs by itself, nothing cached."""
    manager = make_manager(allow_block_sharing=False, max_requests_per_batch=1)
    manager.start()
    names = manager.add_requests(PROMPTS, max_new_tokens=10)
    outputs = {output.request_id: output.generated_tokens for output in manager}
    manager.stop()
    return [outputs[name] for name in names]


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"cpu_offload_space": None, "step_time_target": 1e-9},
        {"scheduler_type": "priority", "cpu_offload_space": None, "allow_block_sharing": False},
    ],
    ids=["plain", "swapped and paced", "by priority"],
)
def test_answers_in_a_crowd_are_those_of_each_alone(make_manager, alone, fields):
    manager = make_manager(num_blocks=12, max_batch_tokens=32, safety_margin=0.0, **fields)
    manager.start()
    threads = [Call(use, manager, seed) for seed in range(5)]
    for number, output in (found for call in threads for found in call.outcome()):
        expected = alone[number]
        if output.finish_reason is FinishReason.CANCELLED:
            expected = expected[: len(output.generated_tokens)]
        assert output.generated_tokens == expected
    until(lambda: manager.statistics().num_live == 0)
    assert manager.get_result(timeout=0) is None
    statistics = manager.statistics()
    assert statistics.num_free_blocks == statistics.num_blocks


def use(manager, seed):
    """Submit each prompt, cancel some, wait for each; return their numbers and outputs."""
    draw = random.Random(seed)
    ordered = manager.resolved_config.scheduler_type == "priority"
    found = []
    for number in draw.sample(range(NUM_PER_THREAD), NUM_PER_THREAD):
        name = f"{seed}-{number}"
        streaming = draw.random() < 0.5
        options = {"priority": draw.randint(0, 2)} if ordered else {}
        manager.add_request(PROMPTS[number], name, 10, streaming=streaming, **options)
        if draw.random() < 0.2:
            manager.cancel_request(name)
        if draw.random() < 0.05:
            with manager.pause():
                pass
        if draw.random() < 0.5:
            found.append((number, name))
            continue
        *_, last = manager.request_id_iter(name)
        found.append((number, last))
    results = []
    for number, entry in found:
        if isinstance(entry, str):
            *_, entry = manager.request_id_iter(entry)
        results.append((number, entry))
    return results


def test_a_full_queue_under_load_loses_nothing(make_manager):
    manager = make_manager(max_queue_size=2, max_requests_per_batch=2)
    manager.start()

    def submit(seed):
        accepted = []
        for number in range(40):
            try:
                accepted.append(manager.add_request([number], f"{seed}-{number}", 2))
            except QueueFullError:
                manager.get_result(timeout=0.01)
        return accepted

    async def handled():
        ended = asyncio.Semaphore(0)
        accepted = 0
        for number in range(40):
            name = f"handled-{number}"
            manager.register_result_handler(name, lambda _: ended.release())
            try:
                manager.add_request([number], name, 2)
                accepted += 1
            except QueueFullError:
                manager.unregister_result_handler(name)
                await asyncio.sleep(0.001)
        for _ in range(accepted):
            await asyncio.wait_for(ended.acquire(), 20)

    calls = [Call(submit, seed) for seed in range(3)]
    asyncio.run(handled())
    assert sum(len(call.outcome()) for call in calls) > 0
    until(lambda: manager.statistics().num_live == 0)
    assert manager._channels.gate.num_waiting == 0


def test_two_engines_on_one_model_do_not_meet(make_manager, alone):
    """Each puts its attention into the same modules for the length of a forward."""
    managers = [make_manager(num_blocks=blocks) for blocks in (16, 20)]
    for manager in managers:
        manager.start()
    calls = [Call(answers_of, manager) for manager in managers]
    for call in calls:
        assert call.outcome() == alone


def answers_of(manager):
    names = manager.add_requests(PROMPTS, max_new_tokens=10)
    outputs = {output.request_id: output.generated_tokens for output in manager}
    return [outputs[name] for name in names]
