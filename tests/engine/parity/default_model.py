"""The default model as a subject: prompts from real text and from anywhere in the vocabulary."""

import random

from transformers import PreTrainedModel

from tests.engine.parity.subject import Subject

LONGEST_PROMPT = 900
NUM_SHARED_TOKENS = 320
# One token, and around the ends of pages and chunks.
EDGE_LENGTHS = (1, 2, 15, 16, 17, 63, 64, 65, 255, 256, 257, 511, 513, 600, LONGEST_PROMPT)


class DefaultModel:
    """The model and what prompts are cut from.

    Attributes:
        hf_model: The model, in fp32.
    """

    def __init__(self, hf_model: PreTrainedModel, text: list[int]) -> None:
        """Keep the parts.

        Args:
            hf_model: The model.
            text: Token ids of a long text.
        """
        self.hf_model = hf_model
        self._text = text

    def subject(self, lengths: list[int], max_new_tokens: int, *, spare_tokens: int) -> Subject:
        """Return the model with prompts of these lengths and the oracle's answers."""
        return Subject(
            self.hf_model, self._prompts(lengths), max_new_tokens, spare_tokens=spare_tokens
        )

    def _prompts(self, lengths: list[int]) -> list[list[int]]:
        """Cut prompts in turn from the text, from any tokens, and behind a common beginning."""
        source = random.Random(0)
        vocab_size = self.hf_model.config.vocab_size
        shared = self._text[:NUM_SHARED_TOKENS]
        prompts = []
        for index, length in enumerate(lengths):
            start = source.randrange(NUM_SHARED_TOKENS, len(self._text) - LONGEST_PROMPT)
            piece = self._text[start : start + length]
            if index % 3 == 1:
                piece = [source.randrange(vocab_size) for _ in range(length)]
            elif index % 3 == 2:
                piece = (shared[: length - length // 4] + piece)[:length]
            prompts.append(piece)
        return prompts


def varied_lengths(count: int) -> list[int]:
    """Return this many lengths from 1 to the longest; short ones are more frequent."""
    source = random.Random(0)
    lengths = list(EDGE_LENGTHS)
    while len(lengths) < count:
        lengths.append(round(LONGEST_PROMPT ** source.random()))
    source.shuffle(lengths)
    return lengths
