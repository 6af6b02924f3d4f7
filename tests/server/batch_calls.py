"""A server with files and batches, and what tests of them ask of it."""

import json
import time
from contextlib import contextmanager
from typing import Any, Final

import httpx

from api_schemas import BatchRequest
from server.keys import KeyRing, parse_keys
from server.settings import BatchSettings, ModelSettings, ServerSettings, Settings
from tests.server.live import TEXT, run_live

KEYS = KeyRing(clients=parse_keys(["a first-secret", "b second-secret"], origin="test"))
OF_A = {"Authorization": "Bearer first-secret"}
OF_B = {"Authorization": "Bearer second-secret"}
MESSAGES = [{"role": "user", "content": "hello"}]
CHAT: Final = "/v1/chat/completions"
SERVER = ServerSettings(port=0)


@contextmanager
def serving(
    folder,
    *,
    keys: KeyRing | None = None,
    queue_size: int = 0,
    server: ServerSettings = SERVER,
    **limits: Any,
):
    settings = Settings(
        model=ModelSettings(served_names=("tiny",)),
        server=server,
        batches=BatchSettings(folder=str(folder), **limits),
        keys=keys or KeyRing(),
    )

    def prepare(manager):
        object.__setattr__(manager.resolved_config, "max_queue_size", queue_size)

    with run_live(settings=settings, prepare=prepare) as live:
        live.says(TEXT)
        yield live


def line(custom_id: str, url: str = CHAT, **body: Any) -> dict[str, Any]:
    body = body or {"messages": MESSAGES}
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": body}


def upload(live, lines, **headers: str) -> httpx.Response:
    data = "\n".join(item if isinstance(item, str) else json.dumps(item) for item in lines)
    return live.http.post(
        "/v1/files",
        files={"file": ("in.jsonl", data.encode())},
        data={"purpose": "batch"},
        headers=headers,
    )


def request_for(file_id: str) -> BatchRequest:
    return BatchRequest(input_file_id=file_id, endpoint=CHAT, completion_window="24h")


def begin(live, lines, endpoint: str = CHAT, **headers: str) -> dict[str, Any]:
    file_id = upload(live, lines, **headers).json()["id"]
    body = {"input_file_id": file_id, "endpoint": endpoint, "completion_window": "24h"}
    response = live.http.post("/v1/batches", json=body, headers=headers)
    assert response.status_code == 200, response.text
    return response.json()


def wait_for(live, batch_id: str, *statuses: str, **headers: str) -> dict[str, Any]:
    deadline = time.monotonic() + 10
    while True:
        batch = live.http.get(f"/v1/batches/{batch_id}", headers=headers).json()
        if batch["status"] in statuses:
            return batch
        assert time.monotonic() < deadline, batch
        time.sleep(0.01)


def content(live, file_id: str | None, **headers: str) -> dict[str, dict[str, Any]]:
    if file_id is None:
        return {}
    text = live.http.get(f"/v1/files/{file_id}/content", headers=headers).text
    found = [json.loads(entry) for entry in text.splitlines()]
    return {entry["custom_id"]: entry for entry in found}
