"""Chat with a running server; the answer appears as it is generated.

BASE_URL=http://127.0.0.1:8000/v1 MODEL=SmolLM2-135M-Instruct python examples/chat_stream.py Hi
"""

import os
import sys

from openai import OpenAI


def main() -> None:
    client = OpenAI(base_url=os.environ.get("BASE_URL", "http://127.0.0.1:8000/v1"), api_key="none")
    stream = client.chat.completions.create(
        model=os.environ.get("MODEL", "SmolLM2-135M-Instruct"),
        messages=[{"role": "user", "content": " ".join(sys.argv[1:]) or "Who are you?"}],
        max_tokens=128,
        stream=True,
        stream_options={"include_usage": True},
    )
    for chunk in stream:
        for choice in chunk.choices:
            print(choice.delta.content or "", end="", flush=True)
        if chunk.usage:
            print(f"\n[{chunk.usage.completion_tokens} tokens]")


if __name__ == "__main__":
    main()
