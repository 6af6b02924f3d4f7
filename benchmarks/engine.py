"""The engine, offline, against transformers on the same weights in the same process.

    python -m benchmarks.engine                          the default model; 1, 8 and 32 requests
    python -m benchmarks.engine MODEL --requests 8       another model or shape
    python -m benchmarks.engine --weights fp32 bf16      ours with weights stored in several ways
    python -m benchmarks.engine --speculation 8 --task copy      ours with tokens guessed ahead, too

Every round runs the contenders one after another, so that a machine that slows down slows all of
them; what counts is the ratio within a round, and its median over the rounds. Contenders:

    slipstream   this engine's generate_batch
    batching     transformers' own generate_batch (continuous batching)
    padded       transformers' generate on one padded batch
"""

import argparse
import functools
import gc
import statistics
import sys
import time
from collections.abc import Callable, Sequence

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from transformers import AutoTokenizer, PreTrainedModel
from transformers.generation.configuration_utils import (
    ContinuousBatchingConfig as TransformersConfig,
)
from transformers.utils import logging as transformers_logging

import engine
from benchmarks.host import print_facts
from benchmarks.machine import describe_machine
from benchmarks.tasks import (
    RANDOM,
    TASKS,
    MakePrompts,
    Prompts,
    Shape,
    chats,
    random_prompts,
)
from server.environment import cache_folder
from server.model_store import StoredModel, find_model
from server.settings import ModelSettings

Contender = Callable[[Prompts, int], int]

BATCHING = "batching"


def slipstream_contender(
    model: engine.PagedModel, num_blocks: int, max_draft_tokens: int = 0
) -> Contender:
    """Return this engine's generate_batch."""
    config = engine.ContinuousBatchingConfig(
        num_blocks=num_blocks, max_draft_tokens=max_draft_tokens
    )

    def run(prompts: Prompts, num_new_tokens: int) -> int:
        outputs = model.generate_batch(
            prompts,
            continuous_batching_config=config,
            warmup=False,
            max_new_tokens=num_new_tokens,
            do_sample=False,
            ignore_eos=True,
        )
        return sum(len(output.generated_tokens) for output in outputs.values())

    return run


def batching_contender(hf_model: PreTrainedModel, num_blocks: int) -> Contender:
    """Return transformers' continuous batching, with a cache of the same size."""

    def run(prompts: Prompts, num_new_tokens: int) -> int:
        outputs = hf_model.generate_batch(  # type: ignore[operator]
            prompts,
            continuous_batching_config=TransformersConfig(num_blocks=num_blocks),
            max_new_tokens=num_new_tokens,
        )
        return sum(len(output.generated_tokens) for output in outputs.values())

    return run


def padded_contender(hf_model: PreTrainedModel) -> Contender:
    """Return transformers' generate; prompts of one length need no padding at all."""

    def run(prompts: Prompts, num_new_tokens: int) -> int:
        ids = torch.tensor(prompts)
        answer = hf_model.generate(  # type: ignore[operator]
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=num_new_tokens,
            min_new_tokens=num_new_tokens,
            do_sample=False,
            pad_token_id=0,
        )
        return int((answer.shape[1] - ids.shape[1]) * len(prompts))

    return run


def measure(
    contenders: dict[str, Contender],
    shape: Shape,
    make_prompts: MakePrompts,
    rounds: int,
) -> dict[str, list[float]]:
    """Return the new tokens per second of each contender in each round."""
    rates: dict[str, list[float]] = {name: [] for name in contenders}
    for number in track(
        range(rounds), f"{shape.num_requests} requests", console=Console(stderr=True)
    ):
        prompts = make_prompts(shape, number)
        for name, run in contenders.items():
            gc.collect()
            begin = time.perf_counter()
            num_tokens = run(prompts, shape.num_new_tokens)
            seconds = time.perf_counter() - begin
            expected = shape.num_requests * shape.num_new_tokens
            assert num_tokens == expected, f"{name} made {num_tokens} tokens, not {expected}"
            rates[name].append(num_tokens / seconds)
    return rates


def show(console: Console, results: Sequence[tuple[Shape, dict[str, list[float]]]]) -> None:
    """Print medians, and the ratios to transformers' continuous batching within rounds."""
    table = Table("requests", "contender", "tokens/s", "of batching", "lowest", "highest")
    for shape, rates in results:
        for name, values in rates.items():
            ratios = [own / base for own, base in zip(values, rates[BATCHING], strict=True)]
            table.add_row(
                str(shape.num_requests),
                name,
                f"{statistics.median(values):.1f}",
                f"{statistics.median(ratios):.2f} x",
                f"{min(ratios):.2f}",
                f"{max(ratios):.2f}",
            )
        table.add_section()
    console.print(table)


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.engine", description=(__doc__ or "").split("\n\n")[0]
    )
    parser.add_argument("model", nargs="?", default="", help="local folder or hub name")
    parser.add_argument("--requests", type=int, nargs="+", default=[1, 8, 32], metavar="N")
    parser.add_argument("--prompt-tokens", type=int, default=128, metavar="N")
    parser.add_argument("--new-tokens", type=int, default=64, metavar="N")
    parser.add_argument(
        "--weights",
        nargs="+",
        default=["fp32"],
        metavar="FORMAT[+int8]",
        help="of ours; one row each. +int8: with activations of 8 bits",
    )
    parser.add_argument(
        "--speculation", type=int, nargs="+", default=[], metavar="N",
        help="ours with up to N tokens guessed ahead, too; one row each",
    )  # fmt: skip
    parser.add_argument("--task", choices=TASKS, default=RANDOM, help="what prompts consist of")
    parser.add_argument("--rounds", type=int, default=3, metavar="N")
    parser.add_argument("--num-blocks", type=int, default=64, metavar="N", help="of 256 tokens")
    parser.add_argument(
        "--threads", type=int, default=0, metavar="N", help="0 takes torch's choice"
    )
    return parser.parse_args(arguments)


def load(stored: StoredModel, name: str) -> engine.PagedModel:
    """Return the model in a format such as "int4", or "int4+int8" with activations of 8 bits."""
    weights, _, activations = name.partition("+")
    return engine.load(stored.source, weights=weights, activations=activations or "fp32")


def main(arguments: Sequence[str]) -> None:
    """Measure and print."""
    options = parse_arguments(arguments)
    if options.threads:
        torch.set_num_threads(options.threads)
    transformers_logging.set_verbosity_error()
    stored = find_model(ModelSettings(path=options.model), cache_folder())
    models = {name: load(stored, name) for name in options.weights}
    # Transformers computes with the float32 weights of the file, whatever ours are stored as.
    hf_model = engine.load(stored.source, weights="fp32").hf_model
    # Nothing ends early: every contender makes exactly as many tokens.
    hf_model.generation_config.eos_token_id = None
    for model in models.values():
        model.hf_model.generation_config.eos_token_id = None
    contenders = {
        f"slipstream {weights}" + f", {ahead} ahead" * (ahead > 0): slipstream_contender(
            model, options.num_blocks, ahead
        )
        for weights, model in models.items()
        for ahead in (0, *options.speculation)
    }
    contenders[BATCHING] = batching_contender(hf_model, options.num_blocks)
    contenders["padded"] = padded_contender(hf_model)
    if options.task == RANDOM:
        vocab_size = next(iter(models.values())).vocab_size
        make_prompts: MakePrompts = functools.partial(random_prompts, vocab_size)
    else:
        make_prompts = chats(options.task, AutoTokenizer.from_pretrained(stored.folder))
    results = []
    for num_requests in options.requests:
        shape = Shape(num_requests, options.prompt_tokens, options.new_tokens)
        results.append((shape, measure(contenders, shape, make_prompts, options.rounds)))
    console = Console(width=None if sys.stdout.isatty() else 100)
    print_facts(console, describe_machine(), "engine", arguments)
    console.print(
        f"{'shape':>14}  {options.prompt_tokens} in, {options.new_tokens} out, {options.task}"
    )
    show(console, results)


if __name__ == "__main__":
    main(sys.argv[1:])
