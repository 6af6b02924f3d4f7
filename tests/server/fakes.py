"""An engine without a model: `FakeManager` keeps the contract, threads included.

Every request is answered from a script, one token per step, by one thread that delivers through
`call_soon_threadsafe`. Also the small tokenizers of the tests.
"""

import asyncio
import itertools
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import GenerationConfig, PreTrainedTokenizerFast

from engine import (
    DuplicateRequestError,
    EngineDeadError,
    EngineStatistics,
    EngineStoppingError,
    FinishReason,
    QueueFullError,
    RequestStatus,
    TokenLogprobs,
    family_ids,
)

SPECIAL_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message.role == 'tool' and not message.tool_call_id %}"
    "{{ raise_exception('tool messages need a tool_call_id') }}{% endif %}"
    "{% if not loop.first and message.role == 'system' %}"
    "{{ raise_exception('system must come first') }}{% endif %}"
    "<|im_start|>{{ message.role }}\n{{ message.content }}"
    "{% for call in message.tool_calls or [] %}"
    "[{{ call.function.name }}"
    "{% for key, value in call.function.arguments.items() %} {{ key }}={{ value }}{% endfor %}]"
    "{% endfor %}"
    "<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CORPUS = [
    "The quick brown fox jumps over the lazy dog. hello world, hello there!",
    "one two three four five six seven eight nine ten",
    "user assistant system",
]


def make_byte_level_tokenizer(template: str | None = CHAT_TEMPLATE) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer: any text and any bytes can be spelled."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=SPECIAL_TOKENS,
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS * 3, trainer)
    tokenizer.add_tokens([AddedToken("<think>", special=False)])
    return _wrap(tokenizer, template)


def make_metaspace_tokenizer(*, byte_fallback: bool = False) -> PreTrainedTokenizerFast:
    """A SentencePiece-like tokenizer: blanks are part of the words, as a low line."""
    words = ["▁", "▁hello", "▁world", "hello", *"helowrd.�é"]
    vocabulary = [*SPECIAL_TOKENS, *dict.fromkeys(words)]
    if byte_fallback:
        vocabulary += [f"<0x{byte:02X}>" for byte in range(256)]
    ids = {token: number for number, token in enumerate(vocabulary)}
    tokenizer = Tokenizer(models.BPE(ids, [], byte_fallback=byte_fallback))
    if byte_fallback:
        tokenizer.decoder = decoders.Sequence(
            [
                decoders.Replace("▁", " "),
                decoders.ByteFallback(),
                decoders.Fuse(),
                decoders.Strip(content=" ", left=1, right=0),
            ]
        )
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
        tokenizer.decoder = decoders.Metaspace()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL_TOKENS])
    return _wrap(tokenizer, None)


def make_wordpiece_tokenizer() -> PreTrainedTokenizerFast:
    """A WordPiece-like tokenizer: continuations are marked, punctuation is pulled to its word."""
    vocabulary = [
        *SPECIAL_TOKENS,
        "hello",
        "##ing",
        "world",
        ".",
        ",",
        "do",
        "n't",
        "'",
        "s",
        "##s",
    ]
    ids = {token: number for number, token in enumerate(vocabulary)}
    tokenizer = Tokenizer(models.WordPiece(ids, unk_token="<|endoftext|>"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL_TOKENS])
    return _wrap(tokenizer, None)


def ids_of(tokenizer: PreTrainedTokenizerFast, tokens: Sequence[str]) -> list[int]:
    """The ids of tokens spelled as the vocabulary spells them."""
    vocabulary = tokenizer.get_vocab()
    return [vocabulary[token] for token in tokens]


def _wrap(tokenizer: Tokenizer, template: str | None) -> PreTrainedTokenizerFast:
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<|endoftext|>",
        eos_token="<|im_end|>",
        additional_special_tokens=["<|im_start|>"],
    )
    wrapped.chat_template = template
    return wrapped


@dataclass
class FakeOutput:
    """What the engine delivers, as far as the server reads it."""

    request_id: str
    status: RequestStatus
    new_tokens: list[int] = field(default_factory=list)
    new_logprobs: list[TokenLogprobs] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    stop_reason: int | None = None
    exception: BaseException | None = None
    num_cached_tokens: int = 0
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    pooled: list[float] | None = None
    num_preemptions: int = 0
    lifespan: tuple[float, float] = field(default_factory=lambda: (time.perf_counter(), -1.0))

    def is_finished(self) -> bool:
        return self.status >= RequestStatus.FINISHED


@dataclass
class FakeRequest:
    """A request the fake engine runs."""

    request_id: str
    input_ids: list[int]
    arguments: dict[str, Any]
    script: list[int | BaseException]
    num_generated: int = 0


@dataclass(frozen=True)
class FakeModel:
    """What the server reads of a model."""

    generation_config: GenerationConfig = field(default_factory=GenerationConfig)
    dtype: str = "float32"
    vocab_size: int = 512
    vector_size: int | None = 4


@dataclass(frozen=True)
class FakeResolved:
    max_model_tokens: int
    scheduler_type: str = "fifo"
    max_queue_size: int = 0


def _prompt_entry(token: int, count: int) -> TokenLogprobs:
    return TokenLogprobs(token, -1.5, tuple((token + n, -1.5 - n) for n in range(count)), 1)


Script = Callable[[list[int], dict[str, Any]], Sequence[int | BaseException]]


class FakeManager:
    """The manager's contract over scripted answers.

    A script returns the tokens of an answer; an exception in it fails the request there. Set
    `paused` to hold all requests, `pause_after` to hold them once one has so many tokens,
    `queue_full_after` to refuse the later ones.
    """

    def __init__(self, script: Script, *, eos_token_id: int, max_model_tokens: int = 256) -> None:
        self.script = script
        self.eos_token_id = eos_token_id
        self.resolved_config = FakeResolved(max_model_tokens)
        self.fatal_error: BaseException | None = None
        self.paused = threading.Event()
        self.num_steps = 0
        self.added: list[FakeRequest] = []
        self.cancelled: list[str] = []
        self.reset()
        self._handlers: dict[str, tuple[asyncio.AbstractEventLoop, Callable[[Any], None]]] = {}
        self._active: dict[str, FakeRequest] = {}
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._names = itertools.count()

    # The contract.

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="fake-engine", daemon=True)
        self._thread.start()

    def statistics(self) -> EngineStatistics:
        paused = self.paused.is_set()
        return EngineStatistics(
            num_live=len(self._active), num_steps=self.num_steps, is_paused=paused
        )

    def warmup(self) -> None:
        assert not self.is_running(), "the engine warms up before it starts"

    def stop(
        self,
        block: bool = True,
        timeout: float | None = None,
        keep_for_next_session: bool = False,
        hard_stop: bool = False,
    ) -> None:
        self._stopping.set()
        if block and self._thread is not None:
            self._thread.join(timeout)

    def is_running(self) -> bool:
        return self._thread is not None and self._thread.is_alive() and self.fatal_error is None

    def add_request(
        self,
        input_ids: list[int],
        request_id: str | None = None,
        max_new_tokens: int | None = None,
        streaming: bool = False,
        **sampling: Any,
    ) -> str:
        assert streaming, "the server always asks for a stream"
        request_id = request_id or f"req-{next(self._names)}"
        if self.fatal_error is not None:
            raise EngineDeadError("dead") from self.fatal_error
        if self._stopping.is_set():
            raise EngineStoppingError("stopping")
        with self._lock:
            if request_id in self._active:
                raise DuplicateRequestError(request_id)
            if self.queue_full_after is not None and len(self.added) >= self.queue_full_after:
                raise QueueFullError(num_waiting=len(self._active), retry_after_seconds=2.3)
            count = sampling.pop("num_return_sequences", 1)
            *others, own = family_ids(request_id, count)
            for number, name in enumerate((own, *others)):
                arguments = {**sampling, "max_new_tokens": max_new_tokens}
                if arguments.get("seed") is not None:
                    arguments["seed"] += number
                request = FakeRequest(name, list(input_ids), arguments, [])
                request.script = list(self.script(request.input_ids, arguments))
                self.added.append(request)
                self._active[name] = request
        return request_id

    def register_result_handler(self, request_id: str, callback: Callable[[Any], None]) -> None:
        self._handlers[request_id] = (asyncio.get_running_loop(), callback)

    def unregister_result_handler(self, request_id: str) -> None:
        self._handlers.pop(request_id, None)

    def cancel_request(self, request_id: str) -> None:
        with self._lock:
            self.cancelled.append(request_id)
            if self._active.pop(request_id, None) is not None:
                self._deliver(
                    FakeOutput(
                        request_id,
                        RequestStatus.CANCELLED,
                        finish_reason=FinishReason.CANCELLED,
                    )
                )

    # What tests do to it.

    def reset(self) -> None:
        """Forget what was asked, and be as quick and as patient as at the beginning."""
        self.added.clear()
        self.cancelled.clear()
        self.paused.clear()
        self.step_seconds = 0.0
        self.tokens_per_output = 1
        self.queue_full_after: int | None = None
        self.pause_after: int | None = None
        self.logprob_of: Callable[[int], float] = lambda _token: -0.5
        self.num_cached_tokens = 0

    @property
    def num_active(self) -> int:
        return len(self._active)

    @property
    def num_handlers(self) -> int:
        return len(self._handlers)

    def die(self, cause: BaseException) -> None:
        """Let the loop die, as an error in a step that nobody caught does."""
        with self._lock:
            self.fatal_error = cause
            for request_id in list(self._active):
                del self._active[request_id]
                error = EngineDeadError("the engine loop died")
                error.__cause__ = cause
                self._deliver(
                    FakeOutput(
                        request_id,
                        RequestStatus.FAILED,
                        finish_reason=FinishReason.ERROR,
                        exception=error,
                    )
                )

    def wait_until(self, condition: Callable[[], bool], seconds: float = 5.0) -> None:
        """Wait for something that another thread brings about."""
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, "it did not happen in time"
            time.sleep(0.002)

    # The engine thread.

    def _run(self) -> None:
        while not self._stopping.is_set():
            with self._lock:
                requests = [] if self.paused.is_set() else list(self._active.values())
                for request in requests:
                    self._step(request)
                self.num_steps += 1
            time.sleep(self.step_seconds if requests else 0.001)

    def _step(self, request: FakeRequest) -> None:
        output = FakeOutput(
            request.request_id,
            RequestStatus.DECODING,
            num_cached_tokens=self.num_cached_tokens,
        )
        for _ in range(self.tokens_per_output):
            self._generate(request, output)
            if output.is_finished():
                del self._active[request.request_id]
                break
        self._deliver(output)

    def _generate(self, request: FakeRequest, output: FakeOutput) -> None:
        token = request.script[request.num_generated]
        if isinstance(token, BaseException):
            output.status, output.finish_reason = RequestStatus.FAILED, FinishReason.ERROR
            output.exception = token
            return
        request.num_generated += 1
        if request.num_generated == self.pause_after:
            self.paused.set()
        output.new_tokens.append(token)
        top = request.arguments.get("top_logprobs")
        if top is not None:
            likely = tuple((token + n, -0.5 - n) for n in range(top))
            output.new_logprobs.append(TokenLogprobs(token, self.logprob_of(token), likely))
        count = request.arguments.get("prompt_logprobs")
        if count is not None:
            about = [_prompt_entry(token, count) for token in request.input_ids[1:]]
            output.prompt_logprobs = [None, *about]
        limit = request.arguments["max_new_tokens"]
        if token in (request.arguments.get("stop_token_ids") or ()):
            output.status, output.finish_reason = RequestStatus.FINISHED, FinishReason.STOP
            output.stop_reason = token
        elif token == self.eos_token_id and not request.arguments.get("ignore_eos"):
            output.status, output.finish_reason = RequestStatus.FINISHED, FinishReason.STOP
        elif request.num_generated in (limit, len(request.script)):
            output.status, output.finish_reason = RequestStatus.FINISHED, FinishReason.LENGTH
        if request.arguments.get("pooling") is not None:
            output.pooled = [float(len(request.input_ids)), 3.0, -4.0, 0.5]

    def _deliver(self, output: FakeOutput) -> None:
        handler = self._handlers.get(output.request_id)
        if handler is None:
            return
        loop, callback = handler
        if output.is_finished():
            del self._handlers[output.request_id]
        if not loop.is_closed():
            loop.call_soon_threadsafe(callback, output)
