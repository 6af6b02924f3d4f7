"""Asking for responses, and reading what comes."""

import json
import time


def create(live, **fields):
    return live.http.post("/v1/responses", json={"input": "hello", **fields})


def events_of(text: str) -> list[dict]:
    """The events of a stream; each stands under its own name."""
    found = []
    for block in text.split("\n\n")[:-1]:
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        found.append(event)
    return found


def wait_for_status(live, response_id, status):
    deadline = time.monotonic() + 5
    while (found := live.http.get(f"/v1/responses/{response_id}").json())["status"] != status:
        assert time.monotonic() < deadline, found["status"]
        time.sleep(0.01)
    return found
