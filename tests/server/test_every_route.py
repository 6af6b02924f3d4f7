"""Manners that all routes have; a route that this file doesn't know fails it."""

import json
from dataclasses import dataclass
from enum import Enum
from typing import Any

import pytest

from api_schemas.endpoints import REQUEST_BODIES
from server.admission import Admission
from server.keys import KeyRing, parse_keys
from server.request_record import RequestRecord
from server.settings import BatchSettings, ModelSettings, ServerSettings, Settings
from tests.server.live import LiveServer, run_live

MAX_BODY_BYTES = 4096
KEY = "a-secret-of-tests"
FOUR_KEYS = {"message", "type", "param", "code"}


class Body(Enum):
    """What a route reads."""

    NONE = "none"
    JSON = "json"
    FORM = "form"


@dataclass(frozen=True)
class Policy:
    """How a route is to behave.

    Attributes:
        body: What it reads.
        public: Whether it needs no key.
        generates: Whether it is for an answer of the model.
    """

    body: Body = Body.NONE
    public: bool = False
    generates: bool = False


# These say what the server's condition is.
CONDITIONS = {"/health", "/ping", "/ready"}
PUBLIC = Policy(public=True)
PLAIN = Policy()
JSON = Policy(Body.JSON)
GENERATES = Policy(Body.JSON, generates=True)

POLICIES: dict[tuple[str, str], Policy] = {
    ("GET", "/"): PLAIN,
    ("GET", "/health"): PUBLIC,
    ("GET", "/metrics"): PLAIN,
    ("GET", "/live"): PUBLIC,
    ("GET", "/ping"): PUBLIC,
    ("GET", "/ready"): PUBLIC,
    ("GET", "/version"): PLAIN,
    ("GET", "/v1/batches"): PLAIN,
    ("POST", "/v1/batches"): JSON,
    ("GET", "/v1/batches/{batch_id}"): PLAIN,
    ("POST", "/v1/batches/{batch_id}/cancel"): PLAIN,
    ("POST", "/v1/chat/completions"): GENERATES,
    ("POST", "/v1/chat/completions/render"): JSON,
    ("POST", "/v1/completions"): GENERATES,
    ("POST", "/v1/detokenize"): JSON,
    ("POST", "/v1/embeddings"): GENERATES,
    ("GET", "/v1/files"): PLAIN,
    ("POST", "/v1/files"): Policy(Body.FORM),
    ("GET", "/v1/files/{file_id}"): PLAIN,
    ("DELETE", "/v1/files/{file_id}"): PLAIN,
    ("GET", "/v1/files/{file_id}/content"): PLAIN,
    ("POST", "/v1/messages"): GENERATES,
    ("POST", "/v1/messages/count_tokens"): JSON,
    ("GET", "/v1/models"): PLAIN,
    ("GET", "/v1/models/{model_id}"): PLAIN,
    ("POST", "/v1/requests/{request_id}/cancel"): PLAIN,
    ("POST", "/v1/responses"): GENERATES,
    ("POST", "/v1/responses/input_tokens"): JSON,
    ("GET", "/v1/responses/{response_id}"): PLAIN,
    ("DELETE", "/v1/responses/{response_id}"): PLAIN,
    ("POST", "/v1/responses/{response_id}/cancel"): PLAIN,
    ("GET", "/v1/responses/{response_id}/input_items"): PLAIN,
    ("POST", "/v1/tokenize"): JSON,
    ("GET", "/v1/tokenizer_info"): PLAIN,
}


def is_spelled_by(path: str, template: str) -> bool:
    """Whether a path is one of those that a template stands for; a parameter holds no slash."""
    parts, others = path.split("/"), template.split("/")
    return len(parts) == len(others) and all(
        part == other or other.startswith("{") for part, other in zip(parts, others, strict=True)
    )


METHODS_OF = {
    path: {method for method, other in POLICIES if is_spelled_by(path, other)}
    for _, path in POLICIES
}
ROUTES = sorted(POLICIES)
READERS = [route for route in ROUTES if POLICIES[route].body is Body.JSON]
GENERATORS = [route for route in ROUTES if POLICIES[route].generates]


def name_of(route: tuple[str, str]) -> str:
    return " ".join(route)


every_route = pytest.mark.parametrize("route", ROUTES, ids=name_of)
every_path = pytest.mark.parametrize("path", sorted(METHODS_OF))
every_reader = pytest.mark.parametrize("route", READERS, ids=name_of)


def fill(path: str) -> str:
    """A path with something in the place of its parameters."""
    return "/".join("x" if part.startswith("{") else part for part in path.split("/"))


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    settings = Settings(
        model=ModelSettings(served_names=("tiny",)),
        server=ServerSettings(
            port=0, max_body_bytes=MAX_BODY_BYTES, allow_origins=("http://page",)
        ),
        batches=BatchSettings(
            folder=str(tmp_path_factory.mktemp("state")), max_file_bytes=MAX_BODY_BYTES
        ),
        keys=KeyRing(clients=parse_keys([KEY], origin="test")),
    )
    with run_live(settings=settings) as live:
        live.http.headers["Authorization"] = f"Bearer {KEY}"
        live.reset()
        yield live


def check_error(response, status: int) -> None:
    """Every error is in the form that the route's clients read."""
    assert response.status_code == status, response.text
    assert response.headers["Content-Type"] == "application/json"
    assert response.content.endswith(b"\n")
    assert len(response.content) < 4096
    body = response.json()
    if "/messages" in response.request.url.path:
        assert body["type"] == "error"
        assert set(body["error"]) == {"type", "message"}
        return
    assert set(body) == {"error"}
    assert set(body["error"]) == FOUR_KEYS
    assert isinstance(body["error"]["code"], str)


def send(live: LiveServer, route: tuple[str, str], **fields):
    method, path = route
    if POLICIES[route].body is Body.JSON and not {"json", "content"}.intersection(fields):
        fields["json"] = {}
    return live.http.request(method, fill(path), follow_redirects=False, **fields)


def test_every_route_has_a_policy(server):
    document = server.http.get("/openapi.json").json()
    found = {(method.upper(), path) for path, item in document["paths"].items() for method in item}
    assert found == set(POLICIES)


def test_every_body_has_its_fields_in_the_compatibility_tables(server):
    """The tables, and the test that no field is missing in them, go by this list."""
    listed = {tuple(route.split(" ")) for route, _ in REQUEST_BODIES}
    assert listed == set(READERS)
    paths = server.http.get("/openapi.json").json()["paths"]
    for method, path in READERS:
        assert "application/json" in paths[path][method.lower()]["requestBody"]["content"]


@every_path
def test_methods_that_a_path_does_not_take_are_a_405(server, path):
    allowed = METHODS_OF[path]
    named = {"OPTIONS", *allowed, *({"HEAD"} if "GET" in allowed else ())}
    for method in {"GET", "POST", "PUT", "PATCH", "DELETE"} - allowed:
        response = server.http.request(method, fill(path))
        check_error(response, 405)
        assert set(response.headers["Allow"].split(", ")) == named
    response = server.http.options(fill(path))
    assert response.status_code == 204
    assert set(response.headers["Allow"].split(", ")) == named


@every_path
def test_head_is_get_without_a_body(server, path):
    if "GET" in METHODS_OF[path]:
        got = server.http.get(fill(path))
        head = server.http.head(fill(path))
        assert (head.status_code, head.content) == (got.status_code, b"")
        assert head.headers["Content-Type"] == got.headers["Content-Type"]


@every_route
def test_slashes_and_the_prefix_are_served_in_place(server, route):
    method, path = route
    expected = send(server, route).status_code
    spellings = [f"{fill(path)}/", f"/{fill(path)}", fill(path).replace("/", "//")]
    if path.startswith("/v1/"):
        spellings.append(fill(path).removeprefix("/v1"))
    elif path != "/metrics":  # that is for a collector, and no part of the API
        spellings.append(f"/v1{fill(path)}")
    for spelling in spellings:
        body: dict[str, Any] = {"json": {}} if POLICIES[route].body is Body.JSON else {}
        # The whole address, since the client would take // for a host.
        response = server.http.request(
            method, f"{server.url}{spelling}", follow_redirects=False, **body
        )
        assert response.status_code == expected, spelling


@every_route
def test_an_id_is_on_every_answer(server, route):
    response = send(server, route, headers={"X-Request-Id": "mine"})
    assert response.headers["X-Request-Id"] == "mine"


@every_route
def test_a_key_is_needed_unless_the_route_is_public(server, route):
    response = send(server, route, headers={"Authorization": "Bearer wrong-secret"})
    if POLICIES[route].public:
        assert response.status_code == 200
        return
    check_error(response, 401)
    assert response.headers["WWW-Authenticate"]
    assert send(server, route).status_code != 401


@every_route
def test_pages_of_an_origin_may_ask_and_read_errors(server, route):
    method, path = route
    preflight = server.http.options(
        fill(path),
        headers={
            "Origin": "http://page",
            "Access-Control-Request-Method": method,
            "Access-Control-Request-Headers": "authorization,content-type,x-stainless-lang",
            "Authorization": "",
        },
    )
    assert preflight.status_code == 200
    assert preflight.headers["Access-Control-Allow-Origin"] == "http://page"
    assert method in preflight.headers["Access-Control-Allow-Methods"]
    assert "authorization" in preflight.headers["Access-Control-Allow-Headers"].lower()
    for key in (f"Bearer {KEY}", "Bearer wrong"):
        headers = {"Origin": "http://page", "Authorization": key}
        response = send(server, route, headers=headers)
        assert response.headers["Access-Control-Allow-Origin"] == "http://page"
        assert "X-Request-Id" in response.headers["Access-Control-Expose-Headers"]


@every_reader
@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"null", b'"a"', b'{"a": NaN}', b'{"a": "\\ud800"}', b"\xff", b"[" * 2000],
)
def test_a_body_that_is_no_object_is_a_400(server, route, content):
    check_error(send(server, route, content=content), 400)


@every_reader
def test_a_body_that_lacks_everything_is_a_400(server, route):
    check_error(send(server, route, json={}), 400)


@every_reader
def test_fields_of_another_type_are_a_400_that_names_one(server, route):
    values: tuple[Any, ...] = (1, True, {"a": 1}, [[1]], [{}])
    for value in values:
        names = ("prompt", "messages", "input", "tokens", "input_file_id", "model", "max_tokens")
        response = send(server, route, json=dict.fromkeys(names, value))
        assert response.status_code in (400, 404), response.text
        check_error(response, response.status_code)


@every_reader
def test_a_body_that_is_too_large_is_a_413(server, route):
    check_error(send(server, route, content=b'{"a": "%s"}' % (b"x" * MAX_BODY_BYTES)), 413)
    chunks = (b" " * 1000 for _ in range(MAX_BODY_BYTES // 1000 + 2))
    check_error(send(server, route, content=chunks), 413)


@every_reader
def test_json_is_read_under_any_content_type(server, route):
    plain = send(server, route, json={"model": "nope"})
    for kind in ("text/plain", "application/x-www-form-urlencoded", "nonsense"):
        response = send(server, route, content=b'{"model": "nope"}', headers={"Content-Type": kind})
        assert response.json()["error"] == plain.json()["error"]


@every_route
def test_a_drain_refuses_work_and_answers_the_rest(server, route):
    server.state.draining = True
    try:
        response = send(server, route)
    finally:
        server.state.draining = False
    # What takes work away is never refused.
    if route[0] == "POST" and not route[1].endswith("/cancel"):
        check_error(response, 529 if "/messages" in route[1] else 503)
        assert int(response.headers["Retry-After"]) >= 1
    elif route[1] not in CONDITIONS:
        assert response.status_code == send(server, route).status_code


class Untouched:
    """Stands for a part of the server that a refusal must not have reached."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"{name} was used before the request was admitted")


@pytest.mark.parametrize("path", [path for _, path in GENERATORS])
def test_a_full_queue_refuses_before_any_work(server, monkeypatch, path):
    body = {**STREAMS, "/v1/embeddings": {"input": "a"}}[path]
    admission = Admission(server.manager, 1, ())
    monkeypatch.setattr(server.state, "admission", admission)
    assert server.http.post(path, json=body).status_code == 200
    assert admission.num_preparing == 0
    admission.admit(RequestRecord("", "POST", "/"), 1)
    monkeypatch.setattr(server.state, "encoder", Untouched())
    response = server.http.post(path, json=body)
    check_error(response, 429)
    assert int(response.headers["Retry-After"]) >= 1


STREAMS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "a"}]},
    "/v1/completions": {"prompt": "a"},
    "/v1/messages": {"messages": [{"role": "user", "content": "a"}], "max_tokens": 9},
    "/v1/responses": {"input": "a"},
}


@pytest.mark.parametrize("path", STREAMS)
@pytest.mark.parametrize("headers", [{}, {"Accept-Encoding": "gzip"}])
def test_a_stream_is_not_held_back_on_its_way(server, path, headers):
    body = {**STREAMS[path], "stream": True}
    response = server.http.post(path, json=body, headers=headers)
    assert response.headers["Content-Type"].startswith("text/event-stream")
    assert response.headers["Cache-Control"] == "no-cache"
    assert response.headers["X-Accel-Buffering"] == "no"
    assert "Content-Encoding" not in response.headers
    assert "Content-Length" not in response.headers
    for line in response.text.splitlines():
        assert not line or line.startswith(("data: ", "event: "))
        if line.startswith("data: {"):
            json.loads(line[6:])


def test_every_generating_route_but_embeddings_streams():
    assert set(STREAMS) == {path for _, path in GENERATORS} - {"/v1/embeddings"}


@pytest.mark.parametrize(
    "path", ["/nothing", "/v1/nothing", "/v1/chat", "/v2/models", "/v1/filesx"]
)
def test_a_path_that_is_not_there_is_a_404(server, path):
    for method in ("GET", "POST", "DELETE", "OPTIONS"):
        check_error(server.http.request(method, path), 404)
