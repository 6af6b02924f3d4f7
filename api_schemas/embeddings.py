"""Embeddings: texts or tokens in, one vector for each out.

Source: https://platform.openai.com/docs/api-reference/embeddings. Data only.
"""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, PlainValidator, WithJsonSchema

from api_schemas.base import Boolean, Integer, RequestModel, WireModel
from api_schemas.completions import PROMPT_SCHEMA, Prompts, parse_prompts
from api_schemas.field_support import FieldSupport, ignored, refused, supported


def _parse_input(value: Any) -> Prompts:
    return parse_prompts(value, name="input")


class EmbeddingRequest(RequestModel):
    """A request for vectors.

    Attributes:
        input: One entry per vector, all texts or all token lists.
        encoding_format: Numbers, or little-endian float32 as base64.
        dimensions: Leading numbers to keep; None keeps all.
        add_special_tokens: Whether the tokenizer adds its own (such as BOS) to a text.
    """

    support: ClassVar[tuple[FieldSupport, ...]] = (
        *supported(
            model="a served name; may be left out",
            input="a text, texts, token ids, or lists of token ids; each leaves room for one more "
            "token in the context",
            encoding_format="float, or base64 of little-endian float32",
            dimensions="the leading numbers, brought to length 1 again",
            add_special_tokens="",
        ),
        *ignored("no effect on the answer", "user"),
        refused("truncate_prompt_tokens", hint=" Shorten the input before sending it."),
        refused("priority", 0),
    )

    model: str | None = Field(default=None, max_length=512)
    input: Annotated[Prompts, PlainValidator(_parse_input), WithJsonSchema(PROMPT_SCHEMA)]
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Annotated[Integer, Field(ge=1)] | None = None
    add_special_tokens: Boolean = True


class Embedding(WireModel):
    """One vector, of length 1."""

    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str


class EmbeddingUsage(WireModel):
    """Token counts of all inputs."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingList(WireModel):
    """The answer to an `EmbeddingRequest`."""

    object: Literal["list"] = "list"
    data: list[Embedding]
    model: str
    usage: EmbeddingUsage
