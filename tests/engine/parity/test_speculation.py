"""Guesses in front of real models: rows that are right, rows that are not, and the bits of both."""

import random
from collections.abc import Sequence
from typing import ClassVar

import pytest

from engine import ContinuousBatchingConfig, GenerationOutput, PagedModel
from engine.drafting import Drafting
from tests.engine.parity.grid import MAX_NEW_TOKENS

PAGE_SIZE = 16


class Knowing(Drafting):
    """Guesses what the answer is going to be, with a mistake now and then."""

    answers: ClassVar[dict[tuple[int, ...], list[int]]] = {}
    source = random.Random(5)

    def __init__(self, prompt_ids: Sequence[int]) -> None:
        super().__init__(prompt_ids)
        self._answer = self.answers.get(tuple(prompt_ids), [])

    def draft(self, generated: Sequence[int], most: int, least_chance: float) -> list[int]:
        guesses = self._answer[len(generated) :][: self.source.randint(0, most)]
        if guesses and self.source.random() < 0.5:
            guesses[self.source.randrange(len(guesses))] = self.source.randrange(190)
        return guesses


def run(model: PagedModel, prompts: list[list[int]], max_draft_tokens: int, num_blocks: int):
    """Return the terminal outputs of the prompts, run together, and the engine's statistics."""
    config = ContinuousBatchingConfig(
        page_size=PAGE_SIZE,
        num_blocks=num_blocks,
        max_batch_tokens=48,
        safety_margin=0.0,
        return_logprobs=True,
        max_draft_tokens=max_draft_tokens,
        step_time_target=0.0,
    )
    with model.continuous_batching_context_manager(continuous_batching_config=config) as manager:
        ids = [
            manager.add_request(prompt, max_new_tokens=MAX_NEW_TOKENS, top_logprobs=2)
            for prompt in prompts
        ]
        outputs = [manager.get_result(request_id) for request_id in ids]
        return outputs, manager.statistics()


def said(output: GenerationOutput):
    assert output.error is None
    return output.generated_tokens, output.logprobs, output.token_logprobs


@pytest.mark.parametrize("num_blocks", [300, 12], ids=["roomy", "small"])
@pytest.mark.parametrize("family", ["llama", "mistral", "gemma3"])
def test_guesses_change_no_bit(family, num_blocks, subjects, judge, monkeypatch):
    """Windows of eight tokens are crossed by drafts, and requests with drafts preempted."""
    subject = subjects(family)
    plain, _ = run(subject.paged, subject.prompts, 0, num_blocks)
    Knowing.answers = {tuple(o.prompt_ids): o.generated_tokens for o in plain}
    monkeypatch.setattr("engine.speculation.Drafting", Knowing)
    guessed, statistics = run(subject.paged, subject.prompts, 7, num_blocks)
    assert [said(output) for output in guessed] == [said(output) for output in plain]
    judge(subject.compare(guessed))
    num_rejected = statistics.num_drafted_tokens - statistics.num_accepted_tokens
    assert min(statistics.num_accepted_tokens, num_rejected) > 50
    assert (statistics.num_preemptions > 0) == (num_blocks == 12)
    assert statistics.num_free_blocks == statistics.num_blocks
