"""A live server on a free port, in a thread, over a real engine, and what to ask of it."""

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import httpx
from transformers import PreTrainedTokenizerBase

from engine import ContinuousBatchingConfig, ContinuousBatchingManager, PagedModel
from server.app import create_app
from server.serving import make_server
from server.settings import ModelSettings, ServerSettings, Settings
from server.state import ServerState
from tests.engine.soundness import check_idle
from tests.engine.threads import until

# So small that a crowd fills it, and requests wait and are preempted.
SMALL = {
    "page_size": 16,
    "num_blocks": 96,
    "max_batch_tokens": 128,
    "max_requests_per_batch": 16,
    "max_queue_size": 256,
    "seed": 0,
}
SETTINGS = Settings(
    model=ModelSettings(served_names=("tiny",)),
    # What a test does to an engine must not end the server before the test has looked at it.
    server=ServerSettings(port=0, engine_failure="stay"),
)
DEADLINE_SECONDS = 60.0
# Pools of a bounded size, which make their threads when they first need them.
POOLS = ("prompt-encoding", "asyncio_", "AnyIO worker thread")

Result = TypeVar("Result")


@dataclass(frozen=True)
class ServedModel:
    """A model to serve, and its tokenizer."""

    model: PagedModel
    tokenizer: PreTrainedTokenizerBase


@dataclass(frozen=True)
class Footprint:
    """What a server that answers nobody keeps of this process."""

    tasks: list[str]
    threads: list[str]
    num_descriptors: int


@dataclass(frozen=True)
class EngineServer:
    """A running server and its engine."""

    port: int
    manager: ContinuousBatchingManager
    tokenizer: PreTrainedTokenizerBase
    state: ServerState
    loop: asyncio.AbstractEventLoop
    http: httpx.Client

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def complete(self, prompt: object, **fields: Any) -> httpx.Response:
        body = {"prompt": prompt, "temperature": 0, **fields}
        return self.http.post("/v1/completions", json=body)

    def text(self, prompt: object, **fields: Any) -> str:
        """Return the text of an answer that must succeed."""
        response = self.complete(prompt, **fields)
        assert response.status_code == 200, response.text
        text: str = response.json()["choices"][0]["text"]
        return text

    def is_idle(self) -> bool:
        """Whether nothing of any request is left, and every block is free."""
        statistics = self.manager.statistics()
        return (
            statistics.num_live == statistics.num_running == 0
            and statistics.num_free_blocks == statistics.num_blocks
            and self.manager._channels.gate.num_waiting == 0
            and self.manager._router.num_handlers == 0
            and self.state.num_active == self.state.client.num_open == 0
        )

    def wait_until_idle(self) -> None:
        until(self.is_idle)
        if self.manager.is_running():
            # The engine sleeps; nothing moves while the blocks are counted.
            loop = self.manager._thread.loop
            assert loop is not None
            check_idle(loop.scheduler)

    def footprint(self) -> Footprint:
        """Count what is left now."""

        async def names() -> list[str]:
            own = asyncio.current_task()
            tasks = asyncio.all_tasks() - ({own} if own else set())
            return sorted(getattr(task.get_coro(), "__qualname__", "?") for task in tasks)

        tasks = asyncio.run_coroutine_threadsafe(names(), self.loop).result(10)
        names_of_all = (thread.name for thread in threading.enumerate())
        threads = sorted(name for name in names_of_all if not name.startswith(POOLS))
        return Footprint(tasks, threads, len(list(Path("/proc/self/fd").iterdir())))


@contextmanager
def run_engine_server(
    served: ServedModel,
    *,
    prepare: Callable[[ContinuousBatchingManager], object] = lambda _manager: None,
    settings: Settings = SETTINGS,
    **fields: Any,
) -> Iterator[EngineServer]:
    """Serve until the block ends; afterwards no thread is left.

    Args:
        served: What to serve.
        prepare: Called with the manager before the server starts.
        settings: Of the server.
        **fields: Of the engine's configuration.
    """
    before = set(threading.enumerate())
    config = ContinuousBatchingConfig(**{**SMALL, **fields})
    manager = served.model.init_continuous_batching(continuous_batching_config=config)
    prepare(manager)
    app = create_app(settings, served.model, manager, served.tokenizer)
    listening = threading.Event()
    where: list[tuple[int, asyncio.AbstractEventLoop]] = []

    def on_listening(_host: str, port: int) -> None:
        where.append((port, asyncio.get_running_loop()))
        listening.set()

    server = make_server(app, settings.server, on_listening)
    thread = threading.Thread(target=server.run, name="engine-server")
    thread.start()
    try:
        assert listening.wait(30), "the server did not start"
        port, loop = where[0]
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=DEADLINE_SECONDS) as http:
            yield EngineServer(port, manager, served.tokenizer, app.state.server, loop, http)
    finally:
        server.should_exit = True
        thread.join(30)
        assert not thread.is_alive(), "the server did not stop"
        manager.destroy()
    until(lambda: not set(threading.enumerate()) - before)


class Connection:
    """One request on a socket of its own, which may be dropped at any moment."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def send(cls, port: int, path: str, body: dict[str, Any]) -> "Connection":
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
        data = json.dumps(body).encode()
        head = (
            f"POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
        )
        writer.write(head.encode() + data)
        await writer.drain()
        return cls(reader, writer)

    async def events(self, count: int | None = None) -> list[str]:
        """Read this many events, or all until the server closes the connection."""
        found: list[str] = []
        while count is None or len(found) < count:
            line = await self._reader.readline()
            if not line:
                break
            if line.startswith(b"data: "):
                found.append(line[6:].decode().rstrip("\n"))
        return found

    async def whole(self) -> tuple[int, dict[str, Any]]:
        """Read an answer that is not streamed; return its status and body."""
        data = await self._reader.read()
        head, _, body = data.partition(b"\r\n\r\n")
        return int(head.split()[1]), json.loads(body)

    async def close(self, *, abruptly: bool = False) -> None:
        """Close the socket, with a reset of the connection or in good order."""
        if abruptly:
            self._writer.transport.abort()
        self._writer.close()
        try:
            await self._writer.wait_closed()
        except OSError:
            assert abruptly, "the server reset the connection"


def run_clients(main: Awaitable[Result], seconds: float = DEADLINE_SECONDS) -> Result:
    """Run the clients of a test on an event loop of their own, within a time limit."""

    async def limited() -> Result:
        return await asyncio.wait_for(main, seconds)

    return asyncio.run(limited())


def joined_texts(events: list[str]) -> dict[int, str]:
    """Return the text of each choice of a stream that must have ended well."""
    *frames, done = events
    assert done == "[DONE]"
    texts: dict[int, str] = {}
    ended: set[int] = set()
    for frame in map(json.loads, frames):
        assert "error" not in frame, frame
        for choice in frame["choices"]:
            piece = choice["text"] if "text" in choice else choice["delta"].get("content")
            texts[choice["index"]] = texts.get(choice["index"], "") + (piece or "")
            assert choice["index"] not in ended, "a chunk came after the last one"
            if choice["finish_reason"] is not None:
                ended.add(choice["index"])
    assert ended == set(texts), "a choice has no finish reason"
    return texts
