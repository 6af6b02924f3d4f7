"""What evaluation harnesses read: log-probabilities of prompts, by the engine itself."""

import json

import pytest
import torch

PROMPT = list(range(20, 60))


@pytest.fixture(scope="module")
def expected(tiny_model) -> torch.Tensor:
    """[L - 1] log-probabilities of the prompt's tokens after the first, by the model itself."""
    with torch.inference_mode():
        logits = tiny_model.model.causal_lm.hf_model(torch.tensor([PROMPT])).logits[0]
    tokens = torch.tensor(PROMPT[1:])
    return logits.log_softmax(dim=-1)[:-1].gather(1, tokens[:, None])[:, 0]


@pytest.mark.parametrize("max_tokens", [0, 1])
@pytest.mark.parametrize("round_", ["first", "cached"])
def test_echoed_logprobs_are_the_models(server, expected, max_tokens, round_):
    body = server.complete(PROMPT, echo=True, logprobs=1, max_tokens=max_tokens).json()
    (choice,) = body["choices"]
    logprobs = choice["logprobs"]
    assert logprobs["token_logprobs"][0] is None
    assert len(logprobs["tokens"]) == len(PROMPT) + max_tokens
    found = torch.tensor(logprobs["token_logprobs"][1 : len(PROMPT)])
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
    for likely, chosen in zip(
        logprobs["top_logprobs"][1:], logprobs["token_logprobs"][1:], strict=True
    ):
        assert max(likely.values()) >= chosen
    if max_tokens:
        assert max(logprobs["top_logprobs"][-1].values()) == logprobs["token_logprobs"][-1]
    assert body["usage"]["completion_tokens"] == max_tokens


def test_a_stream_reports_the_same(server):
    fields = {"echo": True, "logprobs": 2, "max_tokens": 3, "n": 2, "seed": 1, "temperature": 1}
    whole = server.complete([PROMPT, PROMPT[:9]], **fields).json()
    text = server.complete([PROMPT, PROMPT[:9]], **fields, stream=True).text
    chunks = [json.loads(line[6:]) for line in text.split("\n\n")[:-2]]
    for choice in whole["choices"]:
        pieces = [c for chunk in chunks for c in chunk["choices"] if c["index"] == choice["index"]]
        assert "".join(piece["text"] for piece in pieces) == choice["text"]
        for key, values in choice["logprobs"].items():
            joined = [item for piece in pieces for item in (piece["logprobs"] or {}).get(key, [])]
            assert joined == values


def test_the_best_answer_is_the_likeliest(server):
    fields = {"temperature": 1, "seed": 3, "max_tokens": 6, "logprobs": 0}
    every = server.complete(PROMPT, n=4, **fields).json()["choices"]
    best = server.complete(PROMPT, n=1, best_of=4, **fields).json()["choices"]

    def mean(choice) -> float:
        values = choice["logprobs"]["token_logprobs"]
        return sum(values) / len(values)

    assert [choice["text"] for choice in best] == [max(every, key=mean)["text"]]


def test_prompt_logprobs_name_every_token_and_its_rank(server):
    body = server.complete(PROMPT, prompt_logprobs=2, max_tokens=1).json()
    first, *others = body["choices"][0]["prompt_logprobs"]
    assert first is None
    for token, entry in zip(PROMPT[1:], others, strict=True):
        ranks = sorted(one["rank"] for one in entry.values())
        assert ranks[:2] == [1, 2]
        assert entry[str(token)]["rank"] in ranks
