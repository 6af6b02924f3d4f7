"""Use the engine without a server: a batch of prompts, answered together.

python examples/offline_generate_batch.py path/to/model
"""

import sys

from transformers import AutoTokenizer

import engine

PROMPTS = ("The sky is", "One, two, three,", "The capital of France is")


def main() -> None:
    folder = sys.argv[1]
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = engine.load(folder)
    outputs = model.generate_batch(
        [tokenizer.encode(prompt) for prompt in PROMPTS],
        continuous_batching_config=engine.ContinuousBatchingConfig(page_size=32, num_blocks=64),
        max_new_tokens=16,
    )
    for output in outputs.values():
        prompt, answer = map(tokenizer.decode, (output.prompt_ids, output.generated_tokens))
        print(f"{prompt!r} -> {answer!r}")


if __name__ == "__main__":
    main()
