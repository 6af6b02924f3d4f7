"""Batches and their results in the database. Event loop only."""

import sqlite3
import time
import uuid
from dataclasses import dataclass
from typing import Any

from api_schemas import Batch, BatchOutputLine, BatchRequest, RequestCounts
from server.batches.database import Database
from server.request_errors import RequestError

WINDOW_SECONDS = 24 * 60 * 60
STOPPABLE = ("validating", "in_progress")
UNFINISHED = ("validating", "in_progress", "finalizing", "cancelling")


@dataclass(frozen=True, slots=True)
class OwnedBatch:
    """A batch and whose it is."""

    owner: str
    batch: Batch


class BatchRecords:
    """Keeps batches by id and owner."""

    def __init__(self, database: Database) -> None:
        """Use an open database."""
        self._database = database

    async def add(self, owner: str, request: BatchRequest) -> Batch:
        """Keep a new batch."""
        now = int(time.time())
        batch = Batch(
            id=f"batch_{uuid.uuid4().hex}",
            endpoint=request.endpoint,
            input_file_id=request.input_file_id,
            status="validating",
            created_at=now,
            expires_at=now + WINDOW_SECONDS,
            request_counts=RequestCounts(total=0, completed=0, failed=0),
            metadata=request.metadata,
        )
        values = (batch.id, owner, batch.status, batch.model_dump_json())
        query = "INSERT INTO batches VALUES (?, ?, ?, ?)"
        await self._database.run(lambda c: c.execute(query, values))
        return batch

    async def get(self, owner: str, batch_id: str) -> Batch:
        """Return a batch.

        Raises:
            RequestError: It does not exist.
        """
        return await self._database.run(lambda c: _find(c, owner, batch_id))

    async def cancel(self, owner: str, batch_id: str) -> Batch:
        """Mark a batch as to be cancelled; one that has ended meanwhile stays as it is.

        Raises:
            RequestError: It does not exist.
        """
        changes = {"status": "cancelling", "cancelling_at": int(time.time())}

        def mark(connection: sqlite3.Connection) -> Batch:
            batch = _find(connection, owner, batch_id)
            return change(connection, batch_id, changes) if batch.status in STOPPABLE else batch

        return await self._database.run(mark)

    async def list(self, owner: str) -> list[Batch]:
        """Return all batches, the newest first."""
        query = "SELECT body FROM batches WHERE owner = ? ORDER BY rowid DESC"
        rows = await self._database.run(lambda c: c.execute(query, (owner,)).fetchall())
        return [Batch.model_validate_json(body) for (body,) in rows]

    async def num_unfinished(self) -> int:
        """Return how many batches are not done."""
        query = f"SELECT count(*) FROM batches WHERE status IN {UNFINISHED}"
        (count,) = await self._database.run(lambda c: c.execute(query).fetchone())
        return int(count)

    async def next_unfinished(self) -> OwnedBatch | None:
        """Return the oldest batch that is not done."""
        query = f"SELECT owner, body FROM batches WHERE status IN {UNFINISHED} ORDER BY rowid"
        row = await self._database.run(lambda c: c.execute(query).fetchone())
        return None if row is None else OwnedBatch(row[0], Batch.model_validate_json(row[1]))

    async def update(self, batch_id: str, **changes: Any) -> Batch:
        """Change a batch and return it."""
        return await self._database.run(lambda c: change(c, batch_id, changes))

    async def lines_done(self, batch_id: str) -> set[int]:
        """Return the lines that have a result."""
        return await self._database.run(lambda c: read_done(c, batch_id))

    async def add_result(self, batch_id: str, line: int, result: BatchOutputLine) -> None:
        """Keep the result of a line and count it, both or neither."""
        succeeded = result.response is not None and result.response.status_code < 400
        values = (batch_id, line, succeeded, result.model_dump_json())

        def keep(connection: sqlite3.Connection) -> None:
            connection.execute("INSERT OR REPLACE INTO results VALUES (?, ?, ?, ?)", values)
            counts = read(connection, batch_id).request_counts
            name = "completed" if succeeded else "failed"
            counted = counts.model_copy(update={name: getattr(counts, name) + 1})
            change(connection, batch_id, {"request_counts": counted})

        await self._database.run(keep)


def read(connection: sqlite3.Connection, batch_id: str) -> Batch:
    """Return a batch that exists; on the database's thread."""
    query = "SELECT body FROM batches WHERE id = ?"
    return Batch.model_validate_json(connection.execute(query, (batch_id,)).fetchone()[0])


def read_done(connection: sqlite3.Connection, batch_id: str) -> set[int]:
    """Return the lines of a batch that have a result; on the database's thread."""
    query = "SELECT line FROM results WHERE batch_id = ?"
    return {line for (line,) in connection.execute(query, (batch_id,))}


def _find(connection: sqlite3.Connection, owner: str, batch_id: str) -> Batch:
    """Return an owner's batch; on the database's thread.

    Raises:
        RequestError: It does not exist.
    """
    query = "SELECT body FROM batches WHERE id = ? AND owner = ?"
    row = connection.execute(query, (batch_id, owner)).fetchone()
    if row is None:
        message = f"The batch {batch_id[:128]!r} does not exist here."
        raise RequestError(message, param="batch_id", code="batch_not_found", status=404)
    return Batch.model_validate_json(row[0])


def change(connection: sqlite3.Connection, batch_id: str, changes: dict[str, Any]) -> Batch:
    """Change a batch and return it; on the database's thread."""
    batch = read(connection, batch_id).model_copy(update=changes)
    query = "UPDATE batches SET status = ?, body = ? WHERE id = ?"
    connection.execute(query, (batch.status, batch.model_dump_json(), batch_id))
    return batch
