"""What clients see when the engine refuses, breaks on one request, or dies."""

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import openai
import pytest

from engine.batch import ScheduledBatch
from engine.restarts import RestartBudget
from tests.engine.control import ControlledRunner, control, loop_of
from tests.engine.threads import Call, until
from tests.integration.engine_server import (
    Connection,
    EngineServer,
    joined_texts,
    run_clients,
    run_engine_server,
)

POISON = "~"
LONG = {"max_tokens": 40, "ignore_eos": True}


@contextmanager
def controlled_server(tiny_model, **fields: Any) -> Iterator[tuple[EngineServer, ControlledRunner]]:
    """Serve with a runner that the test holds and breaks; it runs on in the end."""
    runners: list[ControlledRunner] = []
    with ExitStack() as stack:
        server = stack.enter_context(
            run_engine_server(
                tiny_model, prepare=lambda manager: runners.append(control(manager)), **fields
            )
        )
        stack.callback(runners[0].go)
        yield server, runners[0]


def stream_body(prompt: str) -> dict[str, Any]:
    return {"prompt": prompt, "temperature": 0, "stream": True, **LONG}


def break_in_the_middle(
    server: EngineServer, runner: ControlledRunner, num_streams: int
) -> list[list[str]]:
    """Open streams and, when some flow, let the scheduler raise; return the streams' events."""

    def break_scheduler() -> None:
        def broken() -> ScheduledBatch:
            raise MemoryError("no memory left for the test")

        # The first step may have begun before all had come; the second is with all that fit.
        until(lambda: server.manager.statistics().num_running >= min(8, num_streams))
        loop_of(server.manager).scheduler.schedule_batch = broken  # type: ignore[method-assign]
        runner.go()

    async def streams() -> list[list[str]]:
        open_ones = [
            await Connection.send(server.port, "/v1/completions", stream_body(f"stream {n}"))
            for n in range(num_streams)
        ]
        await asyncio.to_thread(until, lambda: server.state.client.num_open >= num_streams)
        await asyncio.to_thread(runner.allow, 3)
        begun = await open_ones[0].events(1)
        await asyncio.to_thread(break_scheduler)
        ends = await asyncio.gather(*(one.events() for one in open_ones))
        for one in open_ones:
            await one.close()
        ends[0] = begun + ends[0]
        return list(ends)

    return run_clients(streams())


def error_code(events: list[str]) -> str | None:
    """Return the code of the error that ended a stream, None if it ended well."""
    *_, last, done = events
    assert done == "[DONE]"
    assert "no memory" not in last, "internals leave the server"
    error = json.loads(last).get("error")
    return error and str(error["code"])


def test_a_dead_engine_ends_every_answer_and_takes_no_more(tiny_model):
    with controlled_server(tiny_model) as (server, runner):
        loop_of(server.manager).restarts = RestartBudget(max_restarts=0)
        runner.hold()
        events = break_in_the_middle(server, runner, 24)
        assert json.loads(events[0][0])["choices"][0]["text"]
        assert {error_code(one) for one in events} == {"engine_dead"}
        until(lambda: server.state.failure is not None)
        for path, status in {
            "/health": 503,
            "/ready": 503,
            "/live": 503,
            "/v1/models": 200,
        }.items():
            assert server.http.get(path).status_code == status
        assert server.http.get("/health").json() == {"status": "dead"}
        for stream in (False, True):
            refused = server.complete("new", stream=stream)
            assert refused.status_code == 503
            assert refused.json()["error"]["code"] == "engine_dead"
            assert int(refused.headers["retry-after"]) > 0
        until(lambda: server.state.num_active == server.state.client.num_open == 0)


def test_whole_answers_of_a_dead_engine_are_503(tiny_model):
    with controlled_server(tiny_model) as (server, runner):
        loop_of(server.manager).restarts = RestartBudget(max_restarts=0)
        runner.hold()
        whole = [Call(partial(server.complete, f"{number}", **LONG)) for number in range(3)]
        until(lambda: server.state.client.num_open == 3)
        break_in_the_middle(server, runner, 1)
        for answer in (call.outcome() for call in whole):
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "engine_dead")


def test_a_broken_step_ends_what_it_computed_and_the_rest_goes_on(tiny_model):
    with controlled_server(tiny_model, max_requests_per_batch=8) as (server, runner):
        runner.hold()
        events = break_in_the_middle(server, runner, 24)
        codes = [error_code(one) for one in events]
        assert codes.count("request_failed") == 8
        assert codes.count(None) == 16
        assert error_code(events[0]) == "request_failed"
        assert server.http.get("/health").status_code == 200
        assert server.complete("and on").status_code == 200
        server.wait_until_idle()


def test_a_poisoned_request_fails_alone(tiny_model):
    prompts = [f"neighbour {number} " * (1 + number % 5) for number in range(8)]
    with controlled_server(tiny_model) as (server, runner):
        alone = [server.complete(prompt, **LONG).json()["choices"] for prompt in prompts]
        runner.poison = server.tokenizer.encode(POISON, add_special_tokens=False)[0]
        runner.hold()
        neighbours = [Call(partial(server.complete, prompt, **LONG)) for prompt in prompts]
        culprit = Call(partial(server.complete, f"this one breaks {POISON}", **LONG))
        streamed = Call(partial(server.complete, f"{POISON} and so does this", stream=True, **LONG))
        until(lambda: server.manager.statistics().num_live == 10)
        runner.go()
        assert [call.outcome().json()["choices"] for call in neighbours] == alone
        answer = culprit.outcome()
        assert (answer.status_code, answer.json()["error"]["code"]) == (500, "request_failed")
        assert "poison" not in answer.text
        *_, error, done = [line for line in streamed.outcome().text.split("\n\n") if line]
        assert (json.loads(error[6:])["error"]["code"], done) == ("request_failed", "data: [DONE]")
        server.wait_until_idle()
        assert server.http.get("/health").status_code == 200
        runner.poison = None
        assert server.complete(f"this one breaks {POISON}").status_code == 200


def test_a_full_queue_is_refused_at_once_and_the_client_comes_again(tiny_model):
    fields = {"max_queue_size": 2, "max_requests_per_batch": 1}
    with controlled_server(tiny_model, **fields) as (server, runner):
        runner.hold()
        running = Call(server.complete, "runs")
        until(lambda: server.manager.statistics().num_running == 1)
        queued = [Call(server.complete, f"waits {number}") for number in range(2)]
        until(lambda: server.manager.statistics().num_live == 3)
        for stream in (False, True):
            refused = server.complete("too many", stream=stream)
            assert refused.status_code == 429
            assert refused.json()["error"]["code"] == "rate_limit_exceeded"
            assert 1 <= int(refused.headers["retry-after"]) <= 60
        url = f"{server.url}/v1"
        with (
            openai.OpenAI(base_url=url, api_key="x", max_retries=0) as impatient,
            pytest.raises(openai.RateLimitError),
        ):
            impatient.completions.create(model="tiny", prompt="too many")
        with openai.OpenAI(base_url=url, api_key="x", max_retries=4) as patient:
            retried = Call(partial(patient.completions.create, model="tiny", prompt="comes again"))
            threading.Timer(0.3, runner.go).start()
            assert retried.outcome().choices[0].finish_reason in ("stop", "length")
        assert {call.outcome().status_code for call in (running, *queued)} == {200}
        server.wait_until_idle()


def test_choices_that_do_not_fit_the_queue_leave_none_behind(tiny_model):
    fields = {"max_queue_size": 2, "max_requests_per_batch": 1}
    with controlled_server(tiny_model, **fields) as (server, runner):
        runner.hold()
        running = Call(server.complete, "runs")
        until(lambda: server.manager.statistics().num_running == 1)
        waiting = Call(server.complete, "waits")
        until(lambda: server.manager.statistics().num_live == 2)
        assert server.complete("two choices", n=2, temperature=1).status_code == 429
        never = server.complete("four choices", n=4, temperature=1)
        assert (never.status_code, never.json()["error"]["param"]) == (400, "n")
        runner.go()
        assert running.outcome().status_code == waiting.outcome().status_code == 200
        server.wait_until_idle()


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_that_is_too_long_names_both_numbers(server, stream):
    limit = server.manager.resolved_config.max_model_tokens
    prompt = [5] * (limit + 88)
    refused = server.complete(prompt, stream=stream)
    error = refused.json()["error"]
    assert (refused.status_code, error["code"]) == (400, "context_length_exceeded")
    assert str(limit) in error["message"]
    assert str(len(prompt)) in error["message"]
    text = server.complete("x" * 10_000, stream=stream)
    assert (text.status_code, text.json()["error"]["code"]) == (400, "context_length_exceeded")


@pytest.mark.parametrize(
    "fields",
    [{"n": 10**21}, {"logit_bias": {"9999999": 1}}, {"stop_token_ids": [9999999]}],
    ids=str,
)
def test_values_outside_what_is_served_have_a_code(server, fields):
    """Some are refused by the limits of the server and some by the engine."""
    refused = server.complete("hi", **fields)
    error = refused.json()["error"]
    assert (refused.status_code, error["param"]) == (400, next(iter(fields)))
    assert error["code"] == "invalid_value"


def test_an_answer_ends_at_the_models_last_position(server):
    limit = server.manager.resolved_config.max_model_tokens
    for stream in (False, True):
        body = {"prompt": [5] * (limit - 3), "temperature": 0, "ignore_eos": True}
        options = {"stream_options": {"include_usage": True}} if stream else {}
        answer = server.http.post("/v1/completions", json={**body, "stream": stream, **options})
        assert answer.status_code == 200
        if not stream:
            whole = answer.json()
            assert whole["choices"][0]["finish_reason"] == "length"
            assert whole["usage"]["total_tokens"] == limit
        else:
            *frames, usage, done = [line[6:] for line in answer.text.split("\n\n") if line]
            assert joined_texts([*frames, done]) == {0: whole["choices"][0]["text"]}
            assert json.loads(usage)["usage"] == whole["usage"] | {
                "prompt_tokens_details": json.loads(usage)["usage"]["prompt_tokens_details"]
            }
