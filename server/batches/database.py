"""The folder of files and batches: SQLite for what is known of them, plain files for content.

One thread owns the connection and the folder; coroutines hand it functions and await their results.
Each function is one transaction, so that a process that dies leaves a batch as it was before a line
or after it, never in between. A file belongs to the transaction that makes it: if that fails, it
goes, too, and one that a killed process has left without an entry goes when the folder is opened.
"""

import asyncio
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO, TypeVar

Result = TypeVar("Result")

SCHEMA = """
CREATE TABLE IF NOT EXISTS files (
    id TEXT PRIMARY KEY, owner TEXT NOT NULL, num_bytes INTEGER NOT NULL, body TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS batches (
    id TEXT PRIMARY KEY, owner TEXT NOT NULL, status TEXT NOT NULL, body TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS results (
    batch_id TEXT NOT NULL, line INTEGER NOT NULL, succeeded INTEGER NOT NULL, text TEXT NOT NULL,
    PRIMARY KEY (batch_id, line)
);
"""


class Database:
    """Runs functions on the thread that owns the connection."""

    def __init__(self, folder: Path) -> None:
        """Note the folder; nothing is opened before `open`."""
        self._folder = folder
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="batches")
        self._connection: sqlite3.Connection | None = None
        self._new_files: list[Path] = []

    @property
    def files(self) -> Path:
        """Where the contents of files lie, by id."""
        return self._folder / "files"

    async def open(self) -> None:
        """Make the folder if it isn't there, and open it.

        Raises:
            OSError, sqlite3.Error: It cannot be written, or holds something else.
        """
        await asyncio.get_running_loop().run_in_executor(self._thread, self._open)

    def _open(self) -> None:
        self.files.mkdir(parents=True, exist_ok=True)
        # Autocommit off: each function ends with a commit or a rollback.
        self._connection = sqlite3.connect(self._folder / "batches.sqlite3")
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.executescript(SCHEMA)
        known = {name for (name,) in self._connection.execute("SELECT id FROM files")}
        for path in self.files.iterdir():
            if path.name not in known:
                path.unlink()

    async def run(self, function: Callable[[sqlite3.Connection], Result]) -> Result:
        """Return what a function returns, as one transaction."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._run, function)

    def _run(self, function: Callable[[sqlite3.Connection], Result]) -> Result:
        assert self._connection is not None, "the folder is not open"
        self._new_files.clear()
        try:
            with self._connection:
                return function(self._connection)
        except BaseException:
            for path in self._new_files:
                path.unlink(missing_ok=True)
            raise

    def new_file(self, file_id: str) -> BinaryIO:
        """Open the content of a new file, which the transaction that runs enters."""
        path = self.files / file_id
        self._new_files.append(path)
        return path.open("wb")

    async def close(self) -> None:
        """Close the folder; what was handed over before is done first."""
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._thread, self._close)
        self._thread.shutdown()

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
