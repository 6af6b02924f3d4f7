"""Whether compiled code computes what the model computes: a few short prompts, both ways.

Runs wherever a graph is compiled, also between two steps of a running engine; the engine's own
cache is not touched.
"""

from collections.abc import Callable

import torch

from engine.attention.paged_attention import PagedAttention
from engine.batch import BatchInputs
from engine.models.causal_lm import CausalLM
from engine.runners.eager import EagerRunner

# Lengths of the prompts; each lies in a block of its own, and the smallest page has 4 positions.
PROMPT_LENGTHS = (3, 2, 1)
NUM_BLOCKS = len(PROMPT_LENGTHS)
# As in the check of a model that is taken over: rounding stays below, mistakes do not.
TOLERANCE = {torch.float32: 1e-3}
HALF_TOLERANCE = 5e-2

Forward = Callable[[BatchInputs, PagedAttention], torch.Tensor]


class CompiledDiffersError(RuntimeError):
    """Compiled code computes something else than the model."""


class CompileProbe:
    """Compares forwards of a few tokens."""

    def __init__(self, model: CausalLM, make_attention: Callable[[], PagedAttention]) -> None:
        """Remember what to compare with.

        Args:
            model: The model.
            make_attention: Makes an attention over `NUM_BLOCKS` blocks of its own.
        """
        self._model = model
        self._make_attention = make_attention

    def check(self, forward: Forward, *, is_decode: bool, num_rows: int = 0) -> float:
        """Compare logits.

        Args:
            forward: Computes a batch with compiled code, over the attention it is given.
            is_decode: Let it compute the tokens after the prompts, else the prompts.
            num_rows: How many prompts at most; 0 takes all.

        Returns:
            The largest difference, relative to the largest logit.

        Raises:
            CompiledDiffersError: They differ by more than rounding explains. If they do not, the
                most likely token is the same, or within twice that of the other one.
        """
        lengths = PROMPT_LENGTHS[:num_rows] if num_rows else PROMPT_LENGTHS
        own, ours = self._make_attention(), self._make_attention()
        inputs = self._inputs(own.cache.page_size, [0] * len(lengths), list(lengths))
        if is_decode:
            for attention in (own, ours):
                EagerRunner(self._model, attention).forward(inputs)
            inputs = self._inputs(own.cache.page_size, list(lengths), [1] * len(lengths))
        expected = EagerRunner(self._model, own).forward(inputs).float()
        computed = forward(inputs, ours).float()
        return _compare(expected, computed, TOLERANCE.get(self._model.dtype, HALF_TOLERANCE))

    def _inputs(self, page_size: int, first: list[int], counts: list[int]) -> BatchInputs:
        """Return rows of `counts` tokens from the positions `first` on."""
        model = self._model
        positions = [
            (row, start + i)
            for row, (start, count) in enumerate(zip(first, counts, strict=True))
            for i in range(count)
        ]
        starts = [0]
        for count in counts:
            starts.append(starts[-1] + count)

        def on_device(values: list[int]) -> torch.Tensor:
            return torch.tensor(values, dtype=torch.int64, device=model.device)

        return BatchInputs(
            input_ids=on_device([(7919 * p + 13 * r + 5) % model.vocab_size for r, p in positions])[
                None
            ],
            position_ids=on_device([position for _, position in positions])[None],
            slots=on_device([row * page_size + position for row, position in positions]),
            block_table=torch.arange(len(counts), dtype=torch.int32)[:, None],
            query_starts=starts,
            context_lengths=[start + count for start, count in zip(first, counts, strict=True)],
            sample_indices=on_device([start - 1 for start in starts[1:]]),
        )


def _compare(expected: torch.Tensor, computed: torch.Tensor, tolerance: float) -> float:
    """Return the relative difference of two [N, V]; see `CompileProbe.check`."""
    scale = float(expected.abs().max()) or 1.0
    error = float((expected - computed).abs().max()) / scale
    # Not >, which lets NaN pass.
    if not error <= tolerance:
        raise CompiledDiffersError(
            f"compiled logits differ by {error:.2g} of the largest, more than {tolerance:.0e}"
        )
    return error
