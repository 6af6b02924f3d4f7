"""What becomes of the requests in a batch: whose they are, and what goes wrong."""

import asyncio
import json
import sqlite3
import time
from typing import Any

import pytest

from engine import EngineStatistics, QueueFullError, RequestFailedError
from server.batches.database import Database
from server.batches.records import BatchRecords
from server.settings import BatchSettings, ServerSettings, Settings
from tests.server.batch_calls import (
    CHAT,
    KEYS,
    MESSAGES,
    OF_A,
    OF_B,
    begin,
    content,
    line,
    request_for,
    serving,
    upload,
    wait_for,
)
from tests.server.live import run_live


@pytest.fixture
def live(tmp_path):
    with serving(tmp_path / "state") as server:
        yield server


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


def test_what_never_fits_into_the_queue_is_in_the_error_file(tmp_path):
    lines = [line("fine"), line("many", messages=MESSAGES, n=3, temperature=1)]
    with serving(tmp_path, queue_size=2) as live:
        done = wait_for(live, begin(live, lines)["id"], "completed")
        assert list(content(live, done["output_file_id"])) == ["fine"]
        reply = content(live, done["error_file_id"])["many"]["response"]
        assert (reply["status_code"], reply["body"]["error"]["param"]) == (400, "n")
        assert live.state.admission.num_preparing == 0


def test_a_line_that_fails_unexpectedly_fails_alone(live, monkeypatch):
    render = live.state.encoder.render_chat
    causes = iter([RuntimeError("nobody expects it")])

    async def fails_once(body: Any) -> Any:
        if (cause := next(causes, None)) is not None:
            raise cause
        return await render(body)

    monkeypatch.setattr(live.state.encoder, "render_chat", fails_once)
    done = wait_for(live, begin(live, [line(f"r{n}") for n in range(3)])["id"], "completed")
    assert done["request_counts"] == {"total": 3, "completed": 2, "failed": 1}
    [failed] = content(live, done["error_file_id"]).values()
    assert failed["response"]["status_code"] == 500
    assert "nobody" not in json.dumps(failed)


@pytest.mark.parametrize("name", ["next_unfinished", "add_result", "lines_done"])
def test_a_folder_that_cannot_be_used_for_a_while_loses_nothing(live, monkeypatch, name):
    monkeypatch.setattr("server.batches.runner.RETRY_SECONDS", 0.01)
    records = live.state.batches.records
    real = getattr(records, name)
    causes = iter([sqlite3.OperationalError("database or disk is full")] * 2)

    async def fails_twice(*arguments: Any) -> Any:
        if (cause := next(causes, None)) is not None:
            raise cause
        return await real(*arguments)

    monkeypatch.setattr(records, name, fails_twice)
    done = wait_for(live, begin(live, [line("a"), line("b")])["id"], "completed", "failed")
    assert done["request_counts"] == {"total": 2, "completed": 2, "failed": 0}
    wait_for(live, begin(live, [line("c")])["id"], "completed")


def test_a_line_that_is_lost_with_the_engine_fails_and_the_rest_wait_for_another(
    tmp_path, monkeypatch
):
    stays = ServerSettings(port=0, engine_failure="stay", hang_timeout_seconds=0.2)
    with serving(tmp_path, server=stays, num_at_once=1) as live:
        live.manager.paused.set()
        hangs = EngineStatistics(num_live=1, num_steps=7)
        batch = begin(live, [line(f"r{n}") for n in range(3)])
        live.manager.wait_until(lambda: len(live.manager.added) == 1)
        with monkeypatch.context() as patch:
            patch.setattr(live.manager, "statistics", lambda: hangs)
            live.manager.wait_until(lambda: live.state.failure == "hung")
            url = f"/v1/batches/{batch['id']}"
            live.manager.wait_until(
                lambda: live.http.get(url).json()["request_counts"]["failed"] == 1
            )
            assert live.http.get(url).json()["status"] == "in_progress"
            assert len(live.manager.added) == 1, "nothing is asked of an engine that hangs"
        # Its engine goes on.
        live.manager.paused.clear()
        done = wait_for(live, batch["id"], "completed")
        assert done["request_counts"] == {"total": 3, "completed": 2, "failed": 1}
        [lost] = content(live, done["error_file_id"]).values()
        assert lost["response"]["body"]["error"]["code"] == "engine_dead"


def _cannot_insert(*_: object) -> None:
    raise sqlite3.OperationalError("database or disk is full")


def test_a_file_that_cannot_be_entered_is_not_kept(live, monkeypatch):
    monkeypatch.setattr("server.batches.runner.RETRY_SECONDS", 0.01)
    files = live.state.batches.files
    write = files.write_lines
    causes = iter([OSError("no space left on device")] * 2)

    def fails_twice_at_the_second(connection: Any, owner: str, name: str, lines: Any) -> Any:
        if name.endswith("_error.jsonl") and (cause := next(causes, None)) is not None:
            raise cause
        return write(connection, owner, name, lines)

    monkeypatch.setattr(files, "write_lines", fails_twice_at_the_second)
    wrong = line("wrong", messages=MESSAGES, temperature=9)
    done = wait_for(live, begin(live, [line("fine"), wrong])["id"], "completed")
    entered = {done["input_file_id"], done["output_file_id"], done["error_file_id"]}
    kept = files.path_of("x").parent
    assert {path.name for path in kept.iterdir()} == entered
    with monkeypatch.context() as patch:
        patch.setattr("server.batches.files._insert", _cannot_insert)
        assert upload(live, [line("a")]).status_code == 500
    assert {path.name for path in kept.iterdir()} == entered


def test_what_a_killed_process_left_without_an_entry_is_removed(tmp_path):
    with serving(tmp_path) as first:
        file_id = upload(first, [line("a")]).json()["id"]
    (tmp_path / "files" / "file-half").write_bytes(b"{")
    with serving(tmp_path) as second:
        assert [path.name for path in (tmp_path / "files").iterdir()] == [file_id]
        assert second.http.get(f"/v1/files/{file_id}/content").status_code == 200


async def test_a_batch_that_ends_while_it_is_cancelled_has_one_end(tmp_path):
    database = Database(tmp_path)
    await database.open()
    records = BatchRecords(database)
    try:
        batch = await records.add("", request_for("f"))
        ending = records.update(batch.id, status="completed")
        cancelled, _ = await asyncio.gather(records.cancel("", batch.id), ending)
        assert cancelled.status == "cancelling"
        assert (await records.get("", batch.id)).status == "completed"
        assert (await records.cancel("", batch.id)).status == "completed"
    finally:
        await database.close()


def test_a_batch_that_is_cancelled_as_it_begins_does_not_begin(live, monkeypatch):
    records = live.state.batches.records
    find = records.next_unfinished

    async def find_and_cancel() -> Any:
        owned = await find()
        if owned is not None:
            await records.cancel("", owned.batch.id)
        return owned

    monkeypatch.setattr(records, "next_unfinished", find_and_cancel)
    done = wait_for(live, begin(live, [line("a")])["id"], "cancelled", "completed")
    assert done["status"] == "cancelled"
    assert live.manager.added == []
    assert list(content(live, done["error_file_id"])) == ["a"]


def test_a_line_is_its_owners_request(tmp_path):
    with serving(tmp_path, keys=KEYS) as live:
        for headers in (OF_A, OF_B):
            batch = begin(live, [line("a")], **headers)
            wait_for(live, batch["id"], "completed", **headers)
            live.http.post(CHAT, json={"messages": MESSAGES}, headers=headers)
        salts = [request.arguments["salt"] for request in live.manager.added]
    assert salts[0] == salts[1] != salts[2] == salts[3]


def test_a_response_of_a_batch_is_kept_if_it_is_asked_for_and_for_its_owner(tmp_path):
    url = "/v1/responses"
    lines = [line("plain", url, input="a"), line("kept", url, input="a", store=True)]
    with serving(tmp_path, keys=KEYS) as live:
        batch = begin(live, lines, url, **OF_A)
        done = wait_for(live, batch["id"], "completed", **OF_A)
        answers = content(live, done["output_file_id"], **OF_A)
        ids = {name: answers[name]["response"]["body"]["id"] for name in ("plain", "kept")}
        assert live.http.get(f"{url}/{ids['plain']}", headers=OF_A).status_code == 404
        assert live.http.get(f"{url}/{ids['kept']}", headers=OF_A).status_code == 200
        assert live.http.get(f"{url}/{ids['kept']}", headers=OF_B).status_code == 404


def test_a_key_that_was_taken_away_has_no_more_answered(tmp_path):
    with serving(tmp_path, keys=KEYS) as live:
        file_id = upload(live, [line("a")], **OF_A).json()["id"]
        batches = live.state.batches
        batch = asyncio.run(batches.records.add("gone", request_for(file_id)))
        wait_for(live, begin(live, [line("b")], **OF_A)["id"], "completed", **OF_A)
        done = asyncio.run(batches.records.get("gone", batch.id))
        assert (done.status, len(live.manager.added)) == ("completed", 1)
        reply = json.loads(batches.files.path_of(done.error_file_id).read_text())["response"]
    assert reply["status_code"] == 401
    assert reply["body"]["error"]["code"] == "invalid_api_key"
