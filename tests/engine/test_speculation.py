"""Guessed tokens: answers are those without them, steps are fewer, and nobody pays for it."""

import asyncio
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from engine import FinishReason, GenerationOutput
from engine.batch import BatchInputs, ScheduledBatch
from engine.faults import FaultPoint
from engine.requests import RequestState
from engine.sampling.grammar import Matcher
from engine.sampling.sampler import Sampler
from engine.speculation import MAX_STEP_TOKENS, Speculation
from tests.engine.builders import make_request, make_scheduler
from tests.engine.checksum_model import (
    ChecksumEngine,
    ChecksumModel,
    checksum,
    mostly_repeating,
)
from tests.engine.control import loop_of
from tests.engine.scheduling import prompt, share
from tests.engine.soundness import check_idle

VOCAB = 199
PAGE = 4
EOS = 3
PROMPT = [0, 1, 2, 3, 0, 1, 2]


class WaveringModel(ChecksumModel):
    """Logits that favour the next token of a circle, over noise that all tokens before decide."""

    def forward(self, inputs: BatchInputs) -> torch.Tensor:
        """Return [N, V] logits."""
        rows = []
        for tokens in self.histories(inputs):
            noise = np.random.default_rng(zlib.crc32(tokens.tobytes())).normal(size=VOCAB)
            noise[mostly_repeating(tokens, VOCAB)] += 8.0
            rows.append(noise)
        return torch.tensor(np.array(rows).reshape(-1, VOCAB), dtype=torch.float32)


class Words:
    """Decodes each token as a letter."""

    def decode(self, token_ids: list[int], **options: Any) -> str:
        return "".join(chr(ord("a") + token % 26) for token in token_ids)


@dataclass
class CirclesMatcher:
    """Allows tokens of even circles, for nine tokens or more."""

    num_tokens: int = 0

    def accept(self, token_id: int) -> None:
        assert token_id // 4 % 2 == 0
        self.num_tokens += 1

    def allow(self, allowed: np.ndarray) -> None:
        allowed[np.arange(len(allowed)) // 4 % 2 == 0] = True

    def is_complete(self) -> bool:
        return self.num_tokens >= 9


class Circles:
    """A grammar of `CirclesMatcher`s."""

    def matcher(self) -> Matcher:
        return CirclesMatcher()


SAMPLED = {"temperature": 0.8, "do_sample": True}
# What a request may ask for; each is run with and without guesses.
OPTIONS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "streamed": {"streaming": True},
    "sampled": SAMPLED,
    "seeded and cut": {**SAMPLED, "seed": 11, "top_k": 5, "top_p": 0.95, "min_p": 0.01},
    "hot": {"temperature": 1.3, "do_sample": True, "seed": 4},
    "several answers": {**SAMPLED, "num_return_sequences": 3, "seed": 8},
    "penalised": {"repetition_penalty": 1.1, "presence_penalty": 0.5, "frequency_penalty": 0.3},
    "penalised and sampled": {**SAMPLED, "seed": 5, "frequency_penalty": 0.6},
    "biased": {"logit_bias": {2: -3.0, 40: 2.0}},
    "no repetition": {"no_repeat_ngram_size": 9},
    "ends by itself": {"eos_token_id": EOS},
    "ends late": {"eos_token_id": EOS, "min_new_tokens": 9},
    "sampled end": {**SAMPLED, "seed": 2, "eos_token_id": EOS, "min_new_tokens": 5},
    "stop ids": {"stop_token_ids": [2], "min_new_tokens": 13},
    "stop strings": {"stop_strings": ["dabcdabcdabc"], "tokenizer": Words()},
    "stop strings late": {"stop_strings": ["ab"], "tokenizer": Words(), "min_new_tokens": 17},
    "one token": {"max_new_tokens": 1},
    "two tokens": {"max_new_tokens": 2},
    "a few tokens": {"max_new_tokens": 5},
    "reported": {"top_logprobs": 3, "prompt_logprobs": 2},
    "reported and sampled": {**SAMPLED, "seed": 3, "top_logprobs": 2},
    "grammar": {"grammar": Circles(), "eos_token_id": EOS},
    "sampled grammar": {**SAMPLED, "grammar": Circles(), "eos_token_id": EOS, "seed": 9},
}


@dataclass
class Run:
    """What came of some requests.

    Attributes:
        answers: What callers can see of each.
        num_steps: Steps that were needed.
    """

    answers: list[tuple[Any, ...]]
    num_steps: int
    num_drafted: int
    num_accepted: int


def visible(output: GenerationOutput) -> tuple[Any, ...]:
    assert output.error is None
    return (
        output.generated_tokens,
        output.finish_reason,
        output.stop_reason,
        output.logprobs,
        output.token_logprobs,
        output.prompt_logprobs,
    )


@pytest.fixture
def run(make_manager, tiny_model):
    """A function that runs requests of all these options together, for 40 tokens each."""

    def run_all(
        options: list[dict[str, Any]],
        max_draft_tokens: int,
        make_model=WaveringModel,
        **fields: Any,
    ) -> Run:
        manager = make_manager(page_size=PAGE, seed=1, max_draft_tokens=max_draft_tokens, **fields)
        parts = loop_of(manager)._parts
        model = make_model(parts.scheduler.blocks, VOCAB)
        parts.cache, parts.runner = model.cache, model
        manager.start()
        for number, extra in enumerate(options):
            manager.add_request([*PROMPT, number % 3], **{"max_new_tokens": 40, **extra})
        outputs = sorted(manager, key=lambda output: output.request_id)
        statistics = manager.statistics()
        assert statistics.num_free_blocks == statistics.num_blocks
        manager.stop()
        return Run(
            [visible(output) for output in outputs if output.is_finished()],
            statistics.num_steps,
            statistics.num_drafted_tokens,
            statistics.num_accepted_tokens,
        )

    return run_all


@pytest.mark.parametrize("name", OPTIONS)
def test_an_answer_is_the_one_without_guesses(name, run):
    options = [OPTIONS[name]]
    plain, guessed = run(options, 0), run(options, 6)
    assert guessed.answers == plain.answers
    assert plain.num_drafted == 0
    if OPTIONS[name].get("max_new_tokens", 40) > 2:
        assert 0 < guessed.num_accepted <= guessed.num_drafted


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"return_logprobs": True},
        {"num_blocks": 40, "safety_margin": 0.0},
        {"num_blocks": 40, "safety_margin": 0.0, "cpu_offload_space": 1e-3},
        {"max_batch_tokens": 9, "max_requests_per_batch": 4, "allow_block_sharing": False},
    ],
    ids=lambda fields: ",".join(fields) or "roomy",
)
def test_all_kinds_of_answers_together_are_those_without_guesses(fields, run):
    options = list(OPTIONS.values())
    plain, guessed = run(options, 0, **fields), run(options, 8, **fields)
    assert guessed.answers == plain.answers
    assert guessed.num_accepted > 0


class PickyModel(WaveringModel):
    """Computes no guesses."""

    def forward(self, inputs: BatchInputs) -> torch.Tensor:
        if len(inputs.sample_indices) > len(inputs.context_lengths):
            raise ValueError("this is more than I can do")
        return super().forward(inputs)


def test_no_request_fails_because_of_what_was_guessed(run, caplog):
    options = [OPTIONS["greedy"], OPTIONS["sampled"]]
    plain, guessed = run(options, 0), run(options, 6, PickyModel)
    assert guessed.answers == plain.answers
    assert guessed.num_accepted == 0
    assert 0 < guessed.num_drafted < 20  # it is given up
    assert "repeated without them" in caplog.text


def test_guesses_that_cannot_be_verified_are_left(run, caplog, monkeypatch):
    draw = Sampler.sample_batch
    was_drafted: list[bool] = []

    def breaks_on_guesses(self, logits, batch):
        if was_drafted and was_drafted.pop():
            raise RuntimeError("drawn twice in a step")
        was_drafted[:] = [batch.num_drafted > 0]
        return draw(self, logits, batch)

    options = [OPTIONS["greedy"], OPTIONS["reported"]]
    plain = run(options, 0)
    monkeypatch.setattr(Sampler, "sample_batch", breaks_on_guesses)
    guessed = run(options, 6)
    assert guessed.answers == plain.answers
    assert guessed.num_accepted > 0
    assert "cannot be verified" in caplog.text


def test_each_token_of_a_stream_is_an_output_of_its_own(make_manager):
    manager = make_manager(max_draft_tokens=4)
    parts = loop_of(manager)._parts
    model = WaveringModel(parts.scheduler.blocks, VOCAB)
    parts.cache, parts.runner = model.cache, model
    manager.start()
    name = manager.add_request(PROMPT, max_new_tokens=30, streaming=True, record_timestamps=True)
    outputs = list(manager.request_id_iter(name))
    assert manager.statistics().num_accepted_tokens > 0
    assert 0 < manager.statistics().draft_acceptance <= 1
    manager.stop()
    assert [len(output.new_tokens) for output in outputs] == [1] * 30
    assert [len(output.generated_tokens) for output in outputs] == list(range(1, 31))
    assert [output.is_finished() for output in outputs] == [False] * 29 + [True]
    assert outputs[-1].timestamps == sorted(outputs[-1].timestamps)


async def test_an_output_that_is_lost_ends_its_request_once(make_manager, monkeypatch):
    """The first of several outputs of a step, of which the last would have been terminal."""
    monkeypatch.setattr("engine.drafting.FIRST_ACCEPTANCE", 1.0)
    manager = make_manager(max_draft_tokens=4, page_size=64)
    parts = loop_of(manager)._parts
    model = ChecksumModel(parts.scheduler.blocks, VOCAB, circle)
    parts.cache, parts.runner = model.cache, model
    outputs: list[GenerationOutput] = []

    def take(output: GenerationOutput) -> None:
        outputs.append(output)
        if output.is_finished():
            over.set()

    over = asyncio.Event()
    manager.register_result_handler("a", take)
    manager.start()
    manager._channels.faults.arm(FaultPoint.DELIVER, request_id="a", once=True)
    manager.add_request([4, 5, 6, 7] * 3, "a", max_new_tokens=4, streaming=True)
    await asyncio.wait_for(over.wait(), 10)
    await asyncio.to_thread(manager.stop)
    assert [output.finish_reason for output in outputs] == [FinishReason.ERROR]
    assert outputs[0].generated_tokens == [4, 5, 6, 7]
    assert manager.get_result(timeout=0) is None


def circle(tokens: np.ndarray, vocab_size: int) -> int:
    """Return the next token of a circle of four."""
    return int(tokens[-1]) // 4 * 4 + (int(tokens[-1]) + 1) % 4


def speculating(max_tokens: int = 6, *, page_size: int = 64, **limits: Any) -> ChecksumEngine:
    """Return an engine of circles that is stepped by hand."""
    limits = {"max_batch_tokens": 64, **limits}
    speculation = Speculation(
        max_tokens, max_batch_tokens=limits["max_batch_tokens"], page_size=page_size
    )
    scheduler = make_scheduler(64, page_size, speculation=speculation, **limits)
    return ChecksumEngine(scheduler, VOCAB, circle)


def circling(name: str, **params: Any) -> RequestState:
    return make_request(name, [4, 5, 6, 7] * 3, **{"max_new_tokens": 50, **params})


def add(engine: ChecksumEngine, *requests: RequestState) -> None:
    """Add requests and run the step that admits them."""
    for request in requests:
        engine.scheduler.add(request)
    engine.step()


def drafts(batch: ScheduledBatch) -> dict[str, int]:
    return {item.request.request_id: len(item.draft) for item in batch.scheduled if item.draft}


def test_answers_that_repeat_take_fewer_steps():
    num_steps = {}
    for max_tokens in (0, 2, 8):
        engine = speculating(max_tokens)
        requests = [circling("a"), circling("b", max_new_tokens=41)]
        add(engine, *requests)
        num_steps[max_tokens] = 1
        while engine.scheduler.has_requests():
            engine.step()
            num_steps[max_tokens] += 1
        assert [len(request.generated_tokens) for request in requests] == [50, 41]
        accepted = engine.scheduler.speculation.num_accepted
        assert accepted == engine.scheduler.speculation.num_drafted
    assert num_steps[0] == 50
    assert num_steps[2] < 20
    assert num_steps[8] < 12


def test_a_draft_never_takes_a_block():
    engine = speculating(page_size=4)
    request = circling("a")
    add(engine, request)
    num_drafted = 0
    while not request.is_finished():
        batch = engine.scheduler.schedule_batch()
        assert len(request.block_ids) == -(-(request.num_computed + 1) // 4)
        num_drafted += sum(drafts(batch).values())
        engine.finish(batch)
    assert num_drafted > 10
    check_idle(engine.scheduler)


def test_nothing_is_guessed_beyond_the_last_token_of_an_answer():
    engine = speculating()
    request = circling("a", max_new_tokens=12)
    add(engine, request)
    while not request.is_finished():
        batch = engine.scheduler.schedule_batch()
        assert len(request.generated_tokens) + drafts(batch).get("a", 0) < 12
        engine.finish(batch)
    assert request.finish_reason is FinishReason.LENGTH
    assert len(request.generated_tokens) == 12


def test_guesses_leave_others_their_tokens():
    engine = speculating(max_batch_tokens=24)
    add(engine, circling("a"))
    assert drafts(engine.scheduler.schedule_batch())
    engine.scheduler.add(make_request("b", prompt(60)))
    shares = []
    for _ in range(3):
        batch = engine.scheduler.schedule_batch()
        shares.append(share(batch))
        assert batch.num_tokens + batch.num_drafted <= 24
        engine.finish(batch)
    assert shares == [{"a": 1, "b": 23}, {"a": 1, "b": 23}, {"a": 1, "b": 14}]
    for request in list(engine.scheduler.running.values()):
        engine.scheduler.cancel(request)


def test_steps_without_guesses_repeat():
    engine = speculating()
    engine.model.follow = checksum  # whose answers hold no two tokens twice
    request = make_request("a", prompt(5), max_new_tokens=12)
    add(engine, request)
    engine.step()
    while len(request.generated_tokens) < 11:
        batch = engine.scheduler.schedule_batch()
        assert batch.continues
        engine.finish(batch)
    engine.step()


def test_with_many_rows_nothing_is_guessed():
    engine = speculating(max_batch_tokens=2_000, max_requests=100)
    add(engine, *(circling(f"r{number}") for number in range(MAX_STEP_TOKENS // 2 + 1)))
    assert not drafts(engine.scheduler.schedule_batch())
    for request in list(engine.scheduler.running.values())[3:]:
        engine.scheduler.cancel(request)
    assert set(drafts(engine.scheduler.schedule_batch())) == {"r0", "r1", "r2"}
    for request in list(engine.scheduler.running.values()):
        engine.scheduler.cancel(request)
