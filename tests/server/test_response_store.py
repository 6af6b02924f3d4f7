"""Items are found by their ids, each as long as a response that it belongs to is stored."""

from typing import Any, cast

from api_schemas import OutputMessage, Response
from server.responses.run import ResponseRun
from server.responses.store import ResponseStore, StoredResponse


class FinishedRun:
    """A run that has ended with one item, and counts how often it is looked at."""

    has_ended = True
    num_event_bytes = 0

    def __init__(self, item_id: str) -> None:
        self.num_looks = 0
        self._item = OutputMessage(
            id=item_id, type="message", role="assistant", status="completed", content=[]
        )

    def whole(self) -> Response:
        self.num_looks += 1
        return Response.model_construct(output=[self._item])


def stored(name: str, *inputs: str, owner: str = "a") -> StoredResponse:
    run = cast(ResponseRun, FinishedRun(f"out-{name}"))
    return StoredResponse(name, owner, run, [{"id": one, "of": name} for one in inputs])


def keep(store: ResponseStore, *responses: StoredResponse) -> None:
    for one in responses:
        store.add(one)
        store.note_end(one)


def found(store: ResponseStore, item_id: str, owner: str = "a") -> Any:
    item = store.find_item(owner, item_id)
    return None if item is None else item.get("of", item["id"])


def test_an_item_is_found_without_a_look_at_any_response():
    store = ResponseStore(max_responses=100, max_bytes=10**9)
    made = [stored(f"r{number}", f"in-{number}") for number in range(50)]
    keep(store, *made)
    looks = [cast(Any, one.run).num_looks for one in made]
    assert found(store, "out-r49") == "out-r49"
    assert found(store, "in-7") == "r7"
    assert found(store, "nothing") is None
    assert [cast(Any, one.run).num_looks for one in made] == looks


def test_an_item_belongs_to_its_owner():
    store = ResponseStore(max_responses=9, max_bytes=10**9)
    keep(store, stored("r", "one"), stored("s", "one", owner="b"))
    assert (found(store, "one"), found(store, "one", "b")) == ("r", "s")
    assert found(store, "out-s") is None


def test_an_item_goes_with_the_last_response_that_has_it():
    store = ResponseStore(max_responses=9, max_bytes=10**9)
    keep(store, stored("r", "one"), stored("s", "one", "two"))
    store.delete("a", "r")
    assert (found(store, "one"), found(store, "out-r")) == ("s", None)
    store.delete("a", "s")
    assert (found(store, "one"), found(store, "two")) == (None, None)
    assert store.num_bytes == 0


def test_what_makes_room_is_not_found_either():
    store = ResponseStore(max_responses=1, max_bytes=10**9)
    keep(store, stored("r", "one"), stored("s", "two"))
    assert (len(store), found(store, "one"), found(store, "two")) == (1, None, "s")


def test_what_was_deleted_while_it_ran_stays_away():
    store = ResponseStore(max_responses=9, max_bytes=10**9)
    running = stored("r", "one")
    store.add(running)
    store.delete("a", "r")
    store.note_end(running)
    assert (len(store), store.num_bytes, found(store, "out-r")) == (0, 0, None)
