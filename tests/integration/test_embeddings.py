"""Vectors of the default model, through the official client."""

import math

import pytest

TEXTS = ["A cat sleeps on the sofa.", "A kitten naps on the couch.", "The court rejected the tax."]


def cosine(a: list[float], b: list[float]) -> float:
    return math.fsum(x * y for x, y in zip(a, b, strict=True))


def test_like_is_near_like(client, default_server):
    answer = client.embeddings.create(model=default_server.model, input=TEXTS)
    cat, kitten, court = (item.embedding for item in answer.data)
    assert cosine(cat, cat) == pytest.approx(1)
    assert cosine(cat, kitten) > cosine(cat, court)


def test_a_vector_does_not_depend_on_its_company(client, default_server):
    model = default_server.model
    alone = client.embeddings.create(model=model, input=TEXTS[0]).data[0].embedding
    among = client.embeddings.create(model=model, input=TEXTS).data[0].embedding
    assert alone == pytest.approx(among, abs=1e-6)
