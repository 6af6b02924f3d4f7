"""The oracle: `model.generate`, one prompt at a time, and how the engine is held to it.

Two correct programs may round differently, and where the two best logits are as good as equal the
greedy token follows the rounding. Such a place is a near tie: it is counted and reported. Any other
difference is a mistake.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import PreTrainedModel

from engine import GenerationOutput

# The two logits that a near tie lies between differ by less than this.
NEAR_TIE_GAP = 1e-4


@dataclass(frozen=True, slots=True)
class Difference:
    """One token that is not the model's own choice.

    Attributes:
        prompt: Index of the prompt.
        position: Index of the token in the answer.
        token: What the engine chose.
        expected: What the model chooses.
        gap: How much the lesser of the two lies below the best logit.
    """

    prompt: int
    position: int
    token: int
    expected: int
    gap: float

    @property
    def is_near_tie(self) -> bool:
        """Whether rounding explains it."""
        return self.gap < NEAR_TIE_GAP

    def __str__(self) -> str:
        return (
            f"prompt {self.prompt}, token {self.position}: {self.token} instead of "
            f"{self.expected}, logits {self.gap:.2g} apart"
        )


@dataclass(slots=True)
class Parity:
    """How a run compares with the oracle.

    Attributes:
        num_tokens: Tokens compared.
        near_ties: Places where two tokens were as good as each other.
        mistakes: All other differences.
    """

    num_tokens: int = 0
    near_ties: list[Difference] = field(default_factory=list)
    mistakes: list[str] = field(default_factory=list)

    def merge(self, other: "Parity") -> None:
        """Add another run's counts."""
        self.num_tokens += other.num_tokens
        self.near_ties += other.near_ties
        self.mistakes += other.mistakes

    def check(self) -> None:
        """Fail, with the first differences, if rounding does not explain all of them."""
        assert not self.mistakes, str(self)

    def __str__(self) -> str:
        lines = [
            f"{self.num_tokens} tokens compared: {len(self.mistakes)} mistakes, "
            f"{len(self.near_ties)} near ties (logits less than {NEAR_TIE_GAP:g} apart)",
            *(f"  mistake: {mistake}" for mistake in self.mistakes[:10]),
            *(f"  near tie: {near_tie}" for near_tie in self.near_ties[:10]),
        ]
        return "\n".join(lines)


def reference_tokens(
    model: PreTrainedModel, prompts: Sequence[Sequence[int]], max_new_tokens: int, **options: Any
) -> list[list[int]]:
    """Return what `model.generate` answers to each prompt alone, greedily."""
    answers = []
    oracle: Any = model
    for prompt in prompts:
        ids = torch.tensor([prompt], device=model.device)
        output = oracle.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=max_new_tokens,
            do_sample=False,
            **options,
        )
        answers.append(output[0, len(prompt) :].tolist())
    return answers


def compare(
    model: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    references: Sequence[Sequence[int]],
    outputs: Sequence[GenerationOutput] | Mapping[str, GenerationOutput],
) -> Parity:
    """Compare greedy outputs with the reference, prompt by prompt."""
    parity = Parity()
    terminal = list(outputs.values()) if isinstance(outputs, Mapping) else list(outputs)
    rows = zip(prompts, references, terminal, strict=True)
    for index, (prompt, reference, output) in enumerate(rows):
        tokens = output.generated_tokens
        parity.num_tokens += len(tokens)
        if output.error is not None:
            parity.mistakes.append(f"prompt {index} failed: {output.error}")
        elif tokens != reference:
            _sort_differences(parity, _differences(model, index, prompt, reference, tokens))
    return parity


def _sort_differences(parity: Parity, differences: list[Difference] | str) -> None:
    if isinstance(differences, str):
        parity.mistakes.append(differences)
        return
    parity.near_ties += [difference for difference in differences if difference.is_near_tie]
    parity.mistakes += [str(difference) for difference in differences if not difference.is_near_tie]


def _differences(
    model: PreTrainedModel,
    index: int,
    prompt: Sequence[int],
    reference: Sequence[int],
    tokens: Sequence[int],
) -> list[Difference] | str:
    """Return where an answer leaves the model's own choices.

    From the first difference on there is no reference any more: the rest is held to what the model
    says after the tokens that the engine has chosen.
    """
    pairs = enumerate(zip(tokens, reference, strict=False))
    first = next((position for position, (ours, its) in pairs if ours != its), None)
    if first is None:
        return f"prompt {index}: {len(tokens)} tokens instead of {len(reference)}"
    ids = torch.tensor([[*prompt, *tokens]], device=model.device)
    with torch.inference_mode():
        logits = model(input_ids=ids, use_cache=False).logits[0, len(prompt) - 1 : -1].float()
    expected = [reference[first], *logits[first + 1 :].argmax(dim=-1).tolist()]
    return [
        Difference(index, position, token, best, _gap(logits[position], token, best))
        for position, (token, best) in enumerate(
            zip(tokens[first:], expected, strict=True), start=first
        )
        if token != best
    ]


def _gap(logits: torch.Tensor, token: int, other: int) -> float:
    return float(logits.max() - torch.minimum(logits[token], logits[other]))
