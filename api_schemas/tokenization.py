"""Tokens without an answer: tokenising, its reverse, rendering a chat, and the tokenizer itself.

Tokenising takes a text, or what a chat completion takes; then the tokens are those that the chat
would begin with. Data only.
"""

from typing import Annotated, Any, ClassVar, Self

from pydantic import Field, model_validator

from api_schemas.base import Boolean, RequestModel, TokenId, WireModel, field_error
from api_schemas.chat import ChatCompletionRequest
from api_schemas.field_support import FieldSupport, supported
from api_schemas.support import CHAT_FIELDS


class TokenizeTextRequest(RequestModel):
    """A text to tokenise.

    Attributes:
        prompt: The text, also called content.
        add_special_tokens: Whether the tokenizer adds its own, such as BOS.
        return_token_strs: Return the text of each token, too.
    """

    support: ClassVar[tuple[FieldSupport, ...]] = tuple(
        supported(
            model="a served name; may be left out",
            prompt="a text; for a chat send messages instead",
            content="another name of prompt",
            add_special_tokens="",
            return_token_strs="adds token_strs",
        )
    )

    model: str | None = Field(default=None, max_length=512)
    prompt: str | None = None
    content: str | None = None
    add_special_tokens: Boolean = True
    return_token_strs: Boolean = False

    @model_validator(mode="after")
    def _check_that_there_is_one_text(self) -> Self:
        """Refuse none and two."""
        if (self.prompt is None) == (self.content is None):
            raise field_error("prompt", "send one of prompt, content and messages.")
        return self

    @property
    def text(self) -> str:
        """The text, under whichever name it came."""
        return self.prompt if self.prompt is not None else self.content or ""


class TokenizeChatRequest(ChatCompletionRequest):
    """A chat to tokenise: the body of a chat completion; what shapes the answer has no effect."""

    support: ClassVar[tuple[FieldSupport, ...]] = (
        *CHAT_FIELDS,
        *supported(return_token_strs="adds token_strs"),
    )

    return_token_strs: Boolean = False

    @model_validator(mode="after")
    def _check_that_it_is_one_kind(self) -> Self:
        """Refuse a text beside the messages."""
        if {"prompt", "content"}.intersection(self.model_extra or ()):
            raise field_error("prompt", "prompt and messages exclude each other.")
        return self


def parse_tokenize_request(data: dict[str, Any]) -> TokenizeTextRequest | TokenizeChatRequest:
    """Return the request of the kind that its fields say it is.

    Raises:
        pydantic.ValidationError: A field is wrong.
    """
    if data.get("messages") is None:
        return TokenizeTextRequest.model_validate(data)
    return TokenizeChatRequest.model_validate(data)


class TokenizeResponse(WireModel):
    """Tokens.

    Attributes:
        count: How many.
        max_model_len: How many a request may have, prompt and answer together.
        tokens: Their ids.
        token_strs: Their texts, if asked for; bytes that are no text become U+FFFD.
    """

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class DetokenizeRequest(RequestModel):
    """Tokens to turn into text; special ones are shown."""

    support: ClassVar[tuple[FieldSupport, ...]] = tuple(
        supported(
            model="a served name; may be left out",
            tokens="token ids; one that the tokenizer doesn't have is refused",
        )
    )

    model: str | None = Field(default=None, max_length=512)
    tokens: Annotated[list[TokenId], Field(max_length=2**20)]


class DetokenizeResponse(WireModel):
    """The text of tokens."""

    prompt: str


class RenderResponse(WireModel):
    """What a chat completion would give to the model.

    Attributes:
        prompt: The rendered template; text of the messages that spells a control token looks like
            one here, the ids tell them apart.
        prompt_token_ids: Its tokens.
        count: How many.
        max_model_len: How many a request may have, prompt and answer together.
        sampling: The parameters of the first answer, with the server's defaults filled in.
    """

    prompt: str
    prompt_token_ids: list[int]
    count: int
    max_model_len: int
    sampling: dict[str, Any]


class TokenizerInfo(WireModel):
    """What programs that build prompts by themselves ask about a tokenizer."""

    tokenizer_class: str
    vocab_size: int
    model_max_length: int
    bos_token: str | None
    eos_token: str | None
    pad_token: str | None
    unk_token: str | None
    chat_template: str | None
