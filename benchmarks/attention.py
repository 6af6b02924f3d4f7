"""The CPU attention kernel against reading its keys and values, and against torch's fused one.

    python -m benchmarks.attention
    python -m benchmarks.attention --model llama-3.2-1b --context 1000 4000
    python -m benchmarks.attention --kv fp32 bf16 fp16 int8

One layer over a paged cache whose blocks lie in any order.

    decode     one query over a context, its keys and values kept in each of the formats; "of
               reading" is against a plain sum over as many bytes as they take. Several requests
               take turns, so that nothing is found in the caches of the processor
    prefill    a whole prompt; "x torch" is against scaled_dot_product_attention, with the
               keys of shared heads copied for it beforehand
"""

import argparse
import itertools
import sys
from collections.abc import Callable
from functools import partial

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
from engine.cache.block_memory import BlockShape, allocate_layers
from engine.cache.row_formats import KV_CACHE_DTYPES, choose_rows, encode_rows, row_width
from engine.kernels.cpu.library import kernels

# Query heads, key heads, width of a head.
MODELS = {"smollm2-135m": (9, 3, 64), "qwen3-0.6b": (16, 8, 128), "llama-3.2-1b": (32, 8, 64)}
PAGE_SIZE = 32


class Layer:
    """Requests of one length in a cache of one layer, and the backend that reads it."""

    def __init__(
        self,
        shape: tuple[int, int, int],
        context: int,
        new: int,
        *,
        count: int = 1,
        rows: torch.dtype = torch.float32,
    ) -> None:
        """Fill a cache.

        Args:
            shape: Query heads, key heads, width of a head.
            context: Positions of each request.
            new: How many of them are this step's.
            count: Requests.
            rows: How keys and values are kept.
        """
        heads, kv_heads, width = shape
        num_pages = -(-context // PAGE_SIZE)
        size = row_width(width, rows)
        [(self.keys, self.values)] = allocate_layers(
            [BlockShape(kv_heads, size, size)], count * num_pages, PAGE_SIZE,
            dtype=rows, device=torch.device("cpu"), heads_first=True,
        )  # fmt: skip
        for block in (*self.keys, *self.values):
            block.copy_(encode_rows(torch.randn(PAGE_SIZE, kv_heads, width), rows))
        self.query = torch.randn(new, heads, width)
        self.options = AttentionOptions(width**-0.5)
        none = torch.empty(0, dtype=torch.int64)
        self.backends = [CpuBackend(PAGE_SIZE, kernels()) for _ in range(count)]
        tables = torch.randperm(count * num_pages, dtype=torch.int32).view(count, num_pages)
        for backend, table in zip(self.backends, tables, strict=True):
            backend.plan(BatchInputs(none, none, none, table[None], [0, new], [context], none))

    def attend(self, request: int = 0) -> torch.Tensor:
        """Compute the layer for a request: [new, heads, width]."""
        return self.backends[request].attend(self.query, self.keys, self.values, self.options)


def measure_decode(
    shape: tuple[int, int, int], context: int, seconds: float, kv: str
) -> tuple[str, ...]:
    """Return the cells of one query over a context."""
    rows = choose_rows(kv, torch.float32, torch.device("cpu"))
    num_bytes = 2 * context * shape[1] * row_width(shape[2], rows) * rows.itemsize
    count = -(-SPREAD_BYTES // num_bytes)
    layer = Layer(shape, context, 1, count=count, rows=rows)
    parts = [torch.ones(num_bytes // 4) for _ in range(count)]
    requests, sums = itertools.cycle(range(count)), itertools.cycle(parts)
    times = best_times([lambda: layer.attend(next(requests)), lambda: next(sums).sum()], seconds)
    rate, reading = (num_bytes / time / 1e9 for time in times)
    return (f"decode {kv}", str(context), f"{rate:.1f} GB/s", f"{reading:.1f} GB/s",
            f"{rate / reading:.0%} of reading")  # fmt: skip


def measure_prefill(shape: tuple[int, int, int], length: int, seconds: float) -> tuple[str, ...]:
    """Return the cells of a prompt."""
    heads, _, width = shape
    layer = Layer(shape, length, length)
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
    parser.add_argument(
        "--kv", nargs="+", choices=KV_CACHE_DTYPES[1:], default=["fp32"], help="formats (fp32)"
    )
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
    todo: list[Callable[[], tuple[str, ...]]] = [
        partial(measure_decode, shape, context, options.seconds, kv)
        for kv in options.kv
        for context in options.context
    ]
    todo += [partial(measure_prefill, shape, length, options.seconds) for length in options.prompt]
    for measure in track(todo, "Measuring", console=Console(stderr=True)):
        table.add_row(*measure())
    console = Console(width=None if sys.stdout.isatty() else 100)
    print_facts(console, describe_machine(), "attention", arguments)
    console.print(table)


if __name__ == "__main__":
    main(sys.argv[1:])
