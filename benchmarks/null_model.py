"""A model that costs next to nothing, with a tokenizer of bytes, written to a folder."""

from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

END = "<|im_end|>"
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
)


def write_null_model(folder: Path, max_tokens: int) -> Path:
    """Write config, weights and tokenizer into a folder and return it.

    Args:
        folder: Exists.
        max_tokens: Positions of a request.
    """
    vocabulary = {
        token: number
        for number, token in enumerate([END, *sorted(pre_tokenizers.ByteLevel.alphabet())])
    }
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=END, chat_template=CHAT_TEMPLATE
    ).save_pretrained(folder)
    config = LlamaConfig(
        vocab_size=len(vocabulary),
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
        max_position_embeddings=max_tokens,
        bos_token_id=None,
        eos_token_id=0,
        pad_token_id=0,
    )
    torch.manual_seed(0)
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        # One of 26 letters, whatever comes: bytes that are no text would be held back.
        letters = [vocabulary[letter] for letter in "abcdefghijklmnopqrstuvwxyz"]
        model.lm_head.weight.zero_()
        model.lm_head.weight[letters] = torch.randn(len(letters), config.hidden_size)
    model.save_pretrained(folder)
    return folder
