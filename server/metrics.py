"""What the server counts and measures, in Prometheus' form.

Each application has a registry of its own. Names begin with slipstream_, and the common ones are
there under vLLM's names as well if the operator wants that. Labels have few values: no key, no
request and no path of a client's making becomes one. Event loop only.
"""

import time
from collections.abc import Iterator
from typing import Protocol

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from server.admission import Admission
from server.engine_client import EngineClient, Manager
from server.request_record import AnswerRecord, RequestRecord
from server.settings import Settings

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
FIRST_TOKEN_BUCKETS = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40,
    80, 160, 640,
)  # fmt: skip
TOKEN_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1, 2.5)
DURATION_BUCKETS = (0.05, 0.1, 0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 60, 120, 240, 960)
LENGTH_BUCKETS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 50_000, 200_000)
# Our name -> the name that dashboards made for vLLM ask for.
VLLM_NAMES = {
    "requests_running": "num_requests_running",
    "requests_waiting": "num_requests_waiting",
    "kv_cache_usage_ratio": "kv_cache_usage_perc",
    "preemptions": "num_preemptions",
    "draft_tokens": "spec_decode_num_draft_tokens",
    "draft_tokens_accepted": "spec_decode_num_accepted_tokens",
    "prompt_tokens": "prompt_tokens",
    "prompt_tokens_cached": "prompt_tokens_cached",
    "generation_tokens": "generation_tokens",
    "answers": "request_success",
    "admission_rejections": "admission_rejections",
    "time_to_first_token_seconds": "time_to_first_token_seconds",
    "time_per_output_token_seconds": "request_time_per_output_token_seconds",
    "request_queue_seconds": "request_queue_time_seconds",
    "request_duration_seconds": "e2e_request_latency_seconds",
    "request_prompt_tokens": "request_prompt_tokens",
    "request_generation_tokens": "request_generation_tokens",
}
OWN, VLLM = "slipstream_", "vllm:"


class Watched(Protocol):
    """What of an application is read when somebody asks."""

    manager: Manager
    client: EngineClient
    admission: Admission
    settings: Settings
    served_names: tuple[str, ...]
    num_active: int


class Metrics:
    """The measures of one application."""

    def __init__(self) -> None:
        """Start everything at zero."""
        self._registry = CollectorRegistry()
        self.requests = self._counter(
            "requests", "Requests for answers, by how they ended", "outcome"
        )
        self.answers = self._counter("answers", "Choices, by why they ended", "finished_reason")
        self.rejections = self._counter("admission_rejections", "Requests refused early", "reason")
        self.prompt_tokens = self._counter("prompt_tokens", "Prompt tokens of ended choices")
        self.cached_tokens = self._counter(
            "prompt_tokens_cached", "Of these, those found in the prefix cache"
        )
        self.generation_tokens = self._counter("generation_tokens", "Tokens generated")
        self.http_requests = self._counter(
            "http_requests", "HTTP requests", "path", "method", "status"
        )
        self.http_seconds = self._histogram(
            "http_request_duration_seconds", "From a request to the end of its answer",
            DURATION_BUCKETS, "path",
        )  # fmt: skip
        self.first_token = self._histogram(
            "time_to_first_token_seconds", "From arrival to the first token", FIRST_TOKEN_BUCKETS
        )
        self.per_token = self._histogram(
            "time_per_output_token_seconds",
            "Mean gap between tokens of a choice",
            TOKEN_BUCKETS,
        )
        self.queue = self._histogram(
            "request_queue_seconds", "From arrival to the first step", FIRST_TOKEN_BUCKETS
        )
        self.duration = self._histogram(
            "request_duration_seconds", "From arrival to the end of a choice", DURATION_BUCKETS
        )
        self.prompt_lengths = self._histogram(
            "request_prompt_tokens", "Tokens of a prompt", LENGTH_BUCKETS
        )
        self.answer_lengths = self._histogram(
            "request_generation_tokens", "Tokens of a choice", LENGTH_BUCKETS
        )

    def watch(self, state: Watched) -> None:
        """Report the engine's counters, too, and the vLLM names if they are wanted."""
        self._registry.register(_EngineCollector(state))
        if state.settings.telemetry.metrics_prefix == "vllm":
            self._registry.register(_Aliases(self._registry, state.served_names[0]))

    def observe(self, record: RequestRecord, path: str) -> None:
        """Take a request that has ended.

        Args:
            record: It.
            path: The template of its route, of which there are few.
        """
        seconds = time.perf_counter() - record.arrived
        self.http_requests.labels(path, record.method, str(record.status)).inc()
        self.http_seconds.labels(path).observe(seconds)
        if record.answers:
            self.requests.labels(record.outcome).inc()
        for answer in record.answers:
            self._observe_answer(record, answer)

    def text(self) -> bytes:
        """Return everything as Prometheus reads it."""
        return generate_latest(self._registry)

    def _observe_answer(self, record: RequestRecord, answer: AnswerRecord) -> None:
        self.answers.labels(answer.outcome or "cancelled").inc()
        self.prompt_tokens.inc(answer.num_prompt_tokens)
        self.cached_tokens.inc(answer.num_cached_tokens)
        self.generation_tokens.inc(answer.num_tokens)
        self.prompt_lengths.observe(answer.num_prompt_tokens)
        self.answer_lengths.observe(answer.num_tokens)
        if answer.started is not None:
            self.queue.observe(max(0.0, answer.started - record.arrived))
        if answer.first_token is not None:
            self.first_token.observe(answer.first_token - record.arrived)
            if answer.num_tokens > 1 and answer.last_token is not None:
                gap = (answer.last_token - answer.first_token) / (answer.num_tokens - 1)
                self.per_token.observe(gap)
        if answer.ended is not None:
            self.duration.observe(answer.ended - record.arrived)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"{OWN}{name}", text, labels, registry=self._registry)

    def _histogram(
        self, name: str, text: str, buckets: tuple[float, ...], *labels: str
    ) -> Histogram:
        return Histogram(f"{OWN}{name}", text, labels, buckets=buckets, registry=self._registry)


class _EngineCollector(Collector):
    """Reads the engine's counters when somebody asks."""

    def __init__(self, state: Watched) -> None:
        self._state = state

    def collect(self) -> Iterator[Metric]:
        state, engine = self._state, self._state.manager.statistics()
        used = engine.num_blocks - engine.num_free_blocks
        gauges = {
            "engine_up": ("Whether the engine takes requests", float(state.client.is_healthy)),
            "requests_running": ("Requests that hold blocks", engine.num_running),
            "requests_waiting": ("Requests that hold none, preempted ones too", engine.num_waiting),
            "requests_queued": ("Requests that count against the queue", engine.num_queued),
            "requests_preparing": ("Places of requests on their way to the engine, and of lists",
                                   state.admission.num_preparing),
            "http_requests_active": ("Requests that are being answered", state.num_active),
            "kv_cache_usage_ratio": ("Share of blocks held", used / max(1, engine.num_blocks)),
            "kv_blocks": ("Blocks of the cache", engine.num_blocks),
            "kv_blocks_free": ("Blocks nobody holds", engine.num_free_blocks),
            "kv_blocks_cached": ("Blocks findable by content", engine.num_cached_blocks),
        }  # fmt: skip
        for name, (text, value) in gauges.items():
            yield GaugeMetricFamily(f"{OWN}{name}", text, value=value)
        counters = {
            "preemptions": ("Requests whose blocks were taken", engine.num_preemptions),
            "swaps_out": ("Of these, copied to the host", engine.num_swapped_out),
            "swaps_in": ("Requests that went on from such a copy", engine.num_swapped_in),
            "draft_tokens": ("Tokens guessed ahead", engine.num_drafted_tokens),
            "draft_tokens_accepted": ("Of these, right ones", engine.num_accepted_tokens),
            "engine_steps": ("Steps of the engine", engine.num_steps),
            "engine_restarts": ("Steps that failed and made it begin again", engine.num_restarts),
        }
        for name, (text, value) in counters.items():
            yield CounterMetricFamily(f"{OWN}{name}", text, value=value)


class _Aliases(Collector):
    """Says the common measures again, under the names and with the labels of vLLM."""

    def __init__(self, registry: CollectorRegistry, model_name: str) -> None:
        self._registry = registry
        self._labels = {"model_name": model_name, "engine": "0"}
        self._collecting = False

    def collect(self) -> Iterator[Metric]:
        if self._collecting:
            return  # what is said again is not said a third time
        self._collecting = True
        try:
            families = list(self._registry.collect())
        finally:
            self._collecting = False
        for family in families:
            name = VLLM_NAMES.get(family.name.removeprefix(OWN))
            if name is None:
                continue
            alias = Metric(f"{VLLM}{name}", family.documentation, family.type)
            for sample in family.samples:
                suffix = sample.name.removeprefix(family.name)
                alias.add_sample(
                    f"{VLLM}{name}{suffix}", {**self._labels, **sample.labels}, sample.value
                )
            yield alias
