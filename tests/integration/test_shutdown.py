"""A served process that is told to end: it finishes what runs, refuses what comes, and says 0."""

import json
import signal
import time
from collections.abc import Iterator

import httpx
import pytest

from tests.engine.threads import Call, until
from tests.serve_process import ServeProcess, serving

NUM_STREAMS = 24
# Enough for seconds of work: all of them together, in steps of at most 16.
BODY = {"prompt": "on and on", "temperature": 0, "ignore_eos": True, "max_tokens": 450}


class Stream(Call):
    """One streamed answer, read on a thread."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.accepted = False
        self.events: list[str] = []
        super().__init__(self._read)

    def _read(self) -> list[str]:
        body = {**BODY, "stream": True}
        with httpx.stream("POST", f"{self._url}/v1/completions", json=body, timeout=60) as answer:
            assert answer.status_code == 200
            self.accepted = True
            for line in answer.iter_lines():
                if line:
                    self.events.append(line.removeprefix("data: "))
        return self.events

    def ended_whole(self) -> bool:
        *_, last, done = self.outcome()
        reason = json.loads(last).get("choices", [{}])[0].get("finish_reason")
        return bool(done == "[DONE]" and reason == "length")


@pytest.fixture
def process(tiny_model_folder) -> Iterator[ServeProcess]:
    """A server of the test's own, which it may stop."""
    with serving(str(tiny_model_folder), "--set", "server.shutdown_timeout_seconds=60") as started:
        yield started


def start_streams(process: ServeProcess) -> list[Stream]:
    """Start streams and wait until all are accepted and some flow."""
    streams = [Stream(process.url) for _ in range(NUM_STREAMS)]
    until(lambda: all(stream.accepted for stream in streams))
    until(lambda: any(stream.events for stream in streams))
    return streams


def test_a_first_signal_lets_everything_finish(process):
    url = process.url
    streams = start_streams(process)
    process.process.send_signal(signal.SIGTERM)
    until(lambda: httpx.get(f"{url}/ready").status_code == 503)
    assert httpx.get(f"{url}/health").json() == {"status": "draining"}
    assert httpx.get(f"{url}/live").status_code == 200
    refused = httpx.post(f"{url}/v1/completions", json=BODY)
    assert refused.status_code == 503
    assert int(refused.headers["retry-after"]) > 0
    assert all(stream.ended_whole() for stream in streams)
    assert process.process.wait(30) == 0
    assert "Traceback" not in "".join(process.lines)


def test_a_second_signal_ends_at_once(process):
    streams = start_streams(process)
    process.process.send_signal(signal.SIGTERM)
    until(lambda: httpx.get(f"{process.url}/ready").status_code == 503)
    process.process.send_signal(signal.SIGTERM)
    signalled = time.monotonic()
    assert process.process.wait(30) == 0
    assert time.monotonic() - signalled < 15, "it did not wait for the streams"
    ends = [stream.outcome() for stream in streams]
    assert all(events[-1] == "[DONE]" for events in ends)
    codes = [json.loads(events[-2]).get("error", {}).get("code") for events in ends]
    assert "engine_stopping" in codes
    assert set(codes) <= {"engine_stopping", None}
    assert "Traceback" not in "".join(process.lines)
