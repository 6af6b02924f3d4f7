"""Runs a step's forward as code that torch.compile has made of the model.

Engine thread, or the caller's while the engine warms up. There are two paths: batches in which
every row computes one token and samples (decode), and all others (varlen). Each has a graph for any
size, or one for each of a few sizes. A graph is compiled and checked against the model as it is
when the first batch asks for it, or before any does, by `prepare`.

Nothing that goes wrong here fails a request. What the compiler cannot do, or does wrongly, is done
by the model as it is, from then on; one line says why.
"""

import logging
import time
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch.nn import functional

from engine.attention.operator import OperatorAttention
from engine.attention.paged_attention import PagedAttention
from engine.batch import BatchInputs
from engine.models.causal_lm import CausalLM
from engine.models.fused_decoder import FusedDecoder
from engine.models.opaque_decoder import OpaqueDecoder
from engine.models.replacement import Replacement
from engine.models.rotary_operator import find_rotary
from engine.runners.compile_options import CompileOptions
from engine.runners.compile_probe import CompileProbe
from engine.runners.eager import EagerRunner

logger = logging.getLogger(__name__)

# Least tokens of a varlen batch that has a size of its own.
MIN_VARLEN_SIZE = 16
# A size of 1 would be compiled as a constant of the model.
MIN_DYNAMIC_SIZE = 2
# Compilers can be long-winded; what is wrong stands first.
MAX_REASON = 300

Compute = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass(frozen=True, slots=True)
class CompiledPaths:
    """What is compiled, and how.

    Attributes:
        varlen: Batches of any kind; None leaves them to the model as it is.
        decode: Batches in which every row computes one token and samples; None likewise.
        max_tokens: Tokens of the largest varlen batch.
        max_rows: Rows of the largest decode batch.
    """

    varlen: CompileOptions | None
    decode: CompileOptions | None
    max_tokens: int
    max_rows: int


@dataclass(frozen=True, slots=True)
class _Shape:
    """Which batches share a graph.

    Attributes:
        is_decode: Of which path.
        num_tokens: What they are padded to; 0 for any number from `MIN_DYNAMIC_SIZE` on.
    """

    is_decode: bool
    num_tokens: int

    def describe(self) -> str:
        size = f"{self.num_tokens} tokens" if self.num_tokens else "any number of tokens"
        return f"{'decode' if self.is_decode else 'varlen'} batches of {size}"


class CompiledRunner:
    """`Runner` over compiled graphs, with the model as it is behind them.

    Attributes:
        failure: Why nothing is compiled any more, or None.
    """

    def __init__(
        self,
        model: CausalLM,
        attention: PagedAttention,
        paths: CompiledPaths,
        make_probe: Callable[[], PagedAttention],
    ) -> None:
        """Compile nothing yet.

        Args:
            model: The model.
            attention: Attention over this engine's cache.
            paths: What is compiled.
            make_probe: Makes the same attention over a cache of a few blocks of its own.
        """
        self.failure: Exception | None = None
        self._model = model
        self._attention = attention
        self._eager = EagerRunner(model, attention)
        self._paths = paths
        self._probe = CompileProbe(model, make_probe)
        self._operator = OperatorAttention(attention, model.device)
        self._decoders = [OpaqueDecoder(r) for r in model.in_place if isinstance(r, FusedDecoder)]
        self._replacements = _for_compiler(model, self._decoders)
        self._graphs: dict[_Shape, Compute] = {}

    def prepare(self) -> None:
        """Compile and check every graph that a batch may ask for."""
        for shape in self._shapes():
            if self.failure is not None:
                return
            try:
                self._graph(shape)
            except Exception as error:  # noqa: BLE001 - whatever a compiler may raise
                self._give_up(error)

    def forward(self, inputs: BatchInputs) -> torch.Tensor:
        """See `Runner.forward`."""
        # What looks at hidden states on their way is no part of a graph.
        shape = None if self.failure or inputs.pooled else self._shape_of(inputs)
        if shape is None:
            return self._eager.forward(inputs)
        try:
            return self._run(self._graph(shape), shape, inputs, self._attention)
        except Exception as error:  # noqa: BLE001 - whatever compiled code may raise
            # If this raises too, it is the batch that is at fault and not the compiler.
            logits = self._eager.forward(inputs)
            self._give_up(error)
            return logits

    def _give_up(self, error: Exception) -> None:
        self.failure = error
        self._graphs.clear()
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        logger.warning(
            "compiled forwards are given up and the model runs as it is: %s: %s",
            type(error).__name__,
            " ".join(lines)[:MAX_REASON],
        )

    def _shapes(self) -> Iterator[_Shape]:
        """Yield what a batch may ask for, the largest first."""
        paths = self._paths
        for options, is_decode, least, most in (
            (paths.varlen, False, MIN_VARLEN_SIZE, paths.max_tokens),
            (paths.decode, True, 1, paths.max_rows),
        ):
            if options is None:
                continue
            if options.is_dynamic:
                if not is_decode or most >= MIN_DYNAMIC_SIZE:
                    yield _Shape(is_decode, 0)
                if is_decode:
                    yield _Shape(is_decode, 1)
                continue
            size = _next_size(most, least)
            while size >= least:
                yield _Shape(is_decode, size)
                size //= 2

    def _shape_of(self, inputs: BatchInputs) -> _Shape | None:
        """Return which graph computes a batch, or None if no one does."""
        num_tokens = inputs.input_ids.shape[1]
        is_decode = num_tokens == len(inputs.context_lengths) == len(inputs.sample_indices)
        options = self._paths.decode if is_decode else self._paths.varlen
        if options is None:
            return None
        if options.is_dynamic:
            return _Shape(is_decode, 1 if is_decode and num_tokens == 1 else 0)
        return _Shape(is_decode, _next_size(num_tokens, 1 if is_decode else MIN_VARLEN_SIZE))

    def _graph(self, shape: _Shape) -> Compute:
        """Return a compiled and checked graph.

        Raises:
            Exception: It cannot be compiled, or does not compute what the model computes.
        """
        graph = self._graphs.get(shape)
        if graph is None:
            options = self._paths.decode if shape.is_decode else self._paths.varlen
            assert options is not None
            began = time.perf_counter()
            graph = options.compile(_with_own_code(self._model.compute_logits))
            error = self._probe.check(
                lambda inputs, attention: self._run(graph, shape, inputs, attention),
                is_decode=shape.is_decode,
                num_rows=shape.num_tokens if shape.is_decode else 0,
            )
            logger.info(
                "compiled %s in %.1f s (%s); logits differ by %.1g of the largest",
                shape.describe(),
                time.perf_counter() - began,
                options.describe(),
                error,
            )
            self._graphs[shape] = graph
        return graph

    def _run(
        self, graph: Compute, shape: _Shape, inputs: BatchInputs, attention: PagedAttention
    ) -> torch.Tensor:
        """Compute a batch with a graph."""
        num_tokens = len(inputs.slots)
        num_wanted = len(inputs.sample_indices)
        attention.begin_step(inputs)
        self._operator.target = attention
        self._operator.num_tokens = num_tokens
        for decoder in self._decoders:
            decoder.num_tokens = num_tokens
        size = shape.num_tokens or max(num_tokens, MIN_DYNAMIC_SIZE)
        ids = _padded(inputs.input_ids, size)
        positions = _padded(inputs.position_ids, size)
        indices = _padded(
            inputs.sample_indices, size if shape.is_decode else max(num_wanted, MIN_DYNAMIC_SIZE)
        )
        if not shape.num_tokens:
            torch._dynamo.mark_dynamic(ids, 1)
            torch._dynamo.mark_dynamic(positions, 1)
        if not (shape.num_tokens and shape.is_decode):
            torch._dynamo.mark_dynamic(indices, 0)
        # A decoder that is one operator attends by itself.
        layers_attend_to = attention if self._decoders else self._operator
        with self._model.in_use(layers_attend_to, self._replacements):
            return graph(ids, positions, indices)[:num_wanted]


def _for_compiler(model: CausalLM, decoders: list[OpaqueDecoder]) -> list[Replacement]:
    """Return what is in place while the model is compiled, and while compiled code runs."""
    if decoders:
        others = [r for r in model.in_place if not isinstance(r, FusedDecoder)]
        return [*decoders, *others]
    return [*model.in_place, *find_rotary(model.hf_model)]


def _padded(values: torch.Tensor, size: int) -> torch.Tensor:
    """Return integers with zeros after them, `size` in all along the last dimension."""
    missing = size - values.shape[-1]
    return functional.pad(values, (0, missing)) if missing else values


def _next_size(num_tokens: int, least: int) -> int:
    """Return the smallest power of two that is at least both."""
    return max(least, 1 << (num_tokens - 1).bit_length())


def _with_own_code(function: Compute) -> Compute:
    """Return a function that calls another one and shares its code with no other function.

    What torch compiles hangs on the code, with a limit for each: engines would use up each other's.
    """

    def compute(ids: torch.Tensor, positions: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
        return function(ids, positions, indices)

    code = compute.__code__.replace()  # a copy
    return types.FunctionType(code, compute.__globals__, closure=compute.__closure__)
