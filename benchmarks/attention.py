"""The CPU attention kernel against reading its keys and values, and against torch's fused one.

    python -m benchmarks.attention
    python -m benchmarks.attention --model llama-3.2-1b --context 1000 4000

One layer over a paged cache whose blocks lie in any order.

    decode     one query over a context; "of reading" is against a plain sum over as many bytes as
               its keys and values take. Several caches take turns, so that none is found in the
               caches of the processor
    prefill    a whole prompt; "x torch" is against scaled_dot_product_attention, with the
               keys of shared heads copied for it beforehand
"""

import argparse
import itertools
import sys
from collections.abc import Callable

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch.nn import functional

from benchmarks.host import print_facts
from benchmarks.kernels import SPREAD_BYTES, best_times
from benchmarks.machine import describe_machine
from engine.attention.cpu import CpuBackend
from engine.attention.interface import AttentionOptions
from engine.batch import BatchInputs
from engine.kernels.cpu.library import kernels

# Query heads, key heads, width of a head.
MODELS = {"smollm2-135m": (9, 3, 64), "qwen3-0.6b": (16, 8, 128), "llama-3.2-1b": (32, 8, 64)}
PAGE_SIZE = 32

Measure = Callable[[tuple[int, int, int], int, float], tuple[str, ...]]


class Layer:
    """A request's keys and values in a cache of its own, and the backend that reads them."""

    def __init__(self, heads: int, kv_heads: int, width: int, context: int, new: int) -> None:
        """Fill a cache with `context` positions, of which the last `new` are this step's."""
        num_pages = -(-context // PAGE_SIZE)
        shape = (num_pages * PAGE_SIZE, kv_heads, width)
        self.query = torch.randn(new, heads, width)
        self.keys, self.values = torch.randn(shape), torch.randn(shape)
        self.options = AttentionOptions(width**-0.5)
        none = torch.empty(0, dtype=torch.int64)
        table = torch.randperm(num_pages, dtype=torch.int32)[None].contiguous()
        self.backend = CpuBackend(PAGE_SIZE, kernels())
        self.backend.plan(BatchInputs(none, none, none, table, [0, new], [context], none))

    def attend(self) -> torch.Tensor:
        """Compute the layer: [new, heads, width]."""
        return self.backend.attend(self.query, self.keys, self.values, self.options)


def measure_decode(shape: tuple[int, int, int], context: int, seconds: float) -> tuple[str, ...]:
    """Return the cells of one query over a context."""
    num_bytes = 2 * 4 * context * shape[1] * shape[2]
    layers = [Layer(*shape, context, 1) for _ in range(-(-SPREAD_BYTES // num_bytes))]
    parts = [torch.ones(num_bytes // 4) for _ in layers]
    ours, sums = itertools.cycle(layers), itertools.cycle(parts)
    times = best_times([lambda: next(ours).attend(), lambda: next(sums).sum()], seconds)
    rate, reading = (num_bytes / time / 1e9 for time in times)
    return ("decode", str(context), f"{rate:.1f} GB/s", f"{reading:.1f} GB/s",
            f"{rate / reading:.0%} of reading")  # fmt: skip


def measure_prefill(shape: tuple[int, int, int], length: int, seconds: float) -> tuple[str, ...]:
    """Return the cells of a prompt."""
    heads, _, width = shape
    layer = Layer(*shape, length, length)
    query, keys, values = (torch.randn(1, heads, length, width) for _ in range(3))
    times = best_times(
        [
            layer.attend,
            lambda: functional.scaled_dot_product_attention(query, keys, values, is_causal=True),
        ],
        seconds,
    )
    rate, theirs = (2 * length * length * heads * width / time / 1e9 for time in times)
    return ("prefill", str(length), f"{rate:.0f} GFLOP/s", f"{theirs:.0f} GFLOP/s",
            f"{rate / theirs:.2f} x torch")  # fmt: skip


def parse_arguments(arguments: list[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.attention",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", choices=MODELS, default="smollm2-135m", help="whose shape")
    parser.add_argument("--context", type=int, nargs="+", default=[500, 4000], metavar="N")
    parser.add_argument("--prompt", type=int, nargs="+", default=[100, 1000], metavar="N")
    parser.add_argument("--seconds", type=float, default=1.0, help="for each case (1)")
    parser.add_argument("--threads", type=int, default=0, help="0 takes torch's choice")
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> None:
    """Measure and print."""
    options = parse_arguments(arguments)
    if options.threads:
        torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    shape = MODELS[options.model]
    table = Table("", "positions", "ours", "beside it", "")
    todo: list[tuple[Measure, int]] = [(measure_decode, n) for n in options.context]
    todo += [(measure_prefill, n) for n in options.prompt]
    for measure, length in track(todo, "Measuring", console=Console(stderr=True)):
        table.add_row(*measure(shape, length, options.seconds))
    console = Console(width=None if sys.stdout.isatty() else 100)
    print_facts(console, describe_machine(), "attention", arguments)
    console.print(table)


if __name__ == "__main__":
    main(sys.argv[1:])
