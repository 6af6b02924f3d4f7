"""What the server tells of itself: metrics, one line for each request, timings, traces."""

import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client.parser import text_string_to_metric_families

from engine import RequestFailedError
from server import tracing
from server.console import configure_logging
from server.keys import KeyRing, parse_keys
from server.log_format import JsonFormatter
from server.metrics import VLLM_NAMES
from server.settings import (
    ModelSettings,
    SecuritySettings,
    ServerSettings,
    Settings,
    TelemetrySettings,
)
from server.startup_errors import StartupError
from server.tracing import Tracing
from tests.server.live import LiveServer, run_live
from tests.server.test_streaming import send

ROOT = Path(__file__).parents[2]
PROMPT = "a prompt that nobody may find in a log"
MODEL = ModelSettings(served_names=("tiny",))


@pytest.fixture
def told() -> Iterator[LiveServer]:
    """A server that tells everything, under both kinds of names."""
    telemetry = TelemetrySettings(metrics_prefix="vllm", log_requests=True)
    with run_live(
        settings=Settings(MODEL, server=ServerSettings(port=0), telemetry=telemetry)
    ) as it:
        yield it


def samples(server: LiveServer) -> dict[str, float]:
    """Every sample of /metrics, as name{labels} without the buckets."""
    answer = server.http.get("/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    found = {}
    for family in text_string_to_metric_families(answer.text):
        for sample in family.samples:
            labels = ",".join(f"{name}={value}" for name, value in sorted(sample.labels.items()))
            found[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return found


def test_counters_agree_with_what_the_client_has_seen(told):
    for _ in range(3):
        assert told.complete(max_tokens=4).status_code == 200
    assert told.complete(n=3, temperature=1, max_tokens=2).status_code == 200
    assert told.complete(max_tokens=-3).status_code == 400
    told.manager.script = lambda _ids, _arguments: [300, RequestFailedError("x")]
    assert told.complete().status_code == 500
    found = samples(told)
    assert found["slipstream_requests_total{outcome=completed}"] == 4
    assert found["slipstream_requests_total{outcome=failed}"] == 1
    assert found["slipstream_answers_total{finished_reason=length}"] == 6
    assert found["slipstream_answers_total{finished_reason=error}"] == 1
    assert found["slipstream_generation_tokens_total"] == 3 * 4 + 3 * 2 + 1
    labels = "method=POST,path=/completions,status"
    assert found[f"slipstream_http_requests_total{{{labels}=200}}"] == 4
    assert found[f"slipstream_http_requests_total{{{labels}=400}}"] == 1
    assert found[f"slipstream_http_requests_total{{{labels}=500}}"] == 1
    assert found["slipstream_time_to_first_token_seconds_count"] == 7
    assert found["slipstream_request_duration_seconds_count"] == 7
    assert found["slipstream_engine_up"] == 1


def test_a_stop_string_is_an_answer_and_a_leaver_is_none(told):
    assert told.complete(stop=["world"]).json()["choices"][0]["finish_reason"] == "stop"
    told.manager.step_seconds = 0.01
    body = {"prompt": "a", "stream": True}
    with told.http.stream("POST", "/v1/completions", json=body) as answer:
        next(answer.iter_lines())
    told.manager.wait_until(lambda: told.state.num_active == 0)
    found = samples(told)
    assert found["slipstream_answers_total{finished_reason=stop}"] == 1
    assert found["slipstream_answers_total{finished_reason=cancelled}"] == 1
    assert found["slipstream_requests_total{outcome=cancelled}"] == 1


@pytest.mark.parametrize("stream", [True, False])
def test_every_answer_whose_client_left_is_counted_and_no_other(told, stream):
    for _ in range(5):
        assert told.complete(stream=stream).status_code == 200
    told.manager.step_seconds = 0.05
    told.manager.script = lambda _ids, _arguments: [300] * 200
    body = {"prompt": "a", "stream": stream, "max_tokens": 200, "n": 2}
    for number in range(1, 6):
        with send(told, "/v1/completions", body):
            told.manager.wait_until(lambda: told.manager.num_active == 2)
        told.manager.wait_until(lambda: told.state.num_active == 0)
        found = samples(told)
        assert found["slipstream_answers_total{finished_reason=cancelled}"] == 2 * number
        assert found["slipstream_requests_total{outcome=cancelled}"] == number
    assert found["slipstream_requests_total{outcome=completed}"] == 5


def test_what_a_client_invents_becomes_no_label(told):
    for number in range(20):
        told.http.get(f"/made/up/{number}")
        told.http.get(f"/v1/models/made-up-{number}")
    paths = set(re.findall(r"path=([^,}]*)", " ".join(samples(told))))
    assert paths <= {"other", "/models/{model_id:path", "/metrics"}


def test_refusals_are_counted(told):
    told.manager.queue_full_after = 0
    assert told.complete().status_code == 429
    labels = "method=POST,path=/completions,status=429"
    assert samples(told)[f"slipstream_http_requests_total{{{labels}}}"] == 1


def test_the_names_of_vllm_say_the_same(told):
    assert told.complete(max_tokens=4).status_code == 200
    told.state.metrics.rejections.labels("queue_full").inc()
    found = samples(told)
    for own, other in VLLM_NAMES.items():
        assert any(name.startswith(f"slipstream_{own}") for name in found), own
        assert any(name.startswith(f"vllm:{other}") for name in found), other
    labels = "{engine=0,model_name=tiny}"
    assert found[f"vllm:generation_tokens_total{labels}"] == 4
    assert found[f"vllm:time_to_first_token_seconds_count{labels}"] == 1


def test_the_board_asks_for_measures_that_exist(told):
    """Every counter and histogram has a sample only after its first event."""
    told.complete(max_tokens=3)
    told.state.metrics.rejections.labels("queue_full").inc()
    known = {name.partition("{")[0] for name in samples(told)}
    board = json.loads((ROOT / "docker" / "grafana" / "slipstream.json").read_text())
    queries = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    asked = {name for query in queries for name in re.findall(r"slipstream_\w+", query)}
    assert len(asked) > 20
    assert asked <= known
    own = {name for name in known if name.startswith("slipstream_") and name.endswith("_total")}
    assert own <= asked, "a counter that the board does not show"


def test_metrics_can_be_closed_open_or_off():
    keys = KeyRing(clients=parse_keys(["some-client-key"], origin="test"))
    closed = Settings(MODEL, server=ServerSettings(port=0), keys=keys)
    with run_live(settings=closed) as server:
        assert server.http.get("/metrics").status_code == 401
    public = Settings(
        MODEL,
        server=ServerSettings(port=0),
        security=SecuritySettings(public_metrics=True),
        keys=keys,
    )
    with run_live(settings=public) as server:
        assert server.http.get("/metrics").status_code == 200
    off = Settings(MODEL, server=ServerSettings(port=0), telemetry=TelemetrySettings(metrics=False))
    with run_live(settings=off) as server:
        assert server.http.get("/metrics").status_code == 404


def test_a_request_is_one_line_without_its_text(told, caplog):
    told.says("an answer that nobody may find either")
    with caplog.at_level(logging.DEBUG):
        told.http.post(
            "/v1/completions",
            json={"prompt": PROMPT, "max_tokens": 4, "seed": 1},
            headers={"X-Request-Id": "mine"},
        )
        told.manager.wait_until(lambda: told.state.num_active == 0)
    lines = [record for record in caplog.records if record.name == "server.requests"]
    assert len(lines) == 1
    fields = json.loads(JsonFormatter().format(lines[0]))
    assert fields["request_id"] == "mine"
    assert (fields["status"], fields["outcome"], fields["finish_reason"]) == (
        200, "completed", "length",
    )  # fmt: skip
    assert fields["completion_tokens"] == 4
    assert 0 <= fields["queue_ms"] <= fields["first_token_ms"] <= fields["total_ms"]
    assert "nobody may" not in caplog.text


def test_json_lines_hold_one_object_each(capsys):
    configure_logging("info", "json")
    logger = logging.getLogger("server.test")
    logger.warning("two\nlines %s", "of text")
    try:
        raise ValueError("what happened")
    except ValueError:
        logger.exception("failed")
    first, second = map(json.loads, capsys.readouterr().err.splitlines())
    configure_logging("warning")
    assert (first["level"], first["message"]) == ("warning", "two\nlines of text")
    assert "ValueError: what happened" in second["exception"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", first["time"])


def test_timings_are_told_to_who_asks(told):
    body = {"prompt": "a", "max_tokens": 3}
    plain = told.http.post("/v1/completions", json=body)
    assert "Server-Timing" not in plain.headers
    asks = {"X-Request-Timings": "1"}
    whole = told.http.post("/v1/completions", json=body, headers=asks)
    times = dict(re.findall(r"(\w+);dur=([\d.]+)", whole.headers["Server-Timing"]))
    assert set(times) == {"queue", "first_token", "total"}
    assert 0 <= float(times["queue"]) <= float(times["first_token"]) <= float(times["total"])
    stream = told.http.post("/v1/completions", json={**body, "stream": True}, headers=asks)
    *_, comment, done = stream.text.rstrip().split("\n\n")
    assert done == "data: [DONE]"
    assert set(json.loads(comment.removeprefix(": timings "))) == {
        "queue_ms", "first_token_ms", "total_ms",
    }  # fmt: skip


def traced() -> tuple[Tracing, InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    return Tracing("http://x", "tiny", SimpleSpanProcessor(exporter)), exporter


def test_a_request_is_a_span_of_the_trace_it_came_with(monkeypatch):
    made, exporter = traced()
    monkeypatch.setattr("server.state.Tracing", lambda *_: made)
    telemetry = TelemetrySettings(otlp_endpoint="http://x")
    trace_id = "0af7651916cd43dd8448eb211c80319c"
    settings = Settings(MODEL, server=ServerSettings(port=0), telemetry=telemetry)
    with run_live(settings=settings) as server:
        headers = {"traceparent": f"00-{trace_id}-b7ad6b7169203331-01"}
        body = {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": 3}
        server.http.post("/v1/chat/completions", json=body, headers=headers)
        server.http.get("/v1/models")
        server.manager.wait_until(lambda: len(exporter.get_finished_spans()) == 1)
    (span,) = exporter.get_finished_spans()
    assert (span.name, f"{span.context.trace_id:032x}") == ("chat tiny", trace_id)
    attributes: Any = span.attributes
    assert attributes["gen_ai.usage.output_tokens"] == 3
    assert attributes["http.response.status_code"] == 200
    assert [event.name for event in span.events] == ["first step", "first token"]
    times: list[Any] = [span.start_time, *(e.timestamp for e in span.events), span.end_time]
    assert times == sorted(times)
    assert "nobody may" not in span.to_json()


def test_traces_without_their_packages_are_refused_by_name(monkeypatch):
    monkeypatch.setattr(tracing, "IS_AVAILABLE", False)
    with pytest.raises(StartupError, match="the extra otel"):
        Tracing("http://x", "tiny")
