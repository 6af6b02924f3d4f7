"""What a server has counted, and what the process holds, before and after a test."""

import ctypes
import gc
import logging
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import combinations
from pathlib import Path
from statistics import median
from typing import Any

import psutil
from prometheus_client.parser import text_string_to_metric_families

from engine import ContinuousBatchingManager
from tests.integration.engine_server import EngineServer, Footprint


class Accepted:
    """Counts the answers that an engine has taken upon itself, apart from the server's counters.

    Attributes:
        num_answers: So far.
    """

    def __init__(self) -> None:
        self.num_answers = 0

    def watch(self, manager: ContinuousBatchingManager) -> None:
        """Count from now on; a `prepare` of `run_engine_server`."""
        take = manager.add_request

        def add_request(*arguments: Any, **keywords: Any) -> str:
            request_id = take(*arguments, **keywords)
            self.num_answers += keywords.get("num_return_sequences", 1)
            return request_id

        manager.add_request = add_request  # type: ignore[method-assign]


def counted(server: EngineServer, name: str) -> Counter[str]:
    """Return a counter of the server's by its label."""
    found: Counter[str] = Counter()
    for family in text_string_to_metric_families(server.http.get("/metrics").text):
        for sample in family.samples:
            if sample.name == f"slipstream_{name}_total":
                [label] = sample.labels.values()
                found[label] = int(sample.value)
    return found


def resident_bytes() -> int:
    """Return what the process holds in memory, after it has given back what it does not use."""
    gc.collect()
    with suppress(AttributeError):  # glibc keeps what was freed; other systems have no such call
        ctypes.CDLL(None).malloc_trim(0)
    return int(psutil.Process().memory_info().rss)


def bytes_per_minute(samples: list[tuple[float, int]]) -> float:
    """Return how fast memory grows: the median of the slopes between any two samples.

    Memory goes up and down by whole heaps; a few samples that are far off do not change it.

    Args:
        samples: Seconds, and bytes.
    Source: Theil (1950), Sen (1968).
    """
    pairs = combinations(samples, 2)
    return 60 * median((late[1] - early[1]) / (late[0] - early[0]) for early, late in pairs)


def settled_footprint(server: EngineServer) -> Footprint:
    """Return what an idle server keeps, once the connections of its clients are all closed."""
    assert server.http.get("/live").status_code == 200  # its own may have been idle for too long
    found = server.footprint()
    while True:
        time.sleep(0.2)
        now = server.footprint()
        if now == found:
            return found
        found = now


@contextmanager
def logs_not_kept() -> Iterator[None]:
    """Write logs as a server does, to no file that anybody reads.

    pytest keeps every record of a test, with the traceback of its exception and all that its frames
    hold: 100 MiB in ten minutes of chaos.
    """
    root = logging.getLogger()
    kept = root.handlers[:]
    with Path("/dev/null").open("w", encoding="utf-8") as nowhere:
        root.handlers[:] = [logging.StreamHandler(nowhere)]
        try:
            yield
        finally:
            root.handlers[:] = kept
