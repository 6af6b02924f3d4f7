"""From messages or text to token ids.

Rendering a template and tokenising a long text take time, so they run on a small pool of threads
and never on the event loop. Text of a client that spells a control token is encoded as text in
chats: nobody can forge a role. Threads only read the tokenizer.
"""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from jinja2 import TemplateError

from api_schemas import ChatCompletionRequest, CompletionRequest
from server.chat_messages import Message, merge_leading_system, to_template_messages
from server.request_errors import RequestError

NUM_THREADS = 4
SHORT_TEXT_CHARACTERS = 2048
TEMPLATE_TIMEOUT_SECONDS = 30.0
# What a template, or its filters on odd input, may raise.
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

Result = TypeVar("Result")


class PromptEncoder:
    """Encodes the prompts of all requests with one tokenizer."""

    def __init__(self, tokenizer: Any) -> None:
        """Take a transformers tokenizer.

        Args:
            tokenizer: A `PreTrainedTokenizerBase`.
        """
        self._tokenizer = tokenizer
        self._pool = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="prompt-encoding")
        # The first call may reset what the tokenizer's file says about truncation and padding;
        # later ones, on any thread, find nothing to change.
        self._text_prefix = self._encode("")
        template = getattr(tokenizer, "chat_template", None)
        self._knows_developer = "developer" in str(template)
        self._has_template = template is not None

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def encode_chat(self, body: ChatCompletionRequest) -> list[int]:
        """Render the messages with the chat template and tokenise the result.

        Raises:
            RequestError: The template refused them, or there is none.
        """
        if not self._has_template:
            message = "This model has no chat template; use /v1/completions."
            raise RequestError(message, param="messages", code="no_chat_template")
        call = self._run(self._encode_chat, body)
        try:
            return await asyncio.wait_for(call, TEMPLATE_TIMEOUT_SECONDS)
        except TimeoutError:
            message = f"The chat template took more than {TEMPLATE_TIMEOUT_SECONDS:.0f} seconds."
            raise RequestError(message, param="messages", code="chat_template_error") from None

    async def encode_prompts(self, body: CompletionRequest) -> list[list[int]]:
        """Tokenise each prompt; token lists pass as they are.

        Raises:
            RequestError: A text has no tokens and the model has no token to begin with.
        """
        if sum(len(prompt) for prompt in body.prompt) <= SHORT_TEXT_CHARACTERS:
            return self._encode_prompts(body)
        return await self._run(self._encode_prompts, body)

    def decode_prompt(self, token_ids: Sequence[int]) -> str:
        """Return the text of a prompt given as tokens, special ones included."""
        return str(
            self._tokenizer.decode(
                list(token_ids), skip_special_tokens=False, clean_up_tokenization_spaces=False
            )
        )

    async def _run(self, function: Callable[..., Result], *arguments: Any) -> Result:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, function, *arguments)

    def _encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return list(
            self._tokenizer(text, add_special_tokens=add_special_tokens, verbose=False)["input_ids"]
        )

    def _encode_prompts(self, body: CompletionRequest) -> list[list[int]]:
        return [
            prompt
            if isinstance(prompt, list)
            else self._encode_text(prompt, add_special_tokens=body.add_special_tokens)
            for prompt in body.prompt
        ]

    def _encode_text(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Tokenise a text; an empty one begins with BOS if the model has it."""
        token_ids = self._encode(text, add_special_tokens=add_special_tokens)
        if token_ids:
            return token_ids
        if self._tokenizer.bos_token_id is None:
            raise RequestError("prompt is empty and this model has no BOS token.", param="prompt")
        return [self._tokenizer.bos_token_id]

    def _encode_chat(self, body: ChatCompletionRequest) -> list[int]:
        """Render as given; if the template refuses, once more with the system messages joined."""
        messages = to_template_messages(body.messages, knows_developer=self._knows_developer)
        try:
            token_ids = self._render(body, messages)
        except TEMPLATE_ERRORS as error:
            merged = merge_leading_system(messages)
            if len(merged) == len(messages):
                raise _template_error(error) from None
            try:
                token_ids = self._render(body, merged)
            except TEMPLATE_ERRORS as second_error:
                raise _template_error(second_error) from None
        if not token_ids:
            raise RequestError("The chat template made an empty prompt.", param="messages")
        return self._text_prefix + token_ids if body.add_special_tokens else token_ids

    def _render(self, body: ChatCompletionRequest, messages: list[Message]) -> list[int]:
        """Run the template and the tokenizer."""
        opens_answer = body.add_generation_prompt
        if opens_answer is None:
            opens_answer = not body.continue_final_message
        rendered = self._tokenizer.apply_chat_template(
            messages,
            add_generation_prompt=opens_answer,
            continue_final_message=body.continue_final_message,
            sanitize_control_tokens=True,
            return_dict=False,
            **_template_variables(body),
        )
        return list(rendered)


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
