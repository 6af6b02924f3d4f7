"""Outputs nobody handles: each is taken once, in order, whoever asks for whose."""

import threading

import pytest

from engine.requests import RequestStatus
from engine.result_store import MIN_PLACES_TO_COMPACT, ResultStore
from tests.engine.builders import make_request
from tests.engine.threads import Call


def output(name, token=0):
    state = make_request(name)
    state.status = RequestStatus.DECODING
    state.generated_tokens.append(token)
    return state.make_output()


def store_of(*names):
    store = ResultStore()
    outputs = [output(name, token) for token, name in enumerate(names)]
    store.put(outputs)
    return store, outputs


def test_outputs_of_anyone_come_in_order_of_arrival():
    store, outputs = store_of("a", "b", "a", "c")
    assert [store.get() for _ in outputs] == outputs


def test_a_filtered_get_leaves_the_order_of_the_others():
    """The reference puts what does not match back at the end."""
    store, outputs = store_of("a", "b", "a", "c", "b")
    assert store.get("b") is outputs[1]
    assert store.get("c") is outputs[3]
    assert [store.get() for _ in range(3)] == [outputs[0], outputs[2], outputs[4]]
    assert len(store) == 0


def test_a_filtered_get_takes_the_oldest_of_that_request():
    store, outputs = store_of("a", "b", "a")
    assert [store.get("a"), store.get("a")] == [outputs[0], outputs[2]]


def test_an_output_of_another_request_is_not_an_answer():
    store, _ = store_of("a")
    assert store.get("b", timeout=0.01) is None
    assert len(store) == 1


def test_taking_by_id_and_putting_again_keeps_the_new_place():
    store, outputs = store_of("a", "b")
    store.get("a")
    again = output("a")
    store.put([again])
    assert [store.get(), store.get()] == [outputs[1], again]


@pytest.mark.parametrize("timeout", [0.0, -1.0, 0.01])
def test_a_get_gives_up_after_its_timeout(timeout):
    assert ResultStore().get(timeout=timeout) is None


def test_a_timeout_of_zero_still_takes_what_is_there():
    store, outputs = store_of("a")
    assert store.get(timeout=0) is outputs[0]


def test_a_get_returns_at_once_when_nothing_can_come():
    assert ResultStore().get(may_come=lambda: False) is None


def test_what_is_there_is_taken_although_nothing_more_can_come():
    store, outputs = store_of("a")
    assert store.get(may_come=lambda: False) is outputs[0]


def test_a_waiting_get_is_woken_by_its_output():
    store = ResultStore()
    waiter = Call(lambda: store.get("b"))
    store.put([output("a")])
    waiter.join(0.02)
    assert waiter.is_alive()
    expected = output("b")
    store.put([expected])
    assert waiter.outcome() is expected


def test_a_waiting_get_ends_when_it_is_woken_and_nothing_can_come():
    store, ended = ResultStore(), threading.Event()
    waiter = Call(lambda: store.get("a", may_come=lambda: not ended.is_set()))
    waiter.join(0.02)
    assert waiter.is_alive()
    ended.set()
    store.wake()
    assert waiter.outcome() is None


def test_discarding_drops_the_outputs_of_one_request():
    store, outputs = store_of("a", "b", "a")
    store.discard("a")
    store.discard("unknown")
    assert len(store) == 1
    assert store.get() is outputs[1]
    assert store.get(timeout=0) is None


def test_places_passed_over_do_not_pile_up():
    """Reading by request id for days must not grow the order of arrival."""
    store = ResultStore()
    kept = output("kept")
    store.put([kept])
    for number in range(5 * MIN_PLACES_TO_COMPACT):
        store.put([output(f"r{number}")])
        store.get(f"r{number}")
    assert len(store._order) <= MIN_PLACES_TO_COMPACT
    assert store.get() is kept


def test_compacting_keeps_the_order_of_arrival():
    store = ResultStore()
    names = [f"r{number % 7}" for number in range(3 * MIN_PLACES_TO_COMPACT)]
    outputs = [output(name, token) for token, name in enumerate(names)]
    store.put(outputs)
    for name in ("r0", "r3", "r5", "r6"):
        while store.get(name, timeout=0) is not None:
            pass
    assert len(store._order) < len(outputs)
    left = [found for found in outputs if found.request_id in ("r1", "r2", "r4")]
    assert [store.get(timeout=0) for _ in left] == left


def test_each_output_is_taken_once_by_many_takers():
    store = ResultStore()
    ended = threading.Event()

    def take_all():
        taken = []
        while (found := store.get(may_come=lambda: not ended.is_set())) is not None:
            taken.append(found)
        return taken

    takers = [Call(take_all) for _ in range(4)]
    outputs = [output("a", token) for token in range(500)]
    for found in outputs:
        store.put([found])
    ended.set()
    store.wake()
    taken = [found for taker in takers for found in taker.outcome()]
    assert len(taken) == 500
    assert {id(found) for found in taken} == {id(found) for found in outputs}
