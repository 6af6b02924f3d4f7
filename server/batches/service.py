"""Files and batches as one part of a server, with a life of its own. Event loop only."""

from pathlib import Path

from api_schemas import Batch, BatchRequest
from server.batches.database import Database
from server.batches.files import FileStore
from server.batches.records import BatchRecords
from server.batches.runner import Ask, BatchRunner, RunnerLimits
from server.request_errors import RequestError

MAX_UNFINISHED = 64


class BatchService:
    """Keeps files and runs batches.

    Attributes:
        files: The files.
        records: The batches.
    """

    def __init__(
        self, folder: Path, ask: Ask, limits: RunnerLimits, *, max_total_bytes: int
    ) -> None:
        """Prepare; nothing is opened before `start`.

        Args:
            folder: Where everything is kept; no other process may use it meanwhile.
            ask: Answers a request.
            limits: How much of the engine batches may have.
            max_total_bytes: What all files may take together.
        """
        self._database = Database(folder)
        self.files = FileStore(self._database, max_total_bytes=max_total_bytes)
        self.records = BatchRecords(self._database)
        self._runner = BatchRunner(self._database, self.files, self.records, ask, limits)

    async def start(self) -> None:
        """Open the folder and go on with what an earlier process has left.

        Raises:
            OSError, sqlite3.Error: The folder cannot be used.
        """
        await self._database.open()
        self._runner.start()

    async def close(self) -> None:
        """Stop where it is."""
        await self._runner.close()
        await self._database.close()

    async def create(self, owner: str, request: BatchRequest) -> Batch:
        """Begin a batch.

        Raises:
            RequestError: Its file does not exist, or too many batches wait.
        """
        described = await self.files.get(owner, request.input_file_id, param="input_file_id")
        if described.purpose != "batch":
            message = "input_file_id is the output of another batch."
            raise RequestError(message, param="input_file_id")
        if await self.records.num_unfinished() >= MAX_UNFINISHED:
            message = f"At most {MAX_UNFINISHED} batches may wait; try again when some are done."
            raise RequestError(message, code="too_many_batches", status=429)
        batch = await self.records.add(owner, request)
        self._runner.wake()
        return batch

    async def cancel(self, owner: str, batch_id: str) -> Batch:
        """Begin to cancel a batch; one that has ended stays as it is."""
        batch = await self.records.cancel(owner, batch_id)
        self._runner.stop_batch(batch_id)
        self._runner.wake()
        return batch
