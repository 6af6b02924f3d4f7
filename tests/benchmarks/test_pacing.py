"""When requests are sent, and what is in them."""

import asyncio
import statistics
import time
from itertools import pairwise

import pytest

from benchmarks.load.answer import Outcome
from benchmarks.load.pacing import ClosedLoop, OpenLoop, arrivals
from benchmarks.load.target import Target
from benchmarks.load.workload import ENDING, Endpoint, Workload

REQUESTS = [str(number).encode() for number in range(20)]


class Recorder:
    """Takes requests, a moment each, and knows how many it had at once."""

    def __init__(self, seconds: float = 0.002) -> None:
        self.seconds = seconds
        self.starts: dict[bytes, float] = {}
        self.running = 0
        self.most = 0

    async def send(self, request: bytes, start_seconds: float) -> Outcome:
        self.starts[request] = start_seconds
        self.running += 1
        self.most = max(self.most, self.running)
        await asyncio.sleep(self.seconds)
        self.running -= 1
        return Outcome(start_seconds, (), time.perf_counter())


@pytest.mark.parametrize("num_clients", [1, 3, 50])
async def test_a_closed_loop_keeps_its_clients_busy_and_sends_everything_once(num_clients):
    recorder = Recorder()
    outcomes = await ClosedLoop(num_clients).run(REQUESTS, recorder.send, seed=0)
    assert recorder.most == min(num_clients, len(REQUESTS))
    assert list(recorder.starts) == REQUESTS
    assert len(outcomes) == len(REQUESTS)


async def test_an_open_loop_waits_for_nobody_and_counts_from_when_requests_were_due():
    recorder = Recorder(seconds=0.3)
    outcomes = await OpenLoop(200.0).run(REQUESTS, recorder.send, seed=5)
    assert recorder.most == len(REQUESTS)
    first, *_ = starts = list(recorder.starts.values())
    assert [start - first for start in starts] == pytest.approx(arrivals(200.0, 20, 5))
    assert [outcome.start_seconds for outcome in outcomes] == starts


def test_arrivals_are_those_of_a_poisson_process():
    times = arrivals(4.0, 4001, seed=1)
    gaps = [later - earlier for earlier, later in pairwise(times)]
    assert times[0] == 0.0
    assert statistics.fmean(gaps) == pytest.approx(0.25, rel=0.05)
    assert statistics.stdev(gaps) == pytest.approx(0.25, rel=0.1), "they vary as much as their mean"
    assert times == arrivals(4.0, 4001, seed=1)
    assert times != arrivals(4.0, 4001, seed=2)
    assert len(arrivals(4.0, 1, seed=1)) == 1


def test_prompts_have_their_length_and_nothing_in_common_at_their_beginning():
    prompts = Workload(Endpoint.CHAT, 100, 8).prompts(20, 0)
    assert {len(prompt.split()) for prompt in prompts} == {100}
    assert len({prompt.split()[0] for prompt in prompts}) == 20
    assert all(prompt.split()[-len(ENDING) :] == ENDING for prompt in prompts)


def test_a_later_run_has_the_same_text_behind_other_marks():
    workload = Workload(Endpoint.CHAT, 60, 8)
    once, again = workload.prompts(3, 1), workload.prompts(3, 1)
    for one, other in zip(once, again, strict=True):
        assert one.split()[0] != other.split()[0]
        assert one.split()[1:] == other.split()[1:]
    assert workload.prompts(1, 2)[0].split()[1:] != once[0].split()[1:]


def test_a_shared_prefix_is_shared_and_the_rest_is_not():
    prompts = [
        prompt.split()
        for number in range(2)
        for prompt in Workload(Endpoint.CHAT, 100, 8, num_shared_words=40).prompts(5, number)
    ]
    assert {len(words) for words in prompts} == {100}
    assert len({tuple(words[:40]) for words in prompts}) == 1
    assert len({words[40] for words in prompts}) == 10


def test_prompts_too_short_for_their_parts_are_refused():
    assert Workload(Endpoint.CHAT, 17, 8, num_shared_words=10).prompts(1, 0)
    with pytest.raises(ValueError, match="at least 17"):
        Workload(Endpoint.CHAT, 16, 8, num_shared_words=10)


@pytest.mark.parametrize(
    ("endpoint", "path", "field"),
    [
        (Endpoint.CHAT, b"/chat/completions", b'"messages"'),
        (Endpoint.COMPLETIONS, b"/completions", b'"prompt"'),
    ],
)
def test_a_request_asks_the_right_place_for_the_right_thing(endpoint, path, field):
    request = Workload(endpoint, 20, 8).request(Target("a", "h", 1), "hello", {"ignore_eos": True})
    head, _, body = request.partition(b"\r\n\r\n")
    assert head.startswith(b"POST /v1" + path + b" HTTP/1.1\r\n")
    assert b"Content-Length: %d\r\n" % len(body) in head
    for part in (field, b'"max_tokens": 8', b'"stream": true', b'"ignore_eos": true'):
        assert part in body
