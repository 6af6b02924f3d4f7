"""Random requests to the default model: the joined stream is the whole answer, to the byte."""

import json
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.integration.joined_stream import comparable, join_stream
from tests.integration.random_requests import Body, random_request, shown

NUM_IN_SUITE = 24
NUM_IN_ALL = 500
NUM_IN_TURN = 50
NUM_AT_ONCE = 6


def differences(http: httpx.Client, number: int) -> str:
    """Return how the streamed answer differs from the whole one; nothing if it doesn't."""
    request = random_request(number)
    path, body = request
    answer = http.post(path, json=body)
    assert answer.status_code == 200, f"{shown(request)}: {answer.text}"
    streaming: Body = {**body, "stream": True, "stream_options": {"include_usage": True}}
    stream = http.post(path, json=streaming)
    assert stream.status_code == 200, f"{shown(request)}: {stream.text}"
    whole = json.dumps(comparable(answer.json()), sort_keys=True, ensure_ascii=False)
    joined = json.dumps(comparable(join_stream(stream.content)), sort_keys=True, ensure_ascii=False)
    return "" if joined == whole else f"{number}: {shown(request)}\n{whole}\n{joined}"


def compare(url: str, numbers: range) -> None:
    """Ask several at once, so that answers are computed in crowds that differ."""
    with (
        httpx.Client(base_url=url, timeout=300) as http,
        ThreadPoolExecutor(NUM_AT_ONCE) as pool,
    ):
        found = list(pool.map(lambda number: differences(http, number), numbers))
    different = [one for one in found if one]
    assert not different, f"{len(different)} of {len(numbers)} differ:\n" + "\n".join(different[:5])


def test_joined_streams_equal_whole_answers(default_server):
    compare(default_server.url, range(NUM_IN_SUITE))


@pytest.mark.long
@pytest.mark.parametrize("first", range(0, NUM_IN_ALL, NUM_IN_TURN))
def test_many_joined_streams_equal_whole_answers(default_server, first):
    compare(default_server.url, range(first, first + NUM_IN_TURN))
