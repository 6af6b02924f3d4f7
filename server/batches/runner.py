"""Answers the requests of batches, one batch after another, where others leave room.

    validating ──► in_progress ──► finalizing ──► completed
         └► failed      ├── cancelling ──► cancelled
                        └── expired
A line is answered as a client's request would be; its result is kept before the next is begun, so
that a restart goes on where the last process stopped. Event loop only.
"""

import asyncio
import logging
import sqlite3
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from api_schemas import (
    Batch,
    BatchErrors,
    BatchLineError,
    BatchOutputLine,
    BatchReply,
    RequestCounts,
)
from server.batches.database import Database
from server.batches.files import FileStore
from server.batches.inner_call import Call, Reply
from server.batches.lines import BatchLine, read_lines
from server.batches.records import BatchRecords, OwnedBatch, change, read

logger = logging.getLogger(__name__)

# How often it looks whether others have left, or a busy queue has emptied.
POLL_SECONDS = 0.05
LONGEST_WAIT_SECONDS = 5.0
BUSY = (429, 503)
ENDINGS = {"cancelling": "cancelled", "in_progress": "completed", "finalizing": "completed"}


@dataclass(frozen=True, slots=True)
class RunnerLimits:
    """How much of the engine batches may have.

    Attributes:
        max_requests: Most requests in a batch.
        num_allowed: Returns how many may be answered at this moment.
    """

    max_requests: int
    num_allowed: Callable[[], int]


class BatchRunner:
    """Runs batches until it is closed."""

    def __init__(
        self, database: Database, files: FileStore, records: BatchRecords, call: Call,
        limits: RunnerLimits,
    ) -> None:  # fmt: skip
        """Prepare; nothing runs before `start`."""
        self._database = database
        self._files = files
        self._records = records
        self._call = call
        self._limits = limits
        self._wanted = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._current: str | None = None
        self._stop_current = asyncio.Event()

    def start(self) -> None:
        """Begin with what an earlier process has left."""
        self._wanted.set()
        self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        """Stop; requests that are being answered are cancelled and stay to be done."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def wake(self) -> None:
        """Look for new batches."""
        self._wanted.set()

    def stop_batch(self, batch_id: str) -> None:
        """Let a batch that runs see that it is cancelled."""
        if batch_id == self._current:
            self._stop_current.set()

    async def _run(self) -> None:
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            while (owned := await self._records.next_unfinished()) is not None:
                self._current = owned.batch.id
                self._stop_current.clear()
                try:
                    await self._run_batch(owned)
                except Exception:
                    logger.exception("the batch %s failed", owned.batch.id)
                    now = int(time.time())
                    await self._records.update(owned.batch.id, status="failed", failed_at=now)
                self._current = None

    async def _run_batch(self, owned: OwnedBatch) -> None:
        """Bring one batch to its end."""
        batch = owned.batch
        if batch.status in ("validating", "in_progress"):
            lines = await self._read(batch)
            if lines is None:
                return
            await self._answer_all(batch, lines)
        await self._finish(owned)

    async def _read(self, batch: Batch) -> list[BatchLine] | None:
        """Return the lines of a batch; None if it has failed because of them."""
        path = self._files.path_of(batch.input_file_id)
        lines, errors = await asyncio.to_thread(
            read_lines, path, batch.endpoint, max_requests=self._limits.max_requests
        )
        now = int(time.time())
        if errors:
            await self._records.update(
                batch.id, status="failed", failed_at=now, errors=BatchErrors(data=errors)
            )
            return None

        def begin(connection: sqlite3.Connection) -> None:
            # It may have been cancelled meanwhile, and goes on from where it was after a restart.
            if read(connection, batch.id).status == "validating":
                counts = RequestCounts(total=len(lines), completed=0, failed=0)
                changes = {
                    "status": "in_progress", "in_progress_at": now, "request_counts": counts
                }  # fmt: skip
                change(connection, batch.id, changes)

        await self._database.run(begin)
        return lines

    async def _answer_all(self, batch: Batch, lines: list[BatchLine]) -> None:
        """Answer what has no result yet, until all is done or the batch is stopped or expires."""
        done = await self._records.lines_done(batch.id)
        left = deque(line for line in lines if line.number not in done)
        working: set[asyncio.Task[None]] = set()
        stopped = asyncio.create_task(self._stop_current.wait())
        try:
            async with asyncio.timeout(max(batch.expires_at - time.time(), 0)):
                while (left or working) and not stopped.done():
                    if left and len(working) < self._limits.num_allowed():
                        working.add(asyncio.create_task(self._answer(batch, left.popleft())))
                        continue
                    # Wakes up to see whether others have left, too.
                    await asyncio.wait(
                        {*working, stopped},
                        timeout=POLL_SECONDS,
                        return_when=asyncio.FIRST_COMPLETED,
                    )
                    # What a task raises ends the batch; it returns nothing.
                    working = {task for task in working if not task.done() or task.result()}
        except TimeoutError:
            logger.info("the batch %s has expired", batch.id)
        finally:
            for task in (*working, stopped):
                task.cancel()
            await asyncio.gather(*working, stopped, return_exceptions=True)

    async def _answer(self, batch: Batch, line: BatchLine) -> None:
        """Answer one line and keep its result; a full queue is waited for."""
        reply = await self._call(batch.endpoint, line.body)
        while reply.status in BUSY:
            await asyncio.sleep(min(_retry_after(reply), LONGEST_WAIT_SECONDS))
            reply = await self._call(batch.endpoint, line.body)
        request_id = f"batch_req_{uuid.uuid4().hex}"
        response = BatchReply(
            status_code=reply.status,
            request_id=reply.headers.get("x-request-id", request_id),
            body=reply.body,
        )
        result = BatchOutputLine(
            id=request_id, custom_id=line.custom_id, response=response, error=None
        )
        await self._records.add_result(batch.id, line.number, result)

    async def _finish(self, owned: OwnedBatch) -> None:
        """Write the files of a batch and say how it ended, both or neither."""
        now = int(time.time())
        batch = await self._records.get(owned.owner, owned.batch.id)
        counts = batch.request_counts
        ending = ENDINGS.get(batch.status, "cancelled")
        if ending == "completed" and counts.completed + counts.failed < counts.total:
            ending = "expired"
        unanswered = [] if ending == "completed" else await self._unanswered(batch, ending)

        def finish(connection: sqlite3.Connection) -> Batch:
            changes: dict[str, object] = {"status": ending, f"{ending}_at": now}
            changes["finalizing_at"] = now
            for name, succeeded in (("output", True), ("error", False)):
                lines = _results(connection, batch.id, succeeded)
                texts = [*lines, *([] if succeeded else unanswered)]
                if texts:
                    filename = f"{batch.id}_{name}.jsonl"
                    made = self._files.write_lines(connection, owned.owner, filename, texts)
                    changes[f"{name}_file_id"] = made.id
            connection.execute("DELETE FROM results WHERE batch_id = ?", (batch.id,))
            return change(connection, batch.id, changes)

        await self._database.run(finish)

    async def _unanswered(self, batch: Batch, ending: str) -> list[str]:
        """Return an error line for each request that had no turn."""
        path = self._files.path_of(batch.input_file_id)
        if not path.exists():
            return []
        lines, _ = await asyncio.to_thread(
            read_lines, path, batch.endpoint, max_requests=self._limits.max_requests
        )
        done = await self._records.lines_done(batch.id)
        error = BatchLineError(
            code=f"batch_{ending}", message=f"The batch was {ending} before this request's turn."
        )
        return [
            BatchOutputLine(
                id=f"batch_req_{uuid.uuid4().hex}",
                custom_id=line.custom_id,
                response=None,
                error=error,
            ).model_dump_json()
            for line in lines
            if line.number not in done
        ]


def _results(connection: sqlite3.Connection, batch_id: str, succeeded: bool) -> Iterator[str]:
    query = "SELECT text FROM results WHERE batch_id = ? AND succeeded = ? ORDER BY line"
    return (text for (text,) in connection.execute(query, (batch_id, succeeded)))


def _retry_after(reply: Reply) -> float:
    value = reply.headers.get("retry-after", "")
    return float(value) if value.isdecimal() else POLL_SECONDS
