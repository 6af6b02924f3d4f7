"""transformers' logits processors in a batch: token for token what `model.generate` gives alone."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from transformers import GenerationConfig
from transformers.generation import logits_process

from engine import ContinuousBatchingConfig, InvalidRequestError
from engine.runners.eager import EagerRunner
from engine.sampling.host_row import draw_place
from engine.sampling.random import uniform
from tests.engine.parity.comparison import reference_tokens
from tests.engine.parity.families import make_family
from tests.engine.parity.grid import make_prompts
from tests.engine.parity.subject import Subject

NUM_TOKENS = 24
SEED = 11
CONFIG = ContinuousBatchingConfig(page_size=4, num_blocks=400, max_batch_tokens=32, seed=1)
# The greedy answer to the last prompt goes round in circles, so n-grams have something to forbid.
PROMPTS = [*(prompt[:30] for prompt in make_prompts()[:6]), [17], [9, 8, 9, 8, 9, 8, 9]]


@pytest.fixture(scope="module")
def llama() -> Subject:
    return Subject(make_family("llama"), PROMPTS, NUM_TOKENS, spare_tokens=0)


@pytest.fixture(scope="module")
def end(llama) -> int:
    """A token that some answers come upon, to be their end."""
    return int(llama.references[0][5])


# What changes a greedy answer.
EDITS: dict[str, Any] = {
    "no_repeat_ngram_size": 1,
    "encoder_no_repeat_ngram_size": 1,
    "encoder_repetition_penalty": 0.4,
    "bad_words_ids": [[n] for n in range(0, 199, 3)] + [[4, 5]],
    "sequence_bias": [[[n], 4.5] for n in range(5, 60, 7)] + [[[12, 5], -9.0], [[1, 2, 3], 1.0]],
    "forced_bos_token_id": 7,
    "forced_eos_token_id": 5,
    "suppress_tokens": list(range(0, 199, 2)),
    "begin_suppress_tokens": list(range(100)),
    "exponential_decay_length_penalty": (4, 1.4),
    "min_length": 20,
}
# What changes a distribution and leaves its maximum.
CUTS: dict[str, Any] = {"top_h": 0.3, "typical_p": 0.4, "epsilon_cutoff": 0.05, "eta_cutoff": 0.3}
# So many tokens are ruled out by all of them together that some answers had none left to take.
MILDER: dict[str, Any] = {
    "no_repeat_ngram_size": 3,
    "encoder_no_repeat_ngram_size": 4,
    "bad_words_ids": [[7], [5, 9]],
    "suppress_tokens": [8, 9, 10],
    "begin_suppress_tokens": list(range(20)),
    "repetition_penalty": 1.3,
}
NEEDS_AN_END = {"exponential_decay_length_penalty", "min_length", "bad_words_ids"}


def run(subject: Subject, generation_config=None, config=CONFIG, **options: Any):
    return list(
        subject.paged.generate_batch(
            subject.prompts, generation_config, config, max_new_tokens=NUM_TOKENS, **options
        ).values()
    )


def tokens(outputs) -> list[list[int]]:
    assert [output.error for output in outputs] == [None] * len(outputs)
    return [output.generated_tokens for output in outputs]


def sampled_references(subject: Subject, monkeypatch, **options: Any) -> list[list[int]]:
    """Return what `generate` draws with our random numbers in the place of torch's."""
    position = [0]

    def multinomial(probabilities: torch.Tensor, num_samples: int) -> torch.Tensor:
        number = float(uniform([SEED], [position[0]])[0])
        position[0] += 1
        scores = probabilities[0].log().numpy()
        return torch.tensor([[draw_place(scores, number)]])

    answers = []
    oracle: Any = subject.hf_model
    with monkeypatch.context() as patch:
        patch.setattr(torch, "multinomial", multinomial)
        for prompt in subject.prompts:
            position[0] = len(prompt)
            ids = torch.tensor([prompt])
            output = oracle.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=NUM_TOKENS,
                do_sample=True,
                **options,
            )
            answers.append(output[0, len(prompt) :].tolist())
    return answers


@pytest.mark.parametrize("in_config", [True, False], ids=["configuration", "keyword"])
@pytest.mark.parametrize("name", EDITS)
def test_greedy_tokens_equal_generate(name, in_config, llama, end):
    options: dict[str, Any] = {name: EDITS[name]}
    if name in NEEDS_AN_END:
        options["eos_token_id"] = [end, 3]
    expected = reference_tokens(llama.hf_model, llama.prompts, NUM_TOKENS, **options)
    plain = {key: value for key, value in options.items() if key != name}
    assert expected != reference_tokens(llama.hf_model, llama.prompts, NUM_TOKENS, **plain)
    outputs = run(llama, GenerationConfig(**options)) if in_config else run(llama, **options)
    assert tokens(outputs) == expected


@pytest.mark.parametrize("name", [*EDITS, *CUTS])
def test_sampled_tokens_equal_generate(name, llama, end, monkeypatch):
    """The same random numbers fall on the same tokens: the distributions are the same."""
    options: dict[str, Any] = {name: {**EDITS, **CUTS}[name], "temperature": 2.0, "top_k": 60}
    if name in NEEDS_AN_END:
        options["eos_token_id"] = [end, 3]
    expected = sampled_references(llama, monkeypatch, **options)
    plain = {key: value for key, value in options.items() if key != name}
    assert expected != sampled_references(llama, monkeypatch, **plain)
    assert tokens(run(llama, do_sample=True, seed=SEED, **options)) == expected


@pytest.mark.parametrize("samples", [True, False])
def test_all_of_them_together_stand_in_the_order_of_generate(samples, llama, end, monkeypatch):
    options = {**EDITS, **MILDER, "eos_token_id": [end, 3]}
    if samples:
        # Where a token is forced, `generate` itself cannot apply top_h: its entropy is NaN.
        options |= {
            **CUTS,
            "top_h": None,
            "temperature": 1.7,
            "top_k": 80,
            "top_p": 0.95,
            "min_p": 0.001,
        }
        expected = sampled_references(llama, monkeypatch, **options)
    else:
        expected = reference_tokens(llama.hf_model, llama.prompts, NUM_TOKENS, **options)
    assert len({len(answer) for answer in expected}) > 2
    assert tokens(run(llama, do_sample=samples, seed=SEED, **options)) == expected


@pytest.mark.parametrize("name", CUTS)
def test_a_cut_leaves_a_greedy_answer_as_it_is(name, llama):
    assert tokens(run(llama, **{name: CUTS[name]})) == llama.references


def test_the_history_is_whole_after_a_preemption(llama):
    small = ContinuousBatchingConfig(
        page_size=4, num_blocks=24, safety_margin=0.0, max_batch_tokens=32
    )
    expected = reference_tokens(llama.hf_model, llama.prompts, NUM_TOKENS, no_repeat_ngram_size=1)
    outputs = run(llama, config=small, no_repeat_ngram_size=1)
    assert tokens(outputs) == expected
    assert sum(output.num_preemptions for output in outputs) > 0


def test_logprobs_are_of_the_processed_distribution(llama):
    """`return_logprobs` of a cut row is its own distribution's, as `generate`'s scores are."""
    config = ContinuousBatchingConfig(
        page_size=4, num_blocks=400, return_logprobs=True, max_batch_tokens=32
    )
    outputs = run(
        llama, config=config, do_sample=True, seed=SEED, typical_p=0.4, no_repeat_ngram_size=2
    )
    for prompt, output in zip(llama.prompts, outputs, strict=True):
        answer = output.generated_tokens
        ids = torch.tensor([[*prompt, *answer]])
        with torch.inference_mode():
            logits = llama.hf_model(input_ids=ids, use_cache=False).logits[0].float()
        for place in range(len(answer)):
            length = len(prompt) + place
            scores = expected_scores(ids[:, :length], logits[length - 1][None])
            expected = float(scores.log_softmax(-1)[0, answer[place]])
            assert output.logprobs[place] == pytest.approx(expected, abs=1e-4)


def expected_scores(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    chain: Sequence[Any] = (
        logits_process.NoRepeatNGramLogitsProcessor(2),
        logits_process.TopKLogitsWarper(50),
        logits_process.TypicalLogitsWarper(0.4),
    )
    for processor in chain:
        scores = processor(ids, scores)
    return scores


def test_rows_with_and_without_processors_meet_in_a_batch(llama):
    expected = reference_tokens(llama.hf_model, llama.prompts, NUM_TOKENS, no_repeat_ngram_size=1)
    with llama.paged.continuous_batching_context_manager(
        continuous_batching_config=CONFIG
    ) as manager:
        sizes = [n % 2 for n in range(len(llama.prompts))]
        ids = [
            manager.add_request(prompt, max_new_tokens=NUM_TOKENS, no_repeat_ngram_size=size)
            for prompt, size in zip(llama.prompts, sizes, strict=True)
        ]
        answers = tokens([manager.get_result(request_id) for request_id in ids])
    for size, answer, plain, other in zip(sizes, answers, llama.references, expected, strict=True):
        assert answer == (other if size else plain)


def test_a_processor_that_raises_fails_its_own_row_alone(llama, monkeypatch):
    def broken(self, input_ids, scores):
        raise IndexError("no such place")

    monkeypatch.setattr(logits_process.NoRepeatNGramLogitsProcessor, "__call__", broken)
    with llama.paged.continuous_batching_context_manager(
        continuous_batching_config=CONFIG
    ) as manager:
        bad = manager.add_request([1, 2, 3], max_new_tokens=4, no_repeat_ngram_size=2)
        good = manager.add_request(llama.prompts[0], max_new_tokens=NUM_TOKENS)
        failed, sound = manager.get_result(bad), manager.get_result(good)
    assert failed is not None
    assert "no such place" in failed.error
    assert sound is not None
    assert sound.generated_tokens == llama.references[0]


def test_a_row_of_nothing_is_mended_where_that_is_asked_for(llama, monkeypatch):
    """`remove_invalid_values` takes NaN for 0, so the request goes on."""
    forward = EagerRunner.forward

    def with_holes(self, inputs):
        logits = forward(self, inputs).clone()
        logits[:, 50] = np.nan
        return logits

    monkeypatch.setattr(EagerRunner, "forward", with_holes)
    assert {len(answer) for answer in tokens(run(llama, remove_invalid_values=True))} == {
        NUM_TOKENS
    }


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("bad_words_ids", [[]]),
        ("bad_words_ids", [[199]]),
        ("begin_suppress_tokens", 3),
        ("encoder_no_repeat_ngram_size", -1),
        ("encoder_repetition_penalty", 0.0),
        ("epsilon_cutoff", 1.5),
        ("eta_cutoff", "x"),
        ("exponential_decay_length_penalty", (1,)),
        ("exponential_decay_length_penalty", (1, -2.0)),
        ("forced_bos_token_id", 199),
        ("forced_eos_token_id", [199]),
        ("no_repeat_ngram_size", 1.5),
        ("remove_invalid_values", 1),
        ("sequence_bias", [[[1], np.nan]]),
        ("sequence_bias", [[1, 2.0]]),
        ("suppress_tokens", [-1]),
        ("top_h", 1.1),
        ("typical_p", -0.1),
    ],
)
def test_a_bad_value_is_refused_by_name(name, value, llama):
    with pytest.raises(InvalidRequestError, match=name) as caught:
        run(llama, **{name: value})
    assert caught.value.param == name
