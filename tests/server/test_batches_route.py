"""Files and batches over a scripted engine."""

import asyncio
import json
from typing import Any

import httpx
import openai
import pytest

from tests.server.batch_calls import (
    CHAT,
    KEYS,
    MESSAGES,
    OF_A,
    OF_B,
    begin,
    content,
    line,
    serving,
    upload,
    wait_for,
)
from tests.server.live import TEXT, LiveServer, run_live


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


def test_one_keys_files_and_batches_are_not_anothers(tmp_path):
    mine, other = OF_A, OF_B
    with serving(tmp_path, keys=KEYS) as live:
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
