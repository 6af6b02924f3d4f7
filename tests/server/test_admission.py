"""Places in the queue: taken before any work, all or none, and never by one key alone."""

from types import SimpleNamespace
from typing import Any

import pytest

from engine import QueueFullError
from server.admission import Admission
from server.keys import Key
from server.request_errors import RequestError
from server.request_record import AnswerRecord, RequestRecord


class Engine:
    """A manager of which only the queue is looked at."""

    num_queued = 0

    def statistics(self) -> Any:
        return SimpleNamespace(num_queued=self.num_queued)


def record(key: str = "") -> RequestRecord:
    return RequestRecord("id", "POST", "/x", key=Key(key, b"") if key else None)


def opened(size: int, clients: str = "") -> tuple[Admission, Engine]:
    engine = Engine()
    manager: Any = engine
    return Admission(manager, size, clients), engine


def test_places_are_counted_from_the_admission_on():
    admission, engine = opened(4)
    first, second = record(), record()
    admission.admit(first, 3)
    with pytest.raises(QueueFullError):
        admission.admit(second, 2)
    admission.admit(second, 1)
    assert admission.num_preparing == 4
    assert first.ticket is not None
    first.ticket.use(3)
    engine.num_queued = 3
    with pytest.raises(QueueFullError):
        admission.admit(record(), 1)
    engine.num_queued = 0
    admission.admit(record(), 3)


def test_what_is_not_used_is_given_back_once():
    admission, _ = opened(4)
    one = record()
    admission.admit(one, 4)
    admission.leave(one)
    admission.leave(one)
    assert admission.num_preparing == 0
    admission.admit(record(), 4)


def test_what_never_fits_is_not_told_to_come_again():
    admission, _ = opened(4)
    with pytest.raises(RequestError, match="5 answers, more than the 4 places"):
        admission.admit(record(), 5)


def test_without_a_limit_everything_is_admitted():
    admission, engine = opened(0)
    engine.num_queued = 10**6
    admission.admit(record(), 10**6)


def test_a_key_that_floods_leaves_the_others_their_reserve():
    admission, _ = opened(16, "abcd")  # 8 for all, 2 for each
    for _ in range(10):
        admission.admit(record("a"), 1)
    with pytest.raises(QueueFullError):
        admission.admit(record("a"), 1)
    for name in ("b", "c", "d"):
        admission.admit(record(name), 2)
        with pytest.raises(QueueFullError):
            admission.admit(record(name), 1)
    assert admission.num_preparing == 16


def test_what_never_fits_beside_the_reserves_is_not_told_to_come_again():
    admission, _ = opened(16, "abcd")
    with pytest.raises(RequestError, match="11 answers, more than the 10 places"):
        admission.admit(record("a"), 11)
    admission.admit(record("a"), 10)


def test_an_administrator_takes_no_clients_reserve_and_stands_for_none():
    admission, _ = opened(8, "ab")  # 4 for both, 2 for each
    admission.admit(record("root"), 4)
    with pytest.raises(QueueFullError):
        admission.admit(record("root"), 1)
    for name in "ab":
        admission.admit(record(name), 2)
    assert admission.num_preparing == 8


def test_what_waits_in_the_engine_counts_until_it_has_started():
    admission, engine = opened(8, "ab")
    answers = []
    for _ in range(2):
        one = record("a")
        admission.admit(one, 1)
        assert one.ticket is not None
        one.ticket.use(1)
        one.answers.append(AnswerRecord(3))
        answers += one.answers
    engine.num_queued = 2
    admission.admit(record("b"), 6)
    for answer in answers:
        answer.end("cancelled")
    engine.num_queued = 0
    with pytest.raises(QueueFullError):
        admission.admit(record("b"), 1)


def test_what_comes_in_turns_keeps_its_places_and_makes_do_with_few():
    admission, _ = opened(4)
    one = record()
    assert admission.admit(one, 8, in_turns=True) == 2
    assert one.ticket is not None
    one.ticket.use(1)
    with pytest.raises(QueueFullError):
        admission.admit(record(), 3)
    admission.leave(one)
    assert admission.num_preparing == 0
    assert admission.admit(record(), 2, in_turns=True) == 2
    assert opened(0)[0].admit(record(), 8, in_turns=True) == 8


def test_a_list_counts_the_same_from_its_admission_to_its_end():
    admission, _ = opened(16, "ab")  # 8 for both, 4 for each
    one = record("a")
    assert admission.admit(one, 6, in_turns=True) == 6
    assert one.ticket is not None
    answers = [AnswerRecord(3) for _ in range(6)]
    one.answers += answers
    one.ticket.use(6)
    assert (one.num_waiting, admission.num_preparing) == (6, 6)
    for answer in answers:
        answer.started = 1.0
    assert (one.num_waiting, admission.num_preparing) == (6, 6)
    admission.leave(one)
    assert (one.num_waiting, admission.num_preparing) == (0, 0)


def test_what_has_started_waits_no_longer():
    admission, engine = opened(8, "ab")  # 4 for both, 2 for each
    for _ in range(6):
        one = record("a")
        admission.admit(one, 1)
        assert one.ticket is not None
        one.ticket.use(1)
        answer = AnswerRecord(3)
        answer.started = 1.0
        one.answers.append(answer)
    assert engine.num_queued == 0
    admission.admit(record("a"), 6)


def test_the_wait_is_estimated_from_what_has_ended(monkeypatch):
    clock = iter(range(0, 1000, 2))
    monkeypatch.setattr("server.admission.time", SimpleNamespace(monotonic=lambda: next(clock)))
    admission, engine = opened(1)
    for _ in range(8):
        one = record()
        admission.admit(one, 1)
        one.answers.append(AnswerRecord(1))
        admission.leave(one)
    engine.num_queued = 1
    with pytest.raises(QueueFullError) as refused:
        admission.admit(record(), 1)
    assert 1.5 <= refused.value.retry_after_seconds <= 2.5
