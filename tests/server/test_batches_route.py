"""Files and batches over a scripted engine."""

import asyncio
import json
import time
from contextlib import contextmanager
from typing import Any

import httpx
import openai
import pytest

from engine import QueueFullError, RequestFailedError
from server.keys import KeyRing, parse_keys
from server.settings import BatchSettings, ModelSettings, ServerSettings, Settings
from tests.server.live import TEXT, LiveServer, run_live

MESSAGES = [{"role": "user", "content": "hello"}]
CHAT = "/v1/chat/completions"


@contextmanager
def serving(folder, *, keys: KeyRing | None = None, **limits: Any):
    settings = Settings(
        model=ModelSettings(served_names=("tiny",)),
        server=ServerSettings(port=0),
        batches=BatchSettings(folder=str(folder), **limits),
        keys=keys or KeyRing(),
    )
    with run_live(settings=settings) as live:
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


def begin(live, lines, endpoint: str = CHAT) -> dict[str, Any]:
    file_id = upload(live, lines).json()["id"]
    body = {"input_file_id": file_id, "endpoint": endpoint, "completion_window": "24h"}
    response = live.http.post("/v1/batches", json=body)
    assert response.status_code == 200, response.text
    return response.json()


def wait_for(live, batch_id: str, *statuses: str) -> dict[str, Any]:
    deadline = time.monotonic() + 10
    while True:
        batch = live.http.get(f"/v1/batches/{batch_id}").json()
        if batch["status"] in statuses:
            return batch
        assert time.monotonic() < deadline, batch
        time.sleep(0.01)


def content(live, file_id: str | None) -> dict[str, dict[str, Any]]:
    if file_id is None:
        return {}
    text = live.http.get(f"/v1/files/{file_id}/content").text
    found = [json.loads(entry) for entry in text.splitlines()]
    return {entry["custom_id"]: entry for entry in found}


@pytest.fixture
def live(tmp_path):
    with serving(tmp_path / "state") as server:
        yield server


def test_the_official_client_runs_a_batch(live):
    with openai.OpenAI(base_url=f"{live.url}/v1", api_key="x", max_retries=0) as client:
        data = "\n".join(json.dumps(line(f"r{n}")) for n in range(3)).encode()
        file = client.files.create(file=("in.jsonl", data), purpose="batch")
        assert (file.filename, file.bytes, file.purpose) == ("in.jsonl", len(data), "batch")
        assert client.files.content(file.id).read() == data
        batch = client.batches.create(
            input_file_id=file.id,
            endpoint="/v1/chat/completions",
            completion_window="24h",
            metadata={"a": "b"},
        )
        wait_for(live, batch.id, "completed")
        done = client.batches.retrieve(batch.id)
        counts = done.request_counts
        assert counts is not None
        assert (counts.total, counts.completed, counts.failed) == (3, 3, 0)
        assert (done.metadata, done.error_file_id) == ({"a": "b"}, None)
        assert done.output_file_id is not None
        results = content(live, done.output_file_id)
        assert [entry.id for entry in client.batches.list()] == [batch.id]
        assert {entry.purpose for entry in client.files.list()} == {"batch", "batch_output"}
        client.files.delete(file.id)
        with pytest.raises(openai.NotFoundError):
            client.files.retrieve(file.id)
    assert list(results) == ["r0", "r1", "r2"]
    answer = results["r1"]["response"]
    assert answer["status_code"] == 200
    assert answer["body"]["choices"][0]["message"]["content"] == TEXT


@pytest.mark.parametrize(
    ("url", "body", "kind"),
    [
        ("/v1/completions", {"prompt": "a", "max_tokens": 4}, "text_completion"),
        ("/v1/embeddings", {"input": "a"}, "list"),
        ("/v1/responses", {"input": "a"}, "response"),
    ],
)
def test_other_endpoints_take_batches_too(live, url, body, kind):
    batch = begin(live, [line("a", url, **body)], url)
    done = wait_for(live, batch["id"], "completed")
    answer = content(live, done["output_file_id"])["a"]["response"]["body"]
    assert answer["object"] == kind


def test_what_is_refused_or_fails_is_in_the_error_file(live):
    fine, wrong = line("fine"), line("wrong", messages=MESSAGES, temperature=9)
    batch = begin(live, [fine, wrong])
    done = wait_for(live, batch["id"], "completed")
    assert done["request_counts"] == {"total": 2, "completed": 1, "failed": 1}
    assert list(content(live, done["output_file_id"])) == ["fine"]
    reply = content(live, done["error_file_id"])["wrong"]["response"]
    assert reply["status_code"] == 400
    assert reply["body"]["error"]["param"] == "temperature"
    live.manager.script = lambda _ids, _arguments: [RequestFailedError("x")]
    done = wait_for(live, begin(live, [fine])["id"], "completed")
    assert content(live, done["error_file_id"])["fine"]["response"]["status_code"] == 500


@pytest.mark.parametrize(
    ("lines", "param"),
    [
        (["{"], None),
        (["[]"], None),
        ([line("a"), line("a")], "custom_id"),
        ([{**line("a"), "custom_id": 1}], "custom_id"),
        ([{**line("a"), "method": "GET"}], "method"),
        ([line("a", "/v1/completions")], "url"),
        ([{**line("a"), "body": "x"}], "body"),
        ([line("a", messages=MESSAGES, stream=True)], "body.stream"),
        ([line(str(n)) for n in range(6)], None),
        ([], None),
    ],
)
def test_a_file_that_is_wrong_fails_as_a_whole(tmp_path, lines, param):
    with serving(tmp_path, max_requests=5) as live:
        batch = wait_for(live, begin(live, lines)["id"], "failed")
        assert batch["errors"]["data"][0]["param"] == param
        assert batch["failed_at"] is not None
        assert live.manager.added == []


def test_a_batch_goes_on_after_a_restart(tmp_path):
    lines = [line(f"r{n}") for n in range(12)]
    with serving(tmp_path, num_at_once=2) as first:
        first.manager.step_seconds = 0.01
        batch = begin(first, lines)
        while (
            first.http.get(f"/v1/batches/{batch['id']}").json()["request_counts"]["completed"] < 3
        ):
            time.sleep(0.005)
    with serving(tmp_path) as second:
        done = wait_for(second, batch["id"], "completed")
        assert done["request_counts"] == {"total": 12, "completed": 12, "failed": 0}
        assert len(content(second, done["output_file_id"])) == 12
        assert len(second.manager.added) <= 9, "what was answered is not asked again"


def test_a_cancelled_batch_keeps_what_it_has(live):
    live.manager.step_seconds = 0.005
    batch = begin(live, [line(f"r{n}") for n in range(200)])
    live.manager.wait_until(lambda: len(live.manager.added) > 10)
    cancelling = live.http.post(f"/v1/batches/{batch['id']}/cancel").json()
    assert cancelling["status"] == "cancelling"
    done = wait_for(live, batch["id"], "cancelled")
    answered = content(live, done["output_file_id"])
    rest = content(live, done["error_file_id"])
    assert len(answered) == done["request_counts"]["completed"]
    assert len(answered) + len(rest) == 200
    assert {entry["error"]["code"] for entry in rest.values()} == {"batch_cancelled"}
    live.manager.wait_until(lambda: live.manager.num_active == 0)
    again = live.http.post(f"/v1/batches/{batch['id']}/cancel").json()
    assert again["status"] == "cancelled"


def test_a_waiting_batch_is_cancelled_before_its_turn(live):
    live.manager.paused.set()
    first, second = begin(live, [line("a")]), begin(live, [line("b")])
    live.http.post(f"/v1/batches/{second['id']}/cancel")
    live.manager.paused.clear()
    wait_for(live, first["id"], "completed")
    done = wait_for(live, second["id"], "cancelled")
    assert done["output_file_id"] is None


def test_a_batch_makes_room_for_clients(live):
    live.manager.paused.set()
    answers: list[Any] = []

    async def main() -> None:
        async with httpx.AsyncClient(base_url=live.url, timeout=20) as http:
            asking = asyncio.create_task(http.post(CHAT, json={"messages": MESSAGES}))
            await asyncio.to_thread(live.manager.wait_until, lambda: live.manager.num_active == 1)
            await asyncio.to_thread(begin, live, [line(f"r{n}") for n in range(20)])
            await asyncio.to_thread(live.manager.wait_until, lambda: live.manager.num_active == 2)
            await asyncio.sleep(0.2)
            assert live.manager.num_active == 2, "one request of a batch at a time beside others"
            live.manager.paused.clear()
            answers.append(await asking)

    asyncio.run(main())
    assert answers[0].status_code == 200


def test_requests_of_a_batch_go_last_where_there_are_priorities(tmp_path):
    settings = Settings(server=ServerSettings(port=0), batches=BatchSettings(folder=str(tmp_path)))

    def prepare(manager):
        object.__setattr__(manager.resolved_config, "scheduler_type", "priority")

    with run_live(settings=settings, prepare=prepare) as live:
        wait_for(live, begin(live, [line("a")])["id"], "completed")
        live.chat()
        first, second = live.manager.added
    assert first.arguments["priority"] > 0
    assert "priority" not in second.arguments


def test_a_full_queue_is_waited_for(live, monkeypatch):
    refusals = iter([QueueFullError(num_waiting=1, retry_after_seconds=0.01)] * 2)
    add = live.manager.add_request

    def sometimes(*arguments: Any, **keywords: Any) -> Any:
        if (refusal := next(refusals, None)) is not None:
            raise refusal
        return add(*arguments, **keywords)

    monkeypatch.setattr(live.manager, "add_request", sometimes)
    monkeypatch.setattr("server.batches.runner.LONGEST_WAIT_SECONDS", 0.01)
    done = wait_for(live, begin(live, [line("a")])["id"], "completed")
    assert done["request_counts"]["completed"] == 1


def test_one_keys_files_and_batches_are_not_anothers(tmp_path):
    keys = KeyRing(clients=parse_keys(["a first-secret", "b second-secret"], origin="test"))
    mine = {"Authorization": "Bearer first-secret"}
    other = {"Authorization": "Bearer second-secret"}
    with serving(tmp_path, keys=keys) as live:
        file_id = upload(live, [line("a")], **mine).json()["id"]
        body = {"input_file_id": file_id, "endpoint": CHAT, "completion_window": "24h"}
        assert live.http.post("/v1/batches", json=body, headers=other).status_code == 404
        batch_id = live.http.post("/v1/batches", json=body, headers=mine).json()["id"]
        for path in (f"/v1/files/{file_id}", f"/v1/batches/{batch_id}"):
            assert live.http.get(path, headers=other).status_code == 404
            assert live.http.get(path, headers=mine).status_code == 200
        for path in ("/v1/files", "/v1/batches"):
            assert live.http.get(path, headers=other).json()["data"] == []
        assert live.http.delete(f"/v1/files/{file_id}", headers=other).status_code == 404


def test_files_have_limits(tmp_path):
    with serving(tmp_path, max_file_bytes=100_000, max_total_bytes=150_000) as live:
        assert upload(live, ["x" * 90_000]).status_code == 200
        response = upload(live, ["x" * 90_000])
        assert (response.status_code, response.json()["error"]["code"]) == (413, "storage_full")
        assert upload(live, ["x" * 300_000]).status_code == 413

        def chunks():
            head = b'--b\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\n'
            yield head
            for _ in range(30):
                yield b"x" * 10_000

        response = live.http.post(
            "/v1/files",
            content=chunks(),
            headers={"Content-Type": "multipart/form-data; boundary=b"},
        )
        assert response.status_code == 413


@pytest.mark.parametrize(
    ("request_fields", "status", "param"),
    [
        ({"json": {}}, 415, None),
        ({"files": {"file": ("a", b"x")}}, 400, "purpose"),
        ({"files": {"file": ("a", b"x")}, "data": {"purpose": "assistants"}}, 400, "purpose"),
        ({"files": {"other": ("a", b"x")}, "data": {"purpose": "batch"}}, 400, "file"),
        (
            {"content": b"junk", "headers": {"Content-Type": "multipart/form-data; boundary=b"}},
            400,
            None,
        ),
        ({"content": b"", "headers": {"Content-Type": "multipart/form-data"}}, 400, None),
    ],
)
def test_a_form_that_is_wrong_is_refused(live, request_fields, status, param):
    response = live.http.post("/v1/files", **request_fields)
    assert response.status_code == status
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert param is None or error["param"] == param


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"endpoint": "/v1/nothing"}, "endpoint"),
        ({"completion_window": "1h"}, "completion_window"),
        ({"input_file_id": "file-x"}, "input_file_id"),
        ({"output_expires_after": {"seconds": 1}}, "output_expires_after"),
    ],
)
def test_a_batch_that_is_wrong_is_refused(live, fields, param):
    file_id = upload(live, [line("a")]).json()["id"]
    body = {"input_file_id": file_id, "endpoint": CHAT, "completion_window": "24h", **fields}
    response = live.http.post("/v1/batches", json=body)
    assert response.status_code in (400, 404)
    assert response.json()["error"]["param"] == param


def test_lists_come_in_pages(live):
    ids = [upload(live, [line("a")]).json()["id"] for _ in range(3)]
    page = live.http.get("/v1/files", params={"limit": 2}).json()
    assert [file["id"] for file in page["data"]] == ids[:0:-1]
    assert page["has_more"] is True
    rest = live.http.get("/v1/files", params={"after": page["last_id"]}).json()
    assert [file["id"] for file in rest["data"]] == ids[:1]
    response = live.http.get("/v1/files", params={"after": "nothing"})
    assert response.status_code == 400


def test_a_server_without_a_folder_says_so():
    with run_live() as live:
        for response in (live.http.get("/v1/files"), live.http.post("/v1/batches", json={})):
            assert response.status_code == 400
            assert response.json()["error"]["code"] == "unsupported_endpoint"


def test_nothing_is_left_open(tmp_path):
    with serving(tmp_path) as live:
        assert isinstance(live, LiveServer)
        wait_for(live, begin(live, [line("a")])["id"], "completed")
    assert not list(tmp_path.glob("*.sqlite3-wal"))
