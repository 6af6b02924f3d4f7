"""What is kept of responses, how much of it, and what counts them."""

import re
import threading

import pytest

from server.settings import ModelSettings, ServerSettings, Settings
from tests.server.live import run_live
from tests.server.responses import create, events_of, wait_for_status


def test_the_store_is_bounded():
    settings = Settings(
        model=ModelSettings(served_names=("tiny",)),
        server=ServerSettings(port=0, max_stored_responses=2),
    )
    with run_live(settings=settings) as live:
        ids = [create(live).json()["id"] for _ in range(4)]
        found = [live.http.get(f"/v1/responses/{name}").status_code for name in ids]
    assert found == [404, 404, 200, 200]


@pytest.mark.parametrize(
    "fields",
    [
        {"input": "i" * 100},
        {"instructions": "i" * 100},
        {"tools": [{"type": "web_search", "filter": "d" * 100}]},
        {"metadata": {"k": "v" * 300}},
        {"include": ["message.output_text.logprobs"]},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_everything_that_is_stored_counts(live, fields):
    short = {"max_output_tokens": 1}
    made = [create(live, **given).json()["id"] for given in (short, short | fields)]
    responses = live.state.responses
    plain, more = (responses.get("", name).num_bytes() for name in made)
    assert more - plain > 90


def test_what_is_stored_stays_within_its_bytes():
    settings = Settings(server=ServerSettings(port=0, max_stored_bytes=30_000))
    with run_live(settings=settings, max_model_tokens=20_000) as live:
        ids = [create(live, instructions="x" * 8_000).json()["id"] for _ in range(4)]
        found = [live.http.get(f"/v1/responses/{name}").status_code for name in ids]
        for name in ids[2:]:
            live.http.delete(f"/v1/responses/{name}")
        assert len(live.state.responses) == live.state.responses.num_bytes == 0
    assert found == [404, 404, 200, 200]


def test_events_are_kept_only_where_they_can_be_read_again(live):
    for fields in (
        {},
        {"stream": True},
        {"background": True},
        {"background": True, "stream": True},
    ):
        response = create(live, **fields)
        whole = events_of(response.text)[0]["response"] if "stream" in fields else response.json()
        wait_for_status(live, whole["id"], "completed")
        kept = live.state.responses.get("", whole["id"]).run.num_event_bytes
        assert (kept > 0) is ("background" in fields)


def test_a_request_is_active_once_until_its_response_has_ended(live):
    live.manager.paused.set()
    made = create(live, background=True).json()
    live.manager.wait_until(lambda: live.state.num_active == 1)
    thread = threading.Thread(target=create, args=(live,))
    thread.start()
    live.manager.wait_until(lambda: live.manager.num_active == 2)
    assert live.state.num_active == 2
    live.manager.paused.clear()
    thread.join(10)
    wait_for_status(live, made["id"], "completed")
    live.manager.wait_until(lambda: live.state.num_active == 0)


def counted(live, outcome: str) -> float:
    pattern = rf'^slipstream_requests_total{{outcome="{outcome}"}} (.*)$'
    found = re.search(pattern, live.http.get("/metrics").text, re.MULTILINE)
    return float(found[1]) if found else 0.0


@pytest.mark.parametrize("outcome", ["completed", "cancelled"])
def test_a_background_response_counts_as_what_became_of_it(live, outcome):
    before = {name: counted(live, name) for name in ("completed", "cancelled", "failed")}
    if outcome == "cancelled":
        live.manager.paused.set()
    made = create(live, background=True).json()
    if outcome == "cancelled":
        live.http.post(f"/v1/responses/{made['id']}/cancel")
        live.manager.paused.clear()
    wait_for_status(live, made["id"], outcome)
    live.manager.wait_until(lambda: live.state.num_active == 0)
    now = {name: counted(live, name) for name in before}
    assert now == {**before, outcome: before[outcome] + 1}


def test_a_background_response_has_left_the_queue_when_it_has_ended(live):
    """From the pace of these ends clients are told when to come again."""
    ends = live.state.admission._ends
    before = len(ends)
    live.manager.paused.set()
    made = create(live, background=True).json()
    live.manager.wait_until(lambda: live.manager.num_active == 1)
    assert len(ends) == before
    live.manager.paused.clear()
    wait_for_status(live, made["id"], "completed")
    live.manager.wait_until(lambda: len(ends) == before + 1)


def test_an_operator_can_turn_the_store_off():
    settings = Settings(server=ServerSettings(port=0, max_stored_responses=0))
    with run_live(settings=settings) as live:
        made = create(live, store=True).json()
        assert made["store"] is False
        assert live.http.get(f"/v1/responses/{made['id']}").status_code == 404
        assert create(live, background=True).json()["error"]["param"] == "background"
