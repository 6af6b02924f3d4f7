"""The CPU kernels against what this machine can do, and against torch, in one run.

    python -m benchmarks.kernels                         the default model's shapes, all rows
    python -m benchmarks.kernels --model qwen3-0.6b --rows 1 8
    python -m benchmarks.kernels --formats bf16 int4 --threads 1

Two limits are measured beside every layer, with the same threads:

    reading     bytes a second of a plain sum over as many bytes as the layer's weights take
    product     torch's best float32 product of two square matrices, 2048 wide

A layer can be no faster than its weights are read, nor than its multiplications are done. "of
limit" is what it reaches of the slower of the two; "x torch" is against torch's float32 layer of
the same shape. Small layers are measured on several copies of their weights, one after another,
so that none is found in the first caches, as in a model none is. Every figure is the best of
several runs that take turns, so that what else the machine does troubles all of them alike; the
machine should be quiet all the same.
"""

import argparse
import itertools
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch.nn import functional

from benchmarks.host import print_facts
from benchmarks.machine import describe_machine
from engine.kernels.cpu.library import kernels
from engine.kernels.cpu.linear import PackedLinear
from engine.kernels.cpu.quantized_linear import Format
from engine.models.quantization import quantize

# Layers of each model: name -> (outputs, inputs).
MODELS = {
    "smollm2-135m": {
        "qkv": (960, 576), "out": (576, 576), "gate_up": (3072, 576), "down": (576, 1536),
        "head": (49152, 576),
    },
    "qwen3-0.6b": {
        "qkv": (4096, 1024), "out": (1024, 2048), "gate_up": (6144, 1024), "down": (1024, 3072),
        "head": (151936, 1024),
    },
    "llama-3.2-1b": {
        "qkv": (3072, 2048), "out": (2048, 2048), "gate_up": (16384, 2048), "down": (2048, 8192),
        "head": (128256, 2048),
    },
}  # fmt: skip
FORMATS = {
    "fp32": None,
    "bf16": Format.BF16,
    "int8-rows": Format.INT8_ROWS,
    "int8": Format.INT8,
    "int4": Format.INT4,
    "w8a8": Format.W8A8,
    "w4a8": Format.W4A8,
}
ROWS = (1, 4, 8, 32, 256)
SQUARE = 2048
# More than the caches that belong to one core.
SPREAD_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Case:
    """One layer in one format, for some rows.

    Attributes:
        layer: Its name.
        shape: (N, K).
        rows: Rows of activations.
        weight_format: A key of `FORMATS`.
    """

    layer: str
    shape: tuple[int, int]
    rows: int
    weight_format: str


@dataclass(frozen=True, slots=True)
class Result:
    """What was measured for a case; seconds.

    Attributes:
        ours: Our kernel.
        torch: Torch's float32 layer.
        reading: A plain reading of as many bytes.
        num_bytes: What the packed weight takes.
    """

    ours: float
    torch: float
    reading: float
    num_bytes: int


def cases(layers: dict[str, tuple[int, int]], options: argparse.Namespace) -> Iterator[Case]:
    """Yield what is measured, in the order of the table."""
    for layer, shape in layers.items():
        for weight_format in options.formats:
            for rows in options.rows:
                yield Case(layer, shape, rows, weight_format)


def best_times(functions: Sequence[Callable[[], object]], seconds: float) -> list[float]:
    """Return the shortest time of each function, in seconds; they take turns."""
    best = [float("inf")] * len(functions)
    for function in functions:
        function()
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for index, function in enumerate(functions):
            begin = time.perf_counter()
            function()
            best[index] = min(best[index], time.perf_counter() - begin)
    return best


def in_turn(
    layers: Sequence[Callable[[torch.Tensor], object]], x: torch.Tensor
) -> Callable[[], object]:
    """Return what applies one layer after another, one in each call."""
    turns = itertools.cycle(layers)
    return lambda: next(turns)(x)


def make_layer(
    weight: torch.Tensor, weight_format: str
) -> tuple[Callable[[torch.Tensor], torch.Tensor], int]:
    """Return a layer of ours, with weights of its own, and how many bytes these take."""
    kind = FORMATS[weight_format]
    if kind is None:
        return PackedLinear(kernels(), weight, None), weight.numel() * 4
    packed = quantize(weight, kind).pack(kernels())
    return packed.linear, packed.panels.numel()


def measure(case: Case, weight: torch.Tensor, seconds: float) -> Result:
    """Measure one case."""
    x = torch.randn(case.rows, case.shape[1])
    first, num_bytes = make_layer(weight, case.weight_format)
    copies = range(1, -(-SPREAD_BYTES // num_bytes))
    ours = [first, *(make_layer(weight, case.weight_format)[0] for _ in copies)]
    count = -(-SPREAD_BYTES // (weight.numel() * 4))
    plain = [weight, *(weight.clone() for _ in range(1, count))]
    theirs = [lambda x, w=w: functional.linear(x, w) for w in plain]
    read = [torch.ones(num_bytes // 4) for _ in ours]
    sums = [lambda _, part=part: part.sum() for part in read]
    turns = [in_turn(layers, x) for layers in (ours, theirs, sums)]
    our_time, torch_time, reading_time = best_times(turns, seconds)
    return Result(our_time, torch_time, reading_time, num_bytes)


def describe(case: Case, result: Result, square_rate: float) -> tuple[str, ...]:
    """Return the row of the table for a case."""
    work = 2 * case.rows * case.shape[0] * case.shape[1]
    limit = max(result.reading, work / square_rate)
    return (
        f"{case.layer} {case.shape[0]}x{case.shape[1]}",
        case.weight_format,
        str(case.rows),
        f"{result.num_bytes / result.ours / 1e9:.1f}",
        f"{result.num_bytes / result.reading / 1e9:.1f}",
        f"{work / result.ours / 1e9:.0f}",
        "reading" if result.reading >= work / square_rate else "product",
        f"{limit / result.ours:.0%}",
        f"{result.torch / result.ours:.2f}",
    )


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.kernels",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", choices=MODELS, default="smollm2-135m", help="whose shapes")
    parser.add_argument("--layers", nargs="+", metavar="NAME", help="qkv, out, gate_up, down, head")
    parser.add_argument("--rows", type=int, nargs="+", default=list(ROWS), metavar="N")
    parser.add_argument("--formats", nargs="+", choices=FORMATS, default=list(FORMATS))
    parser.add_argument("--seconds", type=float, default=0.3, help="for each case (0.3)")
    parser.add_argument("--threads", type=int, default=0, help="0 takes torch's choice")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> None:
    """Measure and print."""
    options = parse_arguments(arguments)
    if options.threads:
        torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    layers = MODELS[options.model]
    if options.layers:
        layers = {name: layers[name] for name in options.layers}
    square = torch.randn(SQUARE, SQUARE)
    table = Table("layer", "weights", "rows", "GB/s", "read GB/s", "GFLOP/s", "limit",
                  "of limit", "x torch")  # fmt: skip
    square_rate, weight, shape = 0.0, square, (0, 0)
    all_cases = list(cases(layers, options))
    for case in track(all_cases, "Measuring", console=Console(stderr=True)):
        if case.shape != shape:
            shape, weight = case.shape, torch.randn(case.shape)
            (square_time,) = best_times([lambda: square @ square], options.seconds)
            square_rate = max(square_rate, 2 * SQUARE**3 / square_time)
        table.add_row(*describe(case, measure(case, weight, options.seconds), square_rate))
    # Wide enough for the table, also into a file.
    console = Console(width=None if sys.stdout.isatty() else 100)
    print_facts(console, describe_machine(), "kernels", arguments)
    console.print(f"{'product':>14}  {square_rate / 1e9:.0f} GFLOP/s, {SQUARE} wide")
    console.print(table)


if __name__ == "__main__":
    main(sys.argv[1:])
