"""Who gets in: every path is closed without a key, however it is spelled (A5, A6, A7)."""

from collections.abc import Iterator

import openai
import pytest

from server.keys import KeyRing, parse_keys
from server.settings import ModelSettings, ServerSettings, Settings
from tests.reliability.raw_http import exchange, request
from tests.server.live import LiveServer, run_live

CLIENT, ADMIN = "client-key-of-the-test", "admin-key-of-the-test"
RING = KeyRing(
    clients=parse_keys([f"anna {CLIENT}", "bob another-client-key"], origin="test"),
    admins=parse_keys([f"root {ADMIN}"], origin="test"),
)
PUBLIC = {"/health", "/live", "/ping", "/ready"}
# Nothing else may be open; a route that is added here needs a reason.
PUBLIC |= {f"/v1{path}" for path in PUBLIC}


@pytest.fixture(scope="module", params=["httptools", "h11"])
def guarded(request) -> Iterator[LiveServer]:
    settings = Settings(
        model=ModelSettings(served_names=("tiny",)),
        server=ServerSettings(port=0, http_parser=request.param, allow_origins=("http://a",)),
        keys=RING,
    )
    with run_live(settings=settings) as server:
        yield server


def all_paths(server: LiveServer) -> set[str]:
    """Every path that some route serves, with something in the place of its variables."""
    found: set[str] = set()
    waiting = list(server.server.config.app.routes)  # type: ignore[union-attr]
    while waiting:
        route = waiting.pop()
        nested = getattr(route, "routes", None) or getattr(
            getattr(route, "original_router", None), "routes", None
        )
        if nested:
            waiting.extend(nested)
        if path := getattr(route, "path", None):
            found.add(path.replace("{model_id:path}", "a/b").replace("{", "").replace("}", ""))
    return found


def test_every_route_is_closed_without_a_key(guarded):
    paths = all_paths(guarded)
    assert {"/health", "/docs", "/openapi.json"} <= paths
    for path in paths | {f"/v1{path}" for path in paths} | {"/nothing", "/admin/nothing"}:
        for method in ("GET", "POST", "HEAD", "PUT", "DELETE", "PATCH"):
            status = guarded.http.request(method, path).status_code
            if path in PUBLIC:
                assert status in (200, 405), (method, path)
            else:
                assert status == 401, (method, path)


@pytest.mark.parametrize(
    "headers",
    [
        {"Authorization": f"Bearer {CLIENT}"},
        {"Authorization": f"bearer  {CLIENT}"},
        {"x-api-key": CLIENT},
        {"X-API-Key": "another-client-key"},
        {"x-api-key": ADMIN},
    ],
)
def test_a_key_opens(guarded, headers):
    assert guarded.http.get("/v1/models", headers=headers).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": CLIENT},
        {"Authorization": f"Basic {CLIENT}"},
        {"Authorization": "Bearer"},
        {"Authorization": f"Bearer {CLIENT}x"},
        {"Authorization": f"Bearer {CLIENT[:-1]}"},
        {"Authorization": f"Bearer wrong, Bearer {CLIENT}"},
        {"x-api-key": ""},
        {"Cookie": f"api_key={CLIENT}"},
    ],
)
def test_what_is_no_key_opens_nothing(guarded, headers):
    answer = guarded.http.get(f"/v1/models?api_key={CLIENT}", headers=headers)
    assert answer.status_code == 401
    assert answer.headers["WWW-Authenticate"] == "Bearer"
    assert answer.json()["error"]["code"] == "invalid_api_key"
    assert CLIENT not in answer.text


def test_admin_paths_need_the_other_key(guarded):
    path = "/admin/nothing"
    assert guarded.http.get(path).status_code == 401
    client = guarded.http.get(path, headers={"x-api-key": CLIENT})
    assert (client.status_code, client.json()["error"]["code"]) == (403, "permission_denied")
    assert guarded.http.get(path, headers={"x-api-key": ADMIN}).status_code == 404


def test_admin_paths_are_closed_where_nobody_has_their_key():
    with run_live() as server:
        assert server.http.get("/v1/models", headers={"x-api-key": "none"}).status_code == 200
        assert server.http.get("/admin/x", headers={"x-api-key": "none"}).status_code == 403


@pytest.mark.parametrize(
    ("target", "host"),
    [
        ("/v1/models", "a/health?x="),
        ("/v1/models", "h/#"),
        ("/v1/models", "x/health"),
        ("http://a/health/../v1/models", "a"),
        ("http://health/v1/models", "health"),
        ("//health/../v1/models", "x"),
        ("/health/../v1/models", "x"),
        ("/health/%2e%2e/v1/models", "x"),
        ("/%2fv1/models", "x"),
        ("/v1%2fmodels", "x"),
        ("/V1/models", "x"),
        ("/health;/v1/models", "x"),
        ("/health%00", "x"),
        ("/health%3f/../v1/models", "x"),
        ("/v1/models?/health", "x"),
        ("/v1/models#/health", "x"),
        ("*", "x"),
    ],
)
@pytest.mark.parametrize("method", ["GET", "HEAD", "POST"])
def test_no_spelling_leads_around_the_key(guarded, target, host, method):
    answer = exchange(guarded.port, request(target, method=method, host=host))
    assert answer.status in (400, 401), answer.data[:200]
    assert b"tiny" not in answer.data


def test_proxies_cannot_rename_a_path(guarded):
    names = ("X-Forwarded-Prefix", "X-Original-URL", "X-Rewrite-URL", "X-HTTP-Method-Override")
    headers = [f"{name}: /health" for name in names]
    assert exchange(guarded.port, request("/v1/models", *headers)).status == 401


def test_a_preflight_needs_no_key_and_opens_nothing(guarded):
    answer = guarded.http.options(
        "/v1/models",
        headers={"Origin": "http://a", "Access-Control-Request-Method": "GET"},
    )
    assert answer.status_code == 200
    assert guarded.http.options("/v1/models").status_code == 204
    other = guarded.http.get("/live", headers={"Origin": "http://b"})
    assert "Access-Control-Allow-Origin" not in other.headers


def test_no_page_of_another_origin_reads_an_answer_by_default():
    with run_live(settings=Settings(server=ServerSettings(port=0))) as server:
        answer = server.http.get("/v1/models", headers={"Origin": "http://a"})
        assert "Access-Control-Allow-Origin" not in answer.headers


def test_the_official_client_sends_a_key(guarded):
    url = f"{guarded.url}/v1"
    with openai.OpenAI(base_url=url, api_key=CLIENT, max_retries=0) as client:
        assert client.models.list().data[0].id == "tiny"
        stream = client.completions.create(model="tiny", prompt="hi", stream=True)
        assert list(stream)
    with (
        openai.OpenAI(base_url=url, api_key="wrong", max_retries=0) as stranger,
        pytest.raises(openai.AuthenticationError),
    ):
        stranger.models.list()


def test_a_refused_body_is_not_read(guarded):
    """Whoever has no key does not get megabytes parsed."""
    head = request(method="POST", target="/v1/completions").replace(
        b"Content-Length: 0", b"Content-Length: 8000000"
    )
    assert exchange(guarded.port, head).status == 401
