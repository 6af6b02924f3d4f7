"""Spans of requests, for a collector that speaks OTLP; needs the extra "otel".

A span is made when its request has ended, from the record: nothing is traced while tokens are made.
Names follow OpenTelemetry's conventions for generative AI. Spans hold counts and times, no text.
"""

import time
from typing import Any

from server.request_record import RequestRecord
from server.startup_errors import StartupError
from server.version import VERSION

try:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.trace import SpanKind, Status, StatusCode
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ImportError:
    IS_AVAILABLE = False
else:
    IS_AVAILABLE = True

# How a route is called in traces.
OPERATIONS = {"chat/completions": "chat", "completions": "text_completion"}
NANOSECONDS = 1_000_000_000


class Tracing:
    """Makes spans of requests and hands them to a collector."""

    def __init__(self, endpoint: str, model: str, processor: "SpanProcessor | None" = None) -> None:
        """Prepare to send.

        Args:
            endpoint: URL of the collector.
            model: The name that the model is served under.
            processor: Takes the spans in place of the collector; for tests.

        Raises:
            StartupError: The packages of the extra are missing.
        """
        if not IS_AVAILABLE:
            raise StartupError("telemetry.otlp_endpoint needs the packages of the extra otel")
        self._model = model
        resource = Resource.create({"service.name": "slipstream", "service.version": VERSION})
        self._provider = TracerProvider(resource=resource)
        self._provider.add_span_processor(
            processor or BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint))
        )
        self._tracer = self._provider.get_tracer("slipstream", VERSION)
        self._propagator = TraceContextTextMapPropagator()

    def observe(self, record: RequestRecord, path: str) -> None:
        """Make the span of a request that has ended; requests that ask for nothing have none."""
        if not record.answers:
            return
        now, wall_clock = time.perf_counter(), time.time_ns()

        def at(moment: float) -> int:
            return wall_clock - int((now - moment) * NANOSECONDS)

        operation = OPERATIONS.get(path.removeprefix("/v1").strip("/"), "generate")
        context = self._propagator.extract({"traceparent": record.traceparent})
        span = self._tracer.start_span(
            f"{operation} {self._model}",
            context=context,
            kind=SpanKind.SERVER,
            start_time=at(record.arrived),
            attributes=self._attributes(record, path, operation),
        )
        for answer in record.answers:
            if answer.started is not None:
                span.add_event("first step", timestamp=at(answer.started))
            if answer.first_token is not None:
                span.add_event("first token", timestamp=at(answer.first_token))
        if record.outcome == "failed":
            span.set_status(Status(StatusCode.ERROR))
        span.end(end_time=wall_clock)

    def close(self) -> None:
        """Send what is left."""
        self._provider.shutdown()

    def _attributes(self, record: RequestRecord, path: str, operation: str) -> dict[str, Any]:
        answers = record.answers
        attributes: dict[str, Any] = {
            "gen_ai.operation.name": operation,
            "gen_ai.provider.name": "slipstream",
            "gen_ai.request.model": self._model,
            "gen_ai.usage.input_tokens": sum(answer.num_prompt_tokens for answer in answers),
            "gen_ai.usage.output_tokens": sum(answer.num_tokens for answer in answers),
            "gen_ai.response.finish_reasons": [answer.outcome or "cancelled" for answer in answers],
            "http.request.method": record.method,
            "http.response.status_code": record.status,
            "http.route": path,
            "slipstream.request_id": record.request_id,
            "slipstream.outcome": record.outcome,
        }
        if record.outcome == "failed":
            attributes["error.type"] = str(record.status)
        return attributes
