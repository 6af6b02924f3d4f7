"""Get an answer as an object: the model can write nothing else than its schema allows.

BASE_URL=http://127.0.0.1:8000/v1 MODEL=SmolLM2-135M-Instruct python examples/structured_answer.py
"""

import os
from enum import Enum

from openai import OpenAI
from pydantic import BaseModel


class Mood(Enum):
    """What a text may sound like."""

    CHEERFUL = "cheerful"
    SAD = "sad"


class Review(BaseModel):
    """What is to be found out about a text."""

    mood: Mood
    recommends: bool


def main() -> None:
    client = OpenAI(base_url=os.environ.get("BASE_URL", "http://127.0.0.1:8000/v1"), api_key="none")
    answer = client.chat.completions.parse(
        model=os.environ.get("MODEL", "SmolLM2-135M-Instruct"),
        messages=[{"role": "user", "content": "Review: what a lovely film, go and see it!"}],
        response_format=Review,
    )
    print(answer.choices[0].message.parsed)


if __name__ == "__main__":
    main()
