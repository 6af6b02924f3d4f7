"""The loop turned by hand over the checksum model: random mail, poison and stops, no threads."""

import random

import pytest

from engine.admission import AdmissionGate
from engine.errors import EngineError, EngineStoppingError
from engine.input_builder import InputBuilder
from engine.loop import Channels, EngineLoop, StepParts
from engine.mailbox import Mailbox, StopMode
from engine.models.weights import WeightWatch
from engine.output_router import OutputRouter
from engine.pause import PauseGate
from engine.requests import FinishReason, RequestState
from engine.result_store import ResultStore
from engine.sampling.parameters import SamplingParams
from engine.sampling.sampler import Sampler
from tests.engine.builders import make_request, make_scheduler
from tests.engine.checksum_model import CPU, ChecksumModel, expected_answer
from tests.engine.soundness import check_scheduler

VOCAB = 30
POISON = 29
NUM_LOOPS = 150


class PoisonedModel(ChecksumModel):
    """Raises in a forward that computes the poison, after having written the step's tokens."""

    def forward(self, inputs):
        logits = super().forward(inputs)
        if POISON in inputs.input_ids[0].tolist():
            raise ValueError("poison")
        return logits

    def prepare(self):
        pass


class HandTurnedEngine:
    """A loop with all its channels, for one thread."""

    def __init__(self, *, num_blocks=16, page_size=4, max_queue_size=0, **limits) -> None:
        scheduler = make_scheduler(num_blocks, page_size, **limits)

        def make_another():
            return make_scheduler(num_blocks, page_size, **limits)

        model = PoisonedModel(scheduler.blocks, VOCAB)
        parts = StepParts(
            scheduler,
            InputBuilder(page_size, CPU),
            model.cache,
            model,
            Sampler(return_logprobs=False),
            make_another,
            WeightWatch(None),
        )
        self.mailbox, self.store = Mailbox(), ResultStore()
        self.gate = AdmissionGate(max_queue_size)
        pause, router = PauseGate(self.mailbox.poke), OutputRouter(self.store)
        self.loop = EngineLoop(parts, Channels(self.mailbox, self.gate, pause, router))

    @property
    def scheduler(self):
        return self.loop.scheduler

    def submit(self, request: RequestState) -> None:
        self.gate.acquire()
        self.mailbox.post(request)

    def turn(self) -> None:
        """Turn once, unless it would sleep."""
        if self.scheduler.has_requests() or self.mailbox._has_mail():
            assert self.loop.turn()

    def outputs(self):
        found = []
        while (output := self.store.get(timeout=0)) is not None:
            found.append(output)
        return found

    def check_over(self) -> None:
        check_scheduler(self.scheduler)
        assert not self.scheduler.has_requests()
        assert (self.mailbox.num_live, self.gate.num_waiting) == (0, 0)
        assert self.loop._requests == {}


class RandomMail:
    """What a seed sends to an engine, and what must come back."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.engine = HandTurnedEngine(
            num_blocks=self.random.choice([6, 8, 30]),
            max_batch_tokens=self.random.choice([6, 64]),
            max_requests=self.random.choice([2, 6]),
            kind=self.random.choice(["fifo", "prefill_first"]),
        )
        self.requests: list[RequestState] = []
        self.terminals: dict[str, list] = {}

    def run(self) -> None:
        for _ in range(60):
            if self.random.random() < 0.4:
                self._submit()
            if self.requests and self.random.random() < 0.15:
                name = self.random.choice(self.requests).request_id
                self.engine.mailbox.post_cancel(name)
            self.engine.turn()
            self._collect()
        if self.random.random() < 0.5:
            self.engine.mailbox.post_stop(self.random.choice([StopMode.DRAIN, StopMode.HARD]))
            assert self.engine.loop.run() is None
        else:
            while self.engine.mailbox.num_live:
                self.engine.turn()
        self._collect()
        self.engine.check_over()
        for request in self.requests:
            self._check(request)

    def _submit(self) -> None:
        prompt = [self.random.randrange(3) for _ in range(self.random.randint(1, 10))]
        if self.random.random() < 0.2:
            prompt[self.random.randrange(len(prompt))] = POISON
        params = SamplingParams(temperature=0.0, max_new_tokens=self.random.randint(1, 10))
        request = RequestState(f"r{len(self.requests)}", prompt, params)
        request.streaming = self.random.random() < 0.5
        self.requests.append(request)
        self.engine.submit(request)

    def _collect(self) -> None:
        for output in self.engine.outputs():
            assert output.request_id not in self.terminals, "an output after the terminal one"
            if output.is_finished():
                self.terminals[output.request_id] = [output]

    def _check(self, request: RequestState) -> None:
        (output,) = self.terminals[request.request_id]
        expected = expected_answer(request.prompt_ids, request.params, VOCAB)
        if output.finish_reason is FinishReason.ERROR:
            poisoned = POISON in request.prompt_ids or POISON in expected
            assert poisoned or isinstance(output.exception, EngineStoppingError)
            assert isinstance(output.exception, EngineError)
        if output.finish_reason is not FinishReason.LENGTH:
            expected = expected[: len(output.generated_tokens)]
        assert output.generated_tokens == expected


@pytest.mark.parametrize("first_seed", range(0, NUM_LOOPS, 50))
def test_random_mail_ends_each_request_once_with_its_own_tokens(first_seed):
    for seed in range(first_seed, first_seed + 50):
        RandomMail(seed).run()


def test_mail_is_taken_in_the_order_request_then_cancellation():
    engine = HandTurnedEngine()
    engine.submit(make_request("a"))
    engine.mailbox.post_cancel("a")
    engine.turn()
    (output,) = engine.outputs()
    assert output.finish_reason is FinishReason.CANCELLED
    engine.check_over()


def test_a_request_keeps_its_place_in_the_queue_until_it_is_scheduled():
    engine = HandTurnedEngine(max_requests=1)
    for name in "abc":
        engine.submit(make_request(name, [1], max_new_tokens=2))
    waiting = []
    while engine.mailbox.num_live:
        engine.turn()
        waiting.append(engine.gate.num_waiting)
    assert waiting == [2, 2, 1, 1, 0, 0]


def test_a_turn_without_requests_computes_nothing():
    engine = HandTurnedEngine()
    engine.mailbox.poke()
    assert engine.loop.turn()
    assert engine.loop.num_steps == 0


def test_a_drain_ends_only_when_nothing_is_left():
    engine = HandTurnedEngine()
    engine.submit(make_request("a", [1], max_new_tokens=3))
    engine.mailbox.post_stop(StopMode.DRAIN)
    turns = 1
    while engine.loop.turn():
        turns += 1
    assert turns == 4
    (output,) = engine.outputs()
    assert output.finish_reason is FinishReason.LENGTH


def test_a_hard_stop_computes_nothing_more():
    engine = HandTurnedEngine()
    engine.submit(make_request("a", [1]))
    engine.turn()
    engine.mailbox.post_stop(StopMode.HARD)
    assert engine.loop.run() is None
    assert engine.loop.num_steps == 1
    (output,) = engine.outputs()
    assert isinstance(output.exception, EngineStoppingError)
    assert len(output.generated_tokens) == 1
    engine.check_over()


def test_a_terminal_output_finds_its_id_free_and_its_waiters_waiting(monkeypatch):
    """Freed later, a reused id is refused; forgotten earlier, a waiter gives up just before."""
    engine = HandTurnedEngine()
    seen = []

    def put(outputs):
        seen.append(engine.mailbox.is_live("a"))
        engine.submit(make_request("a", [1], max_new_tokens=1))
        monkeypatch.undo()

    monkeypatch.setattr(engine.store, "put", put)
    engine.submit(make_request("a", [1], max_new_tokens=1))
    engine.turn()
    assert seen == [True]
    assert engine.mailbox.is_live("a")
    engine.turn()
    assert [output.request_id for output in engine.outputs()] == ["a"]
    engine.check_over()
