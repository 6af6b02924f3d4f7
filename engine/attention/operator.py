"""A step's attention, cache included, as one operator that the compiler does not look into.

Engine thread only. A compiled forward knows its engine by a number, and the operator finds by it
the attention whose step it is: what depends on the step (slots, block tables, plans) never enters
the compiled code, so no step compiles anything anew, and no two engines meet. The cache does not
enter it either. It is written behind the compiler's back; a tensor of one element, which each call
is said to change, stands for it and keeps the calls in their order.
"""

import itertools
import weakref

import torch

from engine.attention.interface import AttentionOptions, StepAttention
from engine.kernels.operators import ANY_DEVICE, define_operator

_NUMBERS = itertools.count()


class OperatorAttention:
    """`StepAttention` that hands on to another one, from inside of compiled code.

    Attributes:
        target: Who attends; whoever runs a forward sets it, and tells `target` of the step.
        num_tokens: Tokens of the step; the compiled code may have been given more, which are
            padding: they are not stored, and the rows that answer them are zeros.
    """

    def __init__(self, target: StepAttention, device: torch.device) -> None:
        """Take a number.

        Args:
            target: Who attends.
            device: The model's.
        """
        self.target = target
        self.num_tokens = 0
        self._number = next(_NUMBERS)
        self._cache = torch.zeros(1, dtype=torch.int64, device=device)
        _KNOWN[self._number] = self

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        options: AttentionOptions,
    ) -> torch.Tensor:
        """See `StepAttention.attend`."""
        return _attend(
            query,
            key,
            value,
            self._cache,
            options.sinks,
            self._number,
            layer,
            options.scaling,
            options.sliding_window,
            options.softcap,
        )


_KNOWN: weakref.WeakValueDictionary[int, OperatorAttention] = weakref.WeakValueDictionary()


def _compute(  # noqa: PLR0913 - an operator takes tensors and numbers only
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cache: torch.Tensor,
    sinks: torch.Tensor | None,
    number: int,
    layer: int,
    scaling: float,
    window: int | None,
    softcap: float | None,
) -> torch.Tensor:
    known = _KNOWN[number]
    count = known.num_tokens
    options = AttentionOptions(scaling, window, softcap, sinks)
    attended = known.target.attend(layer, query[:count], key[:count], value[:count], options)
    if count == query.shape[0]:
        return attended
    padded = query.new_zeros(query.shape[0], query.shape[1], value.shape[2])
    padded[:count] = attended
    return padded


_attend = define_operator(
    "attend(Tensor query, Tensor key, Tensor value, Tensor(a!) cache, Tensor? sinks, int number, "
    "int layer, float scaling, int? window, float? softcap) -> Tensor",
    _compute,
    lambda query, key, value, *_: query.new_empty(*query.shape[:2], value.shape[2]),
    device=ANY_DEVICE,
    # A recorded graph would attend again as in the step that was recorded.
    tags=(torch.Tag.cudagraph_unsafe,),
)
