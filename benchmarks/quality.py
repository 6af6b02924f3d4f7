"""What fewer bits cost in quality, of weights or of the cache: perplexity, and equal choices.

    python -m benchmarks.quality                     the default model
    python -m benchmarks.quality MODEL --tokens 8192
    python -m benchmarks.quality --kv bf16 fp16 int8

The text is the manual that comes with Python (`pydoc_data.topics`), cut into windows that a model
reads from their beginning. Each format is compared with the same model in float32:

    perplexity   e to the mean surprise at the next token; lower is better
    same choice  how often the likeliest next token is that of float32
    divergence   mean Kullback-Leibler divergence from float32's probabilities, in nats

Where a model's own weights have 4 bits already, as the default model's, rounding them to the same
groups of 32 loses next to nothing. "int4 shifted" rounds with groups that begin 16 columns further:
what 4 bits cost a model whose weights were not made for them. "+int8": with activations of 8 bits.

With `--kv` it is not the weights that are rounded, which stay float32, but keys and values, as a
cache of that format does it.
"""

import argparse
import hashlib
import math
import pydoc_data.topics
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from transformers import AutoTokenizer, PreTrainedModel

import engine
from benchmarks.host import print_facts
from benchmarks.machine import describe_machine
from benchmarks.rounded_cache import round_keys_and_values
from engine.cache.row_formats import KV_CACHE_DTYPES
from engine.kernels.cpu.quantized_linear import Format
from engine.models.quantization import quantize
from engine.models.weight_formats import FORMATS
from server.environment import cache_folder
from server.model_store import StoredModel, find_model
from server.settings import ModelSettings

WINDOW = 512
SHIFT = 16
SHIFTED = "int4 shifted"


@dataclass(slots=True)
class Quality:
    """How a model does on the text, window by window.

    Attributes:
        surprise: At the next token, in nats.
        agreement: Share of tokens at which its choice is the reference's.
        divergence: From the reference, in nats.
    """

    surprise: list[float] = field(default_factory=list)
    agreement: list[float] = field(default_factory=list)
    divergence: list[float] = field(default_factory=list)

    def add(self, window: torch.Tensor, ours: torch.Tensor, theirs: torch.Tensor) -> None:
        """Take in a window [T] and both models' log-probabilities [T - 1, V]."""
        self.surprise.append(-float(ours.gather(1, window[1:, None]).mean()))
        self.agreement.append(float((ours.argmax(-1) == theirs.argmax(-1)).float().mean()))
        self.divergence.append(float((theirs.exp() * (theirs - ours)).sum(-1).mean()))

    @property
    def cells(self) -> tuple[str, str, str]:
        """The row of the table."""
        return (
            f"{math.exp(statistics.mean(self.surprise)):.3f}",
            f"{statistics.mean(self.agreement):.2%}",
            f"{statistics.mean(self.divergence):.1e}",
        )


def read_windows(stored: StoredModel, num_tokens: int) -> tuple[torch.Tensor, str]:
    """Return [W, WINDOW] token ids of the text and the text's digest."""
    topics = pydoc_data.topics.topics
    text = "\n".join(topics[name] for name in sorted(topics))
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    # A token is fewer characters, and tokenising a megabyte takes a while.
    ids = AutoTokenizer.from_pretrained(stored.folder).encode(text[: num_tokens * 8])
    count = min(num_tokens, len(ids)) // WINDOW
    return torch.tensor(ids[: count * WINDOW]).view(count, WINDOW), digest


@torch.inference_mode()
def log_probabilities(model: PreTrainedModel, window: torch.Tensor) -> torch.Tensor:
    """Return [T - 1, V] for a window [T]."""
    logits = model(input_ids=window[None], use_cache=False).logits[0, :-1]
    return logits.float().log_softmax(-1)


def load(stored: StoredModel, weights: str) -> PreTrainedModel:
    """Return the model in a format."""
    if weights != SHIFTED:
        weights, _, activations = weights.partition("+")
        return engine.load(
            stored.source, weights=weights, activations=activations or "fp32"
        ).hf_model
    model = engine.load(stored.source, weights="fp32").hf_model
    head = model.get_output_embeddings()
    for module in model.modules():
        if type(module) is torch.nn.Linear and module is not head:
            moved = module.weight.detach().roll(-SHIFT, dims=1)
            numbers = quantize(moved, Format.INT4).numbers().roll(SHIFT, dims=1)
            module.weight = torch.nn.Parameter(numbers, requires_grad=False)
    return model


def load_weights(stored: StoredModel) -> dict[str, PreTrainedModel]:
    """Return the model with its weights in each format that there is here, by name."""
    models = {}
    rounded = [f"{weights}+int8" for weights in ("auto", "int8", "int4")]
    for weights in ("fp32", "auto", *FORMATS, *rounded, SHIFTED):
        try:
            models[weights] = load(stored, weights)
        except engine.UnsupportedConfigError as error:
            print(f"left out: {error}", file=sys.stderr)
    return models


def load_rounded_caches(stored: StoredModel, formats: Sequence[str]) -> dict[str, PreTrainedModel]:
    """Return the model in float32 over a cache of each format, by name."""
    models = {"fp32": load(stored, "fp32")}
    for name in formats:
        models[name] = load(stored, "fp32")
        round_keys_and_values(models[name], name)
    return models


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.quality",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", nargs="?", default="", help="a folder, GGUF file or hub name")
    parser.add_argument(
        "--kv", nargs="+", choices=KV_CACHE_DTYPES[1:], default=[], help="formats of the cache"
    )
    parser.add_argument("--tokens", type=int, default=4096, metavar="N", help="of the text (4096)")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> None:
    """Measure and print."""
    options = parse_arguments(arguments)
    stored = find_model(ModelSettings(path=options.model), cache_folder())
    windows, digest = read_windows(stored, options.tokens)
    models = load_rounded_caches(stored, options.kv) if options.kv else load_weights(stored)
    qualities = {name: Quality() for name in models}
    for window in track(windows, "Reading", console=Console(stderr=True)):
        reference = log_probabilities(models["fp32"], window)
        for name, model in models.items():
            is_reference = name == "fp32"
            ours = reference if is_reference else log_probabilities(model, window)
            qualities[name].add(window, ours, reference)
    table = Table("cache" if options.kv else "weights", "perplexity", "same choice", "divergence")
    for name, quality in qualities.items():
        table.add_row(name, *quality.cells)
    console = Console()
    print_facts(console, describe_machine(), "quality", arguments)
    console.print(f"{'text':>14}  {windows.numel()} tokens of sha256 {digest}...")
    console.print(table)


if __name__ == "__main__":
    main(sys.argv[1:])
