"""Ids that are made never meet those that callers give, whoever comes first."""

import random

import pytest

from engine import DuplicateRequestError, EngineStoppingError, QueueFullError
from engine.request_ids import RequestIds
from tests.engine.threads import Call, until


@pytest.fixture
def held(controlled):
    """An engine that computes nothing until it is told to, so that all it has taken is live."""
    manager, runner = controlled()
    runner.hold()
    manager.start()
    yield manager
    runner.go()
    manager.stop(hard_stop=True)


def test_a_made_id_passes_over_live_ones(held):
    for name in ("req_0", "req_2", "req_3"):
        held.add_request([1], name)
    assert [held.add_request([1]) for _ in range(3)] == ["req_1", "req_4", "req_5"]


def test_made_ids_of_a_batch_are_consecutive_all_the_same(held):
    held.add_request([1], "req_2")
    assert held.add_requests([[1], [2], [3]]) == ["req_3", "req_4", "req_5"]
    held.add_request([1], "req_7")
    assert held.add_requests([[1]]) == ["req_6"]
    assert held.add_requests([[1], [2]]) == ["req_8", "req_9"]


@pytest.mark.parametrize("taken", ["req_0", "req_0__child#0", "req_0__child#1", "req_1__child#1"])
def test_a_made_family_passes_over_any_of_its_ids(held, taken):
    held.add_request([1], taken)
    first = 1 if taken.startswith("req_0") else 0
    assert held.add_request([1], num_return_sequences=3) == f"req_{first}"
    assert held.add_request([1], num_return_sequences=3) == "req_2"
    assert held.statistics().num_live == 7


def test_an_id_whose_outputs_nobody_took_is_not_made_again(make_manager):
    """Whoever asks for the results of the one would get those of the other."""
    manager = make_manager()
    manager.start()
    manager.add_request([9, 9], "req_0", max_new_tokens=1)
    until(lambda: manager.statistics().num_live == 0)
    name = manager.add_request([1], max_new_tokens=1)
    assert name == "req_1"
    assert manager.get_result(name).prompt_ids == [1]
    assert manager.get_result("req_0").prompt_ids == [9, 9]
    manager.stop()


async def test_an_id_that_a_handler_waits_for_is_not_made(held):
    held.register_result_handler("req_0", lambda _: pytest.fail("not its request's"))
    assert held.add_request([1]) == "req_1"
    held.unregister_result_handler("req_0")


def test_an_id_that_is_iterated_is_not_made(held):
    with held._router.reading("req_0"):
        assert held.add_request([1]) == "req_1"


def test_ids_of_a_batch_that_waits_for_places_are_not_given_away(controlled):
    manager, runner = controlled(max_queue_size=1, max_requests_per_batch=1)
    runner.hold()
    manager.start()
    adding = Call(lambda: manager.add_requests([[n] for n in range(4)], max_new_tokens=1))
    runner.wait_for_forward()
    until(lambda: manager.statistics().num_live == 2)
    for name in ("req_2", "req_3"):
        with pytest.raises(DuplicateRequestError), manager._submitter.ids.given([name]):
            pytest.fail("the id was given away")
    runner.go()
    assert adding.outcome() == ["req_0", "req_1", "req_2", "req_3"]
    assert len(list(manager)) == 4
    assert manager._submitter.ids._reserved == set()
    manager.stop()


def test_ids_of_what_was_refused_are_free(controlled):
    manager, _ = controlled(max_queue_size=2)
    manager.add_request([1], "a", max_new_tokens=1)
    for call in (
        lambda: manager.add_request([1], num_return_sequences=2),
        lambda: manager.add_requests([[1], [2]]),
    ):
        with pytest.raises(QueueFullError):
            call()
        assert manager._submitter.ids._reserved == set()
    manager.stop()
    with pytest.raises(EngineStoppingError):
        manager.add_request([1])
    assert manager._submitter.ids._reserved == set()


def test_threads_that_make_and_give_ids_never_meet(make_manager):
    """Who gives none is never refused; who gives one is refused only while it is in use."""
    manager = make_manager(num_blocks=256)
    manager.start()
    accepted: list[tuple[str, tuple[int, ...]]] = []
    made: list[str] = []

    def work(number: int) -> None:
        source = random.Random(number)
        for turn in range(40):
            prompt = [number, turn]
            try:
                if source.random() < 0.5:
                    given = f"req_{source.randrange(400)}"
                    names = [manager.add_request(prompt, given, max_new_tokens=1)]
                elif source.random() < 0.6:
                    names = [manager.add_request(prompt, max_new_tokens=1)]
                    made.extend(names)
                else:
                    names = manager.add_requests([prompt] * 3, max_new_tokens=1)
                    assert len({int(name[4:]) - place for place, name in enumerate(names)}) == 1
                    made.extend(names)
            except DuplicateRequestError as refusal:
                assert refusal.request_id == given  # noqa: PT017 - who made an id gets no error
                continue
            accepted.extend((name, tuple(prompt)) for name in names)

    for call in [Call(work, number) for number in range(6)]:
        call.outcome()
    outputs = [(output.request_id, tuple(output.prompt_ids)) for output in manager]
    assert sorted(outputs) == sorted(accepted)
    assert len(set(made)) == len(made) > 100
    assert manager._submitter.ids._reserved == set()
    manager.stop()


def test_reserving_starts_after_what_is_in_use():
    in_use = {"req_1", "req_4__child#0", "req_9"}
    ids = RequestIds(in_use.__contains__)
    assert ids.reserve([1]) == [["req_0"]]
    assert ids.reserve([1, 2, 1]) == [["req_2"], ["req_3__child#0", "req_3"], ["req_4"]]
    assert ids.reserve([1, 1, 1, 1]) == [["req_5"], ["req_6"], ["req_7"], ["req_8"]]
    assert ids.reserve([1]) == [["req_10"]]
    assert ids.reserve([]) == []
