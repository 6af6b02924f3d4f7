"""One line for each request that has ended; never a word of prompts or answers. Event loop only."""

import logging
import time

from server.request_record import RequestRecord

logger = logging.getLogger("server.requests")


def log_request(record: RequestRecord, path: str) -> None:
    """Write the line of a request; with the JSON format each of these is a field."""
    fields = request_fields(record, path)
    text = " ".join(f"{name}={value}" for name, value in fields.items() if value is not None)
    logger.info("request %s", text, extra={"fields": fields})


def request_fields(record: RequestRecord, path: str) -> dict[str, str | int | float | None]:
    """Return what is to be said of a request.

    Args:
        record: The request, ended.
        path: The template of its route.
    """
    answers = record.answers
    started = [answer.started for answer in answers if answer.started is not None]
    first = [answer.first_token for answer in answers if answer.first_token is not None]
    outcomes = sorted({answer.outcome or "cancelled" for answer in answers})
    return {
        "request_id": record.request_id,
        "key": record.key_name or None,
        "method": record.method,
        "path": path,
        "status": record.status,
        "outcome": record.outcome if answers else None,
        "finish_reason": ",".join(outcomes) or None,
        "prompt_tokens": sum(answer.num_prompt_tokens for answer in answers),
        "cached_tokens": sum(answer.num_cached_tokens for answer in answers),
        "completion_tokens": sum(answer.num_tokens for answer in answers),
        "preemptions": sum(answer.num_preemptions for answer in answers),
        **timings(record, min(started, default=None), min(first, default=None)),
    }


def timings(
    record: RequestRecord, started: float | None, first_token: float | None
) -> dict[str, float | None]:
    """Return how long a request has waited and taken so far, in milliseconds."""

    def since_arrival(moment: float | None) -> float | None:
        return None if moment is None else round(max(0.0, moment - record.arrived) * 1000, 3)

    return {
        "queue_ms": since_arrival(started),
        "first_token_ms": since_arrival(first_token),
        "total_ms": since_arrival(time.perf_counter()),
    }
