"""Answers the requests of batches, one batch after another, where others leave room.

    validating ──► in_progress ──► finalizing ──► completed
         └► failed      ├── cancelling ──► cancelled
                        └── expired
A line is answered as its owner's request would be; its result is kept before the next is begun, so
that a restart, or a folder that could not be written for a while, goes on where it stopped. What
becomes of one line is its own affair. Event loop only.
"""

import asyncio
import logging
import sqlite3
import time
import uuid
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator
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
from server.batches.inner_call import Reply
from server.batches.lines import BatchLine, read_lines
from server.batches.records import BatchRecords, OwnedBatch, change, read, read_done

logger = logging.getLogger(__name__)

# How often it looks whether others have left, or a busy queue has emptied.
POLL_SECONDS = 0.05
LONGEST_WAIT_SECONDS = 5.0
# How long it leaves a folder alone that cannot be used.
RETRY_SECONDS = 5.0
BUSY = (429, 503)
ENDINGS = {"cancelling": "cancelled", "in_progress": "completed", "finalizing": "completed"}
# Answers a request: whose, where it goes and its body.
Ask = Callable[[str, str, bytes], Awaitable[Reply]]


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
        self, database: Database, files: FileStore, records: BatchRecords, ask: Ask,
        limits: RunnerLimits,
    ) -> None:  # fmt: skip
        """Prepare; nothing runs before `start`."""
        self._database = database
        self._files = files
        self._records = records
        self._ask = ask
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
            try:
                await self._run_waiting()
            except Exception:
                logger.exception("batches pause: their folder cannot be used")
                await asyncio.sleep(RETRY_SECONDS)
                self._wanted.set()

    async def _run_waiting(self) -> None:
        """Bring every batch that waits to its end."""
        while (owned := await self._records.next_unfinished()) is not None:
            self._current = owned.batch.id
            self._stop_current.clear()
            try:
                await self._run_batch(owned)
            except (OSError, sqlite3.Error):
                raise  # the batch goes on when its folder is well again
            except Exception:
                logger.exception("the batch %s failed", owned.batch.id)
                now = int(time.time())
                await self._records.update(owned.batch.id, status="failed", failed_at=now)
            finally:
                self._current = None

    async def _run_batch(self, owned: OwnedBatch) -> None:
        """Bring one batch to its end."""
        batch = owned.batch
        lines, errors = await asyncio.to_thread(
            read_lines,
            self._files.path_of(batch.input_file_id),
            batch.endpoint,
            max_requests=self._limits.max_requests,
        )
        if batch.status in ("validating", "in_progress"):
            if errors:
                await self._records.update(
                    batch.id,
                    status="failed",
                    failed_at=int(time.time()),
                    errors=BatchErrors(data=errors),
                )
                return
            if await self._begin(batch, len(lines)):
                await self._answer_all(owned, lines)
        await self._finish(owned, lines)

    async def _begin(self, batch: Batch, num_lines: int) -> bool:
        """Mark a batch as begun; return whether it is to go on, which a cancelled one is not."""
        counts = RequestCounts(total=num_lines, completed=0, failed=0)
        changes = {
            "status": "in_progress",
            "in_progress_at": int(time.time()),
            "request_counts": counts,
        }

        def begin(connection: sqlite3.Connection) -> bool:
            # It goes on from where it was after a restart.
            status = read(connection, batch.id).status
            if status == "validating":
                change(connection, batch.id, changes)
            return status in ("validating", "in_progress")

        return await self._database.run(begin)

    async def _answer_all(self, owned: OwnedBatch, lines: list[BatchLine]) -> None:
        """Answer what has no result yet, until all is done or the batch is stopped or expires."""
        batch = owned.batch
        done = await self._records.lines_done(batch.id)
        left = deque(line for line in lines if line.number not in done)
        working: set[asyncio.Task[None]] = set()
        stopped = asyncio.create_task(self._stop_current.wait())
        try:
            async with asyncio.timeout(max(batch.expires_at - time.time(), 0)):
                while (left or working) and not stopped.done():
                    if left and len(working) < self._limits.num_allowed():
                        working.add(asyncio.create_task(self._answer(owned, left.popleft())))
                        continue
                    # Wakes up to see whether others have left, too.
                    await asyncio.wait(
                        {*working, stopped},
                        timeout=POLL_SECONDS,
                        return_when=asyncio.FIRST_COMPLETED,
                    )
                    # What a task raises is the folder's fault; it returns nothing.
                    working = {task for task in working if not task.done() or task.result()}
        except TimeoutError:
            logger.info("the batch %s has expired", batch.id)
        finally:
            for task in (*working, stopped):
                task.cancel()
            await asyncio.gather(*working, stopped, return_exceptions=True)

    async def _answer(self, owned: OwnedBatch, line: BatchLine) -> None:
        """Answer one line and keep its result; a full queue is waited for.

        A line that was lost with the engine has that as its result: it may have been the cause.
        """
        batch = owned.batch
        reply = await self._ask(owned.owner, batch.endpoint, line.body)
        while reply.status in BUSY and not reply.was_begun:
            await asyncio.sleep(min(_retry_after(reply), LONGEST_WAIT_SECONDS))
            reply = await self._ask(owned.owner, batch.endpoint, line.body)
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

    async def _finish(self, owned: OwnedBatch, requests: list[BatchLine]) -> None:
        """Write the files of a batch and say how it ended, all or nothing."""
        await self._database.run(lambda connection: self._close_batch(connection, owned, requests))

    def _close_batch(
        self, connection: sqlite3.Connection, owned: OwnedBatch, requests: list[BatchLine]
    ) -> None:
        """Do what `_finish` says; on the database's thread."""
        now = int(time.time())
        batch = read(connection, owned.batch.id)
        counts = batch.request_counts
        ending = ENDINGS.get(batch.status, "cancelled")
        if ending == "completed" and counts.completed + counts.failed < counts.total:
            ending = "expired"
        unanswered: list[str] = []
        if ending != "completed":
            done = read_done(connection, batch.id)
            unanswered = _tell_unanswered((r for r in requests if r.number not in done), ending)
        changes: dict[str, object] = {"status": ending, f"{ending}_at": now, "finalizing_at": now}
        for name, succeeded in (("output", True), ("error", False)):
            lines = _results(connection, batch.id, succeeded)
            texts = [*lines, *([] if succeeded else unanswered)]
            if texts:
                filename = f"{batch.id}_{name}.jsonl"
                made = self._files.write_lines(connection, owned.owner, filename, texts)
                changes[f"{name}_file_id"] = made.id
        connection.execute("DELETE FROM results WHERE batch_id = ?", (batch.id,))
        change(connection, batch.id, changes)


def _tell_unanswered(requests: Iterable[BatchLine], ending: str) -> list[str]:
    """Return an error line for each request that had no turn."""
    error = BatchLineError(
        code=f"batch_{ending}", message=f"The batch was {ending} before this request's turn."
    )
    return [
        BatchOutputLine(
            id=f"batch_req_{uuid.uuid4().hex}",
            custom_id=request.custom_id,
            response=None,
            error=error,
        ).model_dump_json()
        for request in requests
    ]


def _results(connection: sqlite3.Connection, batch_id: str, succeeded: bool) -> Iterator[str]:
    query = "SELECT text FROM results WHERE batch_id = ? AND succeeded = ? ORDER BY line"
    return (text for (text,) in connection.execute(query, (batch_id, succeeded)))


def _retry_after(reply: Reply) -> float:
    value = reply.headers.get("retry-after", "")
    return float(value) if value.isdecimal() else POLL_SECONDS
