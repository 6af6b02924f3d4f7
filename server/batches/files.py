"""Files of clients and of batches. Event loop only; the work is done on the database's thread."""

import shutil
import sqlite3
import time
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

from api_schemas import FileObject, FilePurpose
from server.batches.database import Database
from server.request_errors import RequestError


def file_not_found(file_id: str, param: str) -> RequestError:
    """Return the error of a file that is not here, or is somebody else's."""
    message = f"The file {file_id[:128]!r} does not exist here."
    return RequestError(message, param=param, code="file_not_found", status=404)


class FileStore:
    """Keeps files by id and owner."""

    def __init__(self, database: Database, *, max_total_bytes: int) -> None:
        """Use an open database.

        Args:
            database: Where to keep them.
            max_total_bytes: What all files may take together.
        """
        self._database = database
        self._max_total_bytes = max_total_bytes

    async def add(self, owner: str, filename: str, content: BinaryIO) -> FileObject:
        """Keep a file of a client.

        Raises:
            RequestError: There is no room for it.
        """

        def keep(connection: sqlite3.Connection) -> FileObject:
            num_bytes = content.seek(0, 2)
            content.seek(0)
            (taken,) = connection.execute("SELECT total(num_bytes) FROM files").fetchone()
            if taken + num_bytes > self._max_total_bytes:
                message = "There is no room for this file; delete others."
                raise RequestError(message, param="file", code="storage_full", status=413)
            described = _describe(filename, num_bytes, "batch")
            with self._database.new_file(described.id) as target:
                shutil.copyfileobj(content, target)
            _insert(connection, owner, described)
            return described

        return await self._database.run(keep)

    def write_lines(
        self, connection: sqlite3.Connection, owner: str, filename: str, lines: Iterable[str]
    ) -> FileObject:
        """Keep a file that a batch has made; on the database's thread."""
        file_id = _new_id()
        num_bytes = 0
        with self._database.new_file(file_id) as target:
            for line in lines:
                num_bytes += target.write(line.encode() + b"\n")
        described = _describe(filename, num_bytes, "batch_output", file_id)
        _insert(connection, owner, described)
        return described

    async def get(self, owner: str, file_id: str, *, param: str = "file_id") -> FileObject:
        """Return a file's description.

        Raises:
            RequestError: It does not exist.
        """
        query = "SELECT body FROM files WHERE id = ? AND owner = ?"
        row = await self._database.run(lambda c: c.execute(query, (file_id, owner)).fetchone())
        if row is None:
            raise file_not_found(file_id, param)
        return FileObject.model_validate_json(row[0])

    async def list(self, owner: str) -> list[FileObject]:
        """Return all files, the newest first."""
        query = "SELECT body FROM files WHERE owner = ? ORDER BY rowid DESC"
        rows = await self._database.run(lambda c: c.execute(query, (owner,)).fetchall())
        return [FileObject.model_validate_json(body) for (body,) in rows]

    async def delete(self, owner: str, file_id: str) -> None:
        """Forget a file; raises what `get` raises."""

        def forget(connection: sqlite3.Connection) -> bool:
            query = "DELETE FROM files WHERE id = ? AND owner = ?"
            return connection.execute(query, (file_id, owner)).rowcount > 0

        if not await self._database.run(forget):
            raise file_not_found(file_id, "file_id")
        # Not before the entry is gone for good.
        await self._database.run(lambda _: self.path_of(file_id).unlink(missing_ok=True))

    def path_of(self, file_id: str) -> Path:
        """Return where a known file's content lies."""
        return self._database.files / file_id


def _new_id() -> str:
    return f"file-{uuid.uuid4().hex}"


def _describe(
    filename: str, num_bytes: int, purpose: FilePurpose, file_id: str | None = None
) -> FileObject:
    return FileObject(
        id=file_id or _new_id(),
        object="file",
        bytes=num_bytes,
        created_at=int(time.time()),
        expires_at=None,
        filename=filename,
        purpose=purpose,
        status="processed",
    )


def _insert(connection: sqlite3.Connection, owner: str, described: FileObject) -> None:
    values = (described.id, owner, described.bytes, described.model_dump_json())
    connection.execute("INSERT INTO files VALUES (?, ?, ?, ?)", values)
