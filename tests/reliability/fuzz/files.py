"""What reads the files of a model: damaged ones are refused, in words."""

import json
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from engine import EngineError
from engine.models.gguf_model import load_gguf_model
from engine.models.loading import load_hf_model
from tests.gguf_writer import write_gguf
from tests.reliability.fuzz.draw import Draw

CONFIG = LlamaConfig(
    vocab_size=32, hidden_size=32, intermediate_size=32, num_hidden_layers=1,
    num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=32,
    bos_token_id=None, eos_token_id=None, pad_token_id=None, tie_word_embeddings=True,
)  # fmt: skip
# Numbers that lengths, counts, offsets and kinds do not like.
NUMBERS = [0, 1, 2, 8, 9, 31, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**62, 2**63, 2**64 - 1]
MAX_CHANGES = 6
WEIGHTS, SETTINGS = "model.safetensors", "config.json"


@cache
def folder() -> Path:
    """Return a folder with a sound model in each format; it is written into."""
    made = Path(tempfile.mkdtemp(prefix="fuzz-"))
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(CONFIG)
    write_gguf(model, made / "model.gguf", fields={"general.tags": ["a", "b"]})
    model.save_pretrained(made)
    return made


@cache
def sound(name: str) -> bytes:
    return (folder() / name).read_bytes()


def head_length(name: str) -> int:
    """Return how long what describes the tensors is: changes among the numbers do not matter."""
    content = sound(name)
    if name == WEIGHTS:
        return 8 + int.from_bytes(content[:8], "little")
    return content.rindex(b"blk.0.") + 64 if name.endswith(".gguf") else len(content)


def damage(draw: Draw, name: str) -> bytes:
    """Change some places of a sound file's head."""
    content = bytearray(sound(name))
    length = head_length(name)
    for _ in range(1 + draw.below(MAX_CHANGES)):
        place, how = draw.below(length), draw.below(6)
        if how == 0:
            content[place : place + 8] = draw.choose(NUMBERS).to_bytes(8, "little")
        elif how == 1:
            content[place : place + 4] = (draw.choose(NUMBERS) & 0xFFFFFFFF).to_bytes(4, "little")
        elif how == 2:
            content[place : place + 1] = draw.take(1) or b"\0"
        elif how == 3:
            del content[place : place + 1 + draw.below(16)]
        elif how == 4:
            content[place:place] = draw.take(1 + draw.below(16))
        else:
            del content[max(place, 1) :]
    return bytes(content)


def check_gguf(data: bytes) -> None:
    """A damaged GGUF file is a model, or refused by name."""
    path = folder() / "damaged.gguf"
    path.write_bytes(damage(Draw(data), "model.gguf"))
    with suppress(EngineError):
        load_gguf_model(path, keep_packed=False)


def check_safetensors(data: bytes) -> None:
    """A damaged folder is a model, or raises an exception: what libraries raise is many things."""
    draw = Draw(data)
    name = draw.choose([WEIGHTS, WEIGHTS, SETTINGS])
    content = damage(draw, name)
    if name == SETTINGS and is_too_large(content):
        return
    damaged = folder() / "damaged"
    damaged.mkdir(exist_ok=True)
    for one in (WEIGHTS, SETTINGS):
        (damaged / one).write_bytes(content if one == name else sound(one))
    with suppress(Exception):  # `slipstream serve` makes one line of any
        load_hf_model(damaged, device="cpu")


def is_too_large(content: bytes) -> bool:
    """Whether a configuration asks for a model that is only large, which is no damage."""
    try:
        values = json.loads(content)
    except ValueError:
        return False
    numbers = [one for one in values.values() if isinstance(one, int | float)]
    return any(abs(number) > 4096 for number in numbers)
