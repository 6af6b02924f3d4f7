"""From messages or text to token ids.

Rendering a template and tokenising a long text take time, so they run on a small pool of threads
and never on the event loop. Text of a client that spells a control token is encoded as text in
chats: nobody can forge a role. Threads only read the tokenizer.
"""

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from jinja2 import TemplateError

from api_schemas import ChatCompletionRequest, CompletionRequest, Prompts, TokenizerInfo
from server.chat_messages import Message, merge_leading_system, to_template_messages
from server.control_tokens import ControlTokens
from server.limited_pool import LimitedPool
from server.request_errors import RequestError
from server.tools.prompting import ToolPrompting

NUM_THREADS = 4
SHORT_TEXT_CHARACTERS = 2048
TEMPLATE_TIMEOUT_SECONDS = 30.0
# What a template, or its filters on odd input, may raise. NotImplementedError is Jinja's own: its
# compiler and its extensions raise it for parts of a template that they have no code for.
TEMPLATE_ERRORS = (
    TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    NotImplementedError,
    RecursionError,
    TypeError,
    ValueError,
)

# Marks the end of a message that goes on; nobody outside can write it.
_GOES_ON = f"[{secrets.token_hex(16)}]"

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class RenderedChat:
    """A chat as the model gets it.

    Attributes:
        text: The rendered template.
        token_ids: Its tokens.
    """

    text: str
    token_ids: list[int]


class PromptEncoder:
    """Encodes the prompts of all requests with one tokenizer."""

    def __init__(self, tokenizer: Any) -> None:
        """Take a transformers tokenizer.

        Args:
            tokenizer: A `PreTrainedTokenizerBase`.
        """
        self._tokenizer = tokenizer
        self._pool = LimitedPool(NUM_THREADS, "prompt-encoding")
        # The first call may reset what the tokenizer's file says about truncation and padding;
        # later ones, on any thread, find nothing to change.
        self._text_prefix = self._encode("")
        template = getattr(tokenizer, "chat_template", None)
        self._knows_developer = "developer" in str(template)
        self._has_template = template is not None
        self._control = ControlTokens(tokenizer)
        self.tools = ToolPrompting(tokenizer)

    def close(self) -> None:
        """End the threads."""
        self._pool.close()

    async def encode_chat(self, body: ChatCompletionRequest) -> list[int]:
        """Return the tokens of `render_chat`; raises what it raises."""
        return (await self.render_chat(body)).token_ids

    async def render_chat(self, body: ChatCompletionRequest) -> RenderedChat:
        """Render the messages with the chat template and tokenise the result.

        Raises:
            RequestError: The template refused them, or there is none.
        """
        if not self._has_template:
            message = "This model has no chat template; use /v1/completions."
            raise RequestError(message, param="messages", code="no_chat_template")
        try:
            return await self._pool.run(TEMPLATE_TIMEOUT_SECONDS, self._render_chat, body)
        except TimeoutError:
            message = f"The chat template took more than {TEMPLATE_TIMEOUT_SECONDS:.0f} seconds."
            raise RequestError(message, param="messages", code="chat_template_error") from None

    async def encode_prompts(self, body: CompletionRequest) -> list[list[int]]:
        """Tokenise each prompt; token lists pass as they are.

        Raises:
            RequestError: A text has no tokens and the model has no token to begin with.
        """
        return await self.encode_inputs(body.prompt, add_special_tokens=body.add_special_tokens)

    async def encode_inputs(self, inputs: Prompts, *, add_special_tokens: bool) -> list[list[int]]:
        """Do what `encode_prompts` does."""
        if sum(map(len, inputs)) <= SHORT_TEXT_CHARACTERS:
            return self._encode_inputs(inputs, add_special_tokens)
        return await self._run(self._encode_inputs, inputs, add_special_tokens)

    async def encode_text(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Tokenise a text, which may be empty; special tokens spelled in it are special."""
        return await self._run(lambda: self._encode(text, add_special_tokens=add_special_tokens))

    async def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of tokens, special ones included.

        Raises:
            RequestError: The tokenizer doesn't have one of them.
        """
        num_tokens = len(self._tokenizer)
        wrong = next((token for token in token_ids if token >= num_tokens), None)
        if wrong is not None:
            message = f"tokens holds {wrong}; ids of this tokenizer lie in [0, {num_tokens})."
            raise RequestError(message, param="tokens")
        return await self.decode_prompt(token_ids)

    def describe(self) -> TokenizerInfo:
        """Say what the tokenizer is."""
        tokenizer = self._tokenizer
        return TokenizerInfo(
            tokenizer_class=type(tokenizer).__name__,
            vocab_size=len(tokenizer),
            model_max_length=int(tokenizer.model_max_length),
            bos_token=tokenizer.bos_token,
            eos_token=tokenizer.eos_token,
            pad_token=tokenizer.pad_token,
            unk_token=tokenizer.unk_token,
            chat_template=tokenizer.chat_template if self._has_template else None,
        )

    async def decode_prompt(self, token_ids: Sequence[int]) -> str:
        """Return the text of a prompt given as tokens, special ones included."""
        return await self._run(self._decode, token_ids)

    def _decode(self, token_ids: Sequence[int]) -> str:
        return str(
            self._tokenizer.decode(
                list(token_ids), skip_special_tokens=False, clean_up_tokenization_spaces=False
            )
        )

    async def _run(self, function: Callable[..., Result], *arguments: Any) -> Result:
        return await self._pool.run(None, function, *arguments)

    def _encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return list(
            self._tokenizer(text, add_special_tokens=add_special_tokens, verbose=False)["input_ids"]
        )

    def _encode_inputs(self, inputs: Prompts, add_special_tokens: bool) -> list[list[int]]:
        return [
            prompt
            if isinstance(prompt, list)
            else self._encode_text(prompt, add_special_tokens=add_special_tokens)
            for prompt in inputs
        ]

    def _encode_text(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Tokenise a text; an empty one begins with BOS if the model has it."""
        token_ids = self._encode(text, add_special_tokens=add_special_tokens)
        if token_ids:
            return token_ids
        if self._tokenizer.bos_token_id is None:
            raise RequestError("prompt is empty and this model has no BOS token.", param="prompt")
        return [self._tokenizer.bos_token_id]

    def _render_chat(self, body: ChatCompletionRequest) -> RenderedChat:
        """Render as given; if the template refuses, once more with the system messages joined."""
        given = to_template_messages(body.messages, knows_developer=self._knows_developer)
        messages, tools = self.tools.prepare(given, body.tool_use().functions)
        try:
            rendered = self._render(body, messages, tools)
        except TEMPLATE_ERRORS as error:
            merged = merge_leading_system(messages)
            if len(merged) == len(messages):
                raise _template_error(error) from None
            try:
                rendered = self._render(body, merged, tools)
            except TEMPLATE_ERRORS as second_error:
                raise _template_error(second_error) from None
        if not rendered.token_ids:
            raise RequestError("The chat template made an empty prompt.", param="messages")
        if body.add_special_tokens:
            return RenderedChat(rendered.text, self._text_prefix + rendered.token_ids)
        return rendered

    def _render(
        self, body: ChatCompletionRequest, messages: list[Message], tools: list[Message] | None
    ) -> RenderedChat:
        """Run the template and the tokenizer; what the client says spells no control token."""
        opens_answer = body.add_generation_prompt
        if opens_answer is None:
            opens_answer = not body.continue_final_message
        said = self._control.mark(messages)
        if body.continue_final_message:
            said[-1] = _left_open(said[-1])
        text = self._tokenizer.apply_chat_template(
            said,
            add_generation_prompt=opens_answer,
            tokenize=False,
            tools=self._control.mark(tools),
            **self._control.mark(_template_variables(body)),
        )
        if body.continue_final_message:
            text = _cut_where_it_goes_on(text)
        text = self._control.gather(text)
        return RenderedChat(self._control.unmark(text), self._control.encode(text))


def _left_open(message: Message) -> Message:
    """Mark where a message goes on.

    transformers has an option for this. It cuts the blanks at the end, and before an empty text,
    where the template trims texts; a client that ends with a blank wants an answer after it.
    """
    content = message.get("content")
    if content is None:
        raise ValueError("the last message has no content that could go on")
    return {**message, "content": content + _GOES_ON}


def _cut_where_it_goes_on(text: str) -> str:
    """Return a rendered text up to the mark."""
    before, mark, _ = text.rpartition(_GOES_ON)
    if not mark:
        raise ValueError("the template leaves out the message that is to go on")
    return before


def _template_variables(body: ChatCompletionRequest) -> dict[str, Any]:
    """Return the variables that the request sets for the template."""
    variables: dict[str, Any] = {}
    if body.reasoning_effort is not None:
        variables["reasoning_effort"] = body.reasoning_effort
        if body.reasoning_effort == "none":
            variables["enable_thinking"] = False
    return {**variables, **body.chat_template_kwargs}


def _template_error(error: BaseException) -> RequestError:
    """Carry the template's own words to the client."""
    text = getattr(error, "message", None) or str(error) or type(error).__name__
    message = f"The chat template refused the messages: {text[:500]}"
    return RequestError(message, param="messages", code="chat_template_error")
