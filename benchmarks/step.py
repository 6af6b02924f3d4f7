"""Where the time of a step of one request goes, in one run.

    python -m benchmarks.step                       the default model in every way to store it
    python -m benchmarks.step MODEL --weights fp32

    step        from one token to the next, as the engine notes them
    products    the same products and the same attention over as many positions, and nothing else:
                the decoder's call without norms and rotation, and the head, less what gates take
    rest        what is left: norms, rotation, gates, rotary tables, Python, the engine's own work
    weights     bytes a second of the weights that the products read, the whole model's
    of reading  these bytes summed by torch, from pages as large, over what the products took

Only for decoders that are one call of our kernels. Steps and products take turns, and of each turn
the shortest tenth counts; what is printed is the median of the turns.
"""

import argparse
import dataclasses
import itertools
import statistics
import sys
import time
from collections.abc import Callable, Sequence

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

import engine
from benchmarks.engine import load
from benchmarks.host import print_facts
from benchmarks.machine import describe_machine
from engine.attention.cpu import CpuBackend
from engine.attention.paged_attention import PagedAttention
from engine.batch import BatchInputs
from engine.cache.paged_cache import PagedCache
from engine.kernels.cpu.decoder import Decoder, DecoderLayer, GatedMLP
from engine.kernels.cpu.library import kernels
from engine.kernels.cpu.linear import LinearView
from engine.kernels.cpu.panel_memory import panel_memory
from engine.kernels.cpu.rows import gate_mul
from engine.models.fused_decoder import FusedDecoder
from engine.models.quantized_modules import QuantizedLinear
from server.environment import cache_folder
from server.model_store import find_model
from server.settings import ModelSettings

PAGE_SIZE = 256
PROMPT_TOKENS = 100
NEW_TOKENS = 64
# What is summed at a time: a layer's weights.
PIECE_BYTES = 7 << 20
# Milliseconds from one token to the next, of products and attention alone, and of plain reading.
Turn = tuple[float, float, float]


def undisturbed(seconds: Sequence[float]) -> float:
    """Return what one in ten stays below, in milliseconds: what else runs here only adds."""
    return statistics.quantiles(seconds, n=10)[0] * 1e3


def time_of(function: Callable[[], object], count: int) -> float:
    """Return how long a call takes, in milliseconds."""
    times = []
    for _ in range(count):
        begin = time.perf_counter()
        function()
        times.append(time.perf_counter() - begin)
    return undisturbed(times)


def measure_step(model: engine.PagedModel) -> float:
    """Return the milliseconds from one token of a request to the next."""
    outputs = model.generate_batch(
        [list(range(PROMPT_TOKENS))],
        continuous_batching_config=engine.ContinuousBatchingConfig(num_blocks=4),
        record_timestamps=True,
        warmup=False,
        max_new_tokens=NEW_TOKENS,
        do_sample=False,
        ignore_eos=True,
    )
    (output,) = outputs.values()
    assert output.timestamps is not None
    return undisturbed([b - a for a, b in itertools.pairwise(output.timestamps)])


class Reading:
    """A plain sum over as many bytes as a model's weights take."""

    def __init__(self, num_bytes: int) -> None:
        """Take memory of the kind that weights are in."""
        numbers = panel_memory().empty(num_bytes // 4, dtype=torch.float32)
        self._pieces = numbers.fill_(1).split(PIECE_BYTES // 4)

    def measure(self, count: int) -> float:
        """Return the milliseconds that it takes."""

        def run() -> None:
            for piece in self._pieces:
                piece.sum()

        return time_of(run, count)


class Products:
    """The products and the attention of a step of one token, over a cache of their own.

    Attributes:
        num_bytes: Of the weights that are read; experts are not counted.
    """

    def __init__(self, model: engine.PagedModel) -> None:
        """Lay out a step in the middle of what `measure_step` runs."""
        decoders = [part for part in model.causal_lm.in_place if isinstance(part, FusedDecoder)]
        if not decoders:
            raise SystemExit("this model's decoder is not one call, so its parts cannot be told")
        geometry = model.geometry
        cache = PagedCache(
            geometry.layers, 1, PAGE_SIZE, dtype=torch.float32, device=torch.device("cpu"),
            heads_first=True,
        )  # fmt: skip
        backend = CpuBackend(PAGE_SIZE, kernels())
        self._attention = PagedAttention(cache, backend, geometry.layer_indices)
        self._attention.begin_step(_one_token(PROMPT_TOKENS + NEW_TOKENS // 2))
        self._model = model
        with model.causal_lm.in_use(self._attention):
            self._step = decoders[0].cached_step()
        self._layers = decoders[0].describe()
        first = geometry.layers[0]
        heads = (first.num_query_heads, first.num_kv_heads)
        self._bare = Decoder(kernels(), [_without_rows(layer) for layer in self._layers], *heads)
        views = [view for layer in self._layers for view in _views(layer)]
        self.num_bytes = sum(view.panels.nbytes for view in views) + _head_bytes(model)

    def measure(self, count: int) -> float:
        """Return the milliseconds that they take."""
        step = self._step
        assert step is not None
        # Zeros stay zeros through all layers, and are multiplied like other numbers.
        x = torch.zeros(1, self._layers[0].qkv.depth)
        head = self._model.hf_model.get_output_embeddings()

        def run() -> None:
            self._bare.run(x, [], step)
            # Behind it as in a step, so that neither finds its weights in a cache.
            head(x)

        with self._model.causal_lm.in_use(self._attention):
            products_and_gates = time_of(run, count)
        mlps = [layer.mlp for layer in self._layers if isinstance(layer.mlp, GatedMLP)]
        if not mlps:
            return products_and_gates
        # Those of all layers as rows of one call.
        gated, activation = torch.zeros(len(mlps), 2 * mlps[0].down.depth), mlps[0].activation
        return products_and_gates - time_of(lambda: gate_mul(kernels(), gated, activation), count)


def _one_token(context: int) -> BatchInputs:
    """Return a step of one token that sees `context` positions."""
    none = torch.empty(0, dtype=torch.int64)
    table = torch.zeros(1, 1, dtype=torch.int32)
    return BatchInputs(none, none, torch.tensor([context - 1]), table, [0, 1], [context], none)


def _views(layer: DecoderLayer) -> list[LinearView]:
    views = [layer.qkv, layer.out]
    if isinstance(layer.mlp, GatedMLP):
        views += [layer.mlp.gate_up, layer.mlp.down]
    return views


def _head_bytes(model: engine.PagedModel) -> int:
    head = model.hf_model.get_output_embeddings()
    if isinstance(head, QuantizedLinear):
        return head.panels.nbytes
    return int(head.weight.nbytes)


def _without_rows(layer: DecoderLayer) -> DecoderLayer:
    """Return a layer without what is done to its rows one by one, gates excepted."""
    return dataclasses.replace(
        layer,
        before_attention=None,
        query_norm=None,
        key_norm=None,
        after_attention=None,
        before_mlp=None,
        after_mlp=None,
        factor=1.0,
        rotation=None,
    )


def measure(model: engine.PagedModel, rounds: int) -> tuple[int, list[Turn]]:
    """Return the bytes of the weights, and the times of each turn but the first, which warms up."""
    products = Products(model)
    reading = Reading(products.num_bytes)
    turns = [
        (measure_step(model), products.measure(NEW_TOKENS), reading.measure(NEW_TOKENS))
        for _ in range(rounds + 1)
    ]
    return products.num_bytes, turns[1:]


def describe(name: str, num_bytes: int, turns: Sequence[Turn]) -> tuple[str, ...]:
    """Return the row of the table for one way to store the weights."""
    steps, products, _ = zip(*turns, strict=True)
    rest = [step - alone for step, alone, _ in turns]
    shares = [read / alone for _, alone, read in turns]
    return (
        name,
        *(f"{statistics.median(times):.2f}" for times in (steps, products, rest)),
        f"{min(rest):.2f} to {max(rest):.2f}",
        f"{num_bytes / statistics.median(products) / 1e6:.1f} GB/s",
        f"{statistics.median(shares):.0%} ({min(shares):.0%} to {max(shares):.0%})",
    )


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.step",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", nargs="?", default="", help="local folder or hub name")
    parser.add_argument(
        "--weights",
        nargs="+",
        default=["fp32", "bf16", "auto", "auto+int8"],
        metavar="FORMAT[+int8]",
        help="one row each. +int8: with activations of 8 bits",
    )
    parser.add_argument("--rounds", type=int, default=7, metavar="N")
    parser.add_argument("--threads", type=int, default=0, help="0 takes torch's choice")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> None:
    """Measure and print."""
    options = parse_arguments(arguments)
    if options.threads:
        torch.set_num_threads(options.threads)
    stored = find_model(ModelSettings(path=options.model), cache_folder())
    table = Table(
        "weights", "step, ms", "products, ms", "rest, ms", "in all turns", "weights", "of reading"
    )
    for name in track(options.weights, "Measuring", console=Console(stderr=True)):
        table.add_row(*describe(name, *measure(load(stored, name), options.rounds)))
    console = Console(width=None if sys.stdout.isatty() else 100)
    print_facts(console, describe_machine(), "step", arguments)
    console.print(table)


if __name__ == "__main__":
    main(sys.argv[1:])
