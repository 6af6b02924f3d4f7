"""A decoder that is one call of our kernels, as an operator that the compiler does not look into.

For compiled forwards only. Nothing in that call is for a compiler to improve, and taken apart it
would be slower; what is left to compile is what stands around it.
"""

import itertools
import weakref
from typing import Any

import torch
from transformers.modeling_outputs import MoeModelOutputWithPast

from engine.kernels.operators import define_operator
from engine.models.fused_decoder import FusedDecoder
from engine.models.replacement import Forward, Replacement

_NUMBERS = itertools.count()


class OpaqueDecoder(Replacement):
    """Calls a `FusedDecoder`, as an operator.

    Attributes:
        num_tokens: Tokens of the step; the compiled code may have been given more, which are
            padding: they are not stored, and the rows that answer them are zeros.
    """

    def __init__(self, decoder: FusedDecoder) -> None:
        """Take a number for the decoder."""
        super().__init__(decoder.module, decoder.sources)
        self.num_tokens = 0
        self._decoder = decoder
        self._number = next(_NUMBERS)
        # Stands for the cache, which is written behind the compiler's back.
        self._cache = torch.zeros(1, dtype=torch.int64)
        _KNOWN[self._number] = self

    def build(self) -> Forward:
        """See `Replacement.build`."""
        cache, number = self._cache, self._number
        width = self._decoder.width

        def forward(
            input_ids: torch.Tensor, position_ids: torch.Tensor, **_: Any
        ) -> MoeModelOutputWithPast:
            hidden: Any = _run_decoder(input_ids, position_ids, cache, number, width)
            return MoeModelOutputWithPast(last_hidden_state=hidden)

        return forward

    def compute(self, input_ids: torch.Tensor, position_ids: torch.Tensor) -> torch.Tensor:
        """Return [1, T, W], the padding's rows zero; the attention is the one in place."""
        forward = self._decoder.refresh()
        assert forward is not None, "a decoder is in place whose weights are of another kind"
        count = self.num_tokens
        hidden: torch.Tensor = forward(
            input_ids[:, :count], position_ids[:, :count]
        ).last_hidden_state
        if count == input_ids.shape[1]:
            return hidden
        padded = hidden.new_zeros(1, input_ids.shape[1], hidden.shape[2])
        padded[:, :count] = hidden
        return padded


_KNOWN: weakref.WeakValueDictionary[int, OpaqueDecoder] = weakref.WeakValueDictionary()


_run_decoder = define_operator(
    "decoder(Tensor input_ids, Tensor position_ids, Tensor(a!) cache, int number, int width) "
    "-> Tensor",
    lambda ids, positions, cache, number, width: _KNOWN[number].compute(ids, positions),
    lambda ids, positions, cache, number, width: ids.new_empty(
        *ids.shape, width, dtype=torch.float32
    ),
)
