"""What callers hand over: nothing accepted is lost, nothing refused gets in."""

import threading

import pytest

from engine.errors import DuplicateRequestError, EngineDeadError, EngineStoppingError
from engine.mailbox import Mailbox, StopMode
from tests.engine.builders import make_request
from tests.engine.threads import Call


def test_mail_is_taken_in_order_and_once():
    mailbox = Mailbox()
    first, second = make_request("a"), make_request("b")
    mailbox.post(first)
    mailbox.post(second)
    assert mailbox.take(wait=True).requests == [first, second]
    assert mailbox.take(wait=False).requests == []


def test_several_requests_are_handed_over_all_or_none():
    mailbox = Mailbox()
    mailbox.post(make_request("b"))
    with pytest.raises(DuplicateRequestError, match="'b' is in use"):
        mailbox.post(make_request("a"), make_request("b"))
    first, second = make_request("a"), make_request("c")
    mailbox.post(first, second)
    assert mailbox.take(wait=False).requests[1:] == [first, second]


def test_an_id_is_in_use_from_post_to_forget():
    mailbox = Mailbox()
    mailbox.post(make_request("a"))
    with pytest.raises(DuplicateRequestError, match="'a' is in use"):
        mailbox.post(make_request("a"))
    mailbox.take(wait=False)
    with pytest.raises(DuplicateRequestError):
        mailbox.post(make_request("a"))
    mailbox.end(["a"])
    mailbox.post(make_request("a"))
    with pytest.raises(DuplicateRequestError):
        mailbox.post(make_request("a"))


def test_a_request_is_live_until_its_terminal_output_is_delivered():
    """Whoever waits for the output must not be told that none can come any more."""
    mailbox = Mailbox()
    mailbox.post(make_request("a"))
    mailbox.take(wait=False)
    mailbox.end(["a"])
    assert mailbox.is_live("a")
    assert mailbox.num_live == 1
    mailbox.forget()
    assert not mailbox.is_live("a")
    assert mailbox.num_live == 0


def test_cancelling_an_unknown_id_sends_nothing():
    mailbox = Mailbox()
    mailbox.post_cancel("nobody")
    assert mailbox.take(wait=False).cancelled == []


def test_a_request_and_its_cancellation_may_arrive_together():
    mailbox = Mailbox()
    mailbox.post(make_request("a"))
    mailbox.post_cancel("a")
    mail = mailbox.take(wait=True)
    assert [request.request_id for request in mail.requests] == mail.cancelled == ["a"]


def test_a_late_cancellation_does_not_end_the_next_request_of_that_id():
    """It was posted while the first ran, and is taken after the first has ended by itself."""
    mailbox = Mailbox()
    mailbox.post(make_request("a"))
    mailbox.take(wait=False)
    mailbox.post_cancel("a")
    mailbox.end(["a"])
    mailbox.forget()
    mailbox.post(make_request("a"))
    assert mailbox.take(wait=False).cancelled == []


def test_a_stop_only_gets_more_urgent():
    mailbox = Mailbox()
    mailbox.post_stop(StopMode.HARD)
    mailbox.post_stop(StopMode.DRAIN)
    assert mailbox.take(wait=True).stop is StopMode.HARD


@pytest.mark.parametrize("mode", [StopMode.DRAIN, StopMode.HARD])
def test_nothing_is_accepted_once_a_stop_was_asked_for(mode):
    mailbox = Mailbox()
    mailbox.post_stop(mode)
    with pytest.raises(EngineStoppingError):
        mailbox.post(make_request("a"))
    assert mailbox.num_live == 0


def test_closing_returns_what_nobody_took_and_refuses_the_rest():
    mailbox = Mailbox()
    request = make_request("a")
    mailbox.post(request)
    assert mailbox.close() == [request]
    assert mailbox.close() == []
    with pytest.raises(EngineStoppingError):
        mailbox.post(make_request("b"))


def test_a_mailbox_closed_by_a_death_says_what_died():
    mailbox, cause = Mailbox(), ValueError("the weights are gone")
    mailbox.close(cause)
    with pytest.raises(EngineDeadError, match="the weights are gone") as caught:
        mailbox.post(make_request("a"))
    assert caught.value.__cause__ is cause


def test_a_reopened_mailbox_takes_requests_and_forgets_the_death():
    mailbox = Mailbox()
    mailbox.post_stop(StopMode.HARD)
    mailbox.close(ValueError())
    mailbox.reopen()
    mailbox.post(make_request("a"))
    assert mailbox.take(wait=True).stop is StopMode.NONE


@pytest.mark.parametrize(
    "arrive",
    [
        lambda mailbox: mailbox.post(make_request("b")),
        lambda mailbox: mailbox.post_cancel("a"),
        lambda mailbox: mailbox.post_stop(StopMode.DRAIN),
        lambda mailbox: mailbox.poke(),
    ],
    ids=["request", "cancel", "stop", "poke"],
)
def test_a_sleeping_engine_thread_is_woken_by(arrive):
    mailbox = Mailbox()
    mailbox.post(make_request("a"))
    mailbox.take(wait=False)
    sleeper = Call(lambda: mailbox.take(wait=True))
    sleeper.join(0.02)
    assert sleeper.is_alive()
    arrive(mailbox)
    sleeper.outcome()


def test_each_request_is_either_returned_by_close_or_refused():
    """An accepted request that nobody takes would leave its caller waiting for ever."""
    for _ in range(20):
        mailbox, start = Mailbox(), threading.Barrier(5)
        senders = [Call(post_some, mailbox, start, sender) for sender in range(4)]
        start.wait()
        taken = mailbox.take(wait=False).requests + mailbox.close()
        num_refused = sum(sender.outcome() for sender in senders)
        assert len(taken) + num_refused == 200
        assert mailbox.num_live == len(taken)


def post_some(mailbox, start, sender):
    """Post 50 requests; return how many were refused."""
    start.wait()
    num_refused = 0
    for number in range(50):
        try:
            mailbox.post(make_request(f"{sender}-{number}"))
        except EngineStoppingError:
            num_refused += 1
    return num_refused
