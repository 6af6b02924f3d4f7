"""A live server on a free port, in a thread, over a `FakeManager`."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
from transformers import PreTrainedTokenizerFast

from server.app import create_app
from server.serving import SlipstreamServer, make_server
from server.settings import ModelSettings, ServerSettings, Settings
from server.state import ServerState
from tests.server.fakes import FakeManager, FakeModel, Script, make_byte_level_tokenizer

TEXT = "hello world, hello there! one two three four five six seven eight nine ten"


@dataclass
class LiveServer:
    """A running server and what tests ask of it."""

    host: str
    port: int
    manager: FakeManager
    tokenizer: PreTrainedTokenizerFast
    server: SlipstreamServer
    state: ServerState
    http: httpx.Client

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    def reset(self) -> None:
        """Forget what earlier tests did."""
        self.manager.reset()
        self.state.draining = False
        self.says(TEXT)

    def chat(self, **fields: Any) -> httpx.Response:
        body = {"messages": [{"role": "user", "content": "hello"}], **fields}
        return self.http.post("/v1/chat/completions", json=body)

    def complete(self, **fields: Any) -> httpx.Response:
        return self.http.post("/v1/completions", json={"prompt": "hello", **fields})

    def says(self, text: str, *, eos: bool = True) -> None:
        """Let the model answer with a text from now on."""
        tokens = self.tokenizer.encode(text, add_special_tokens=False)
        tail = [self.tokenizer.eos_token_id] if eos else []
        self.manager.script = lambda _ids, _arguments: [*tokens, *tail]


@contextmanager
def run_live(
    *,
    script: Script | None = None,
    settings: Settings | None = None,
    tokenizer: PreTrainedTokenizerFast | None = None,
    max_model_tokens: int = 256,
    prepare: Callable[[FakeManager], None] | None = None,
) -> Iterator[LiveServer]:
    """Serve until the block ends."""
    tokenizer = tokenizer or make_byte_level_tokenizer()
    settings = settings or Settings(
        model=ModelSettings(served_names=("tiny", "org/tiny")),
        server=ServerSettings(port=0, allow_origins=("*",)),
    )
    default = [*tokenizer.encode(TEXT, add_special_tokens=False), tokenizer.eos_token_id]
    manager = FakeManager(
        script or (lambda _ids, _arguments: default),
        eos_token_id=tokenizer.eos_token_id,
        max_model_tokens=max_model_tokens,
    )
    if prepare is not None:
        prepare(manager)
    app = create_app(settings, FakeModel(), manager, tokenizer)
    listening = threading.Event()
    where: list[tuple[str, int]] = []

    def on_listening(host: str, port: int) -> None:
        where.append((host, port))
        listening.set()

    server = make_server(app, settings.server, on_listening)
    thread = threading.Thread(target=server.run, name="live-server")
    thread.start()
    try:
        assert listening.wait(10), "the server did not start"
        host, port = where[0]
        manager.added.clear()  # the server's own first token
        with httpx.Client(base_url=f"http://{host}:{port}", timeout=10) as http:
            yield LiveServer(host, port, manager, tokenizer, server, app.state.server, http)
    finally:
        manager.paused.clear()
        server.should_exit = True
        thread.join(15)
        assert not thread.is_alive(), "the server did not stop"
