"""Per-request sampling parameters: their ranges, their defaults, their resolved form.

`resolve_sampling` is the only place where what a caller passed, what the model's generation
configuration says and what the engine can hold become a `SamplingParams` without open ends. It
runs on the caller's thread, at submit, so that a bad value never reaches the engine thread.
"""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field

from transformers import GenerationConfig

from engine.errors import InvalidRequestError, PromptTooLongError
from engine.sampling.checks import as_bias, as_bool, as_float, as_int, as_token_ids
from engine.sampling.random import MASK_64, derive_seed

MAX_TOP_LOGPROBS = 100

# Above this the distribution is flat to within the resolution of bf16 logits.
MAX_TEMPERATURE = 100.0

# Below this a logit gap of one bf16 step at 1.0 decides the draw, and dividing by much smaller
# numbers leaves fp32; the request is greedy, as in vLLM (`_SAMPLING_EPS`).
MIN_TEMPERATURE = 1e-5

# Wider than OpenAI's -2 to 2; the wire schema narrows it where it promises so.
MAX_ABS_PENALTY = 100.0
MIN_REPETITION_PENALTY = 1e-2
MAX_REPETITION_PENALTY = 1e2

# What `generate` samples with when nothing sets top_k.
# Source: transformers 5.24 `GenerationConfig._get_default_generation_params`.
DEFAULT_TOP_K = 50

KNOWN_OPTIONS = (
    "do_sample",
    "eos_token_id",
    "frequency_penalty",
    "ignore_eos",
    "logit_bias",
    "max_new_tokens",
    "min_new_tokens",
    "min_p",
    "presence_penalty",
    "repetition_penalty",
    "seed",
    "stop_token_ids",
    "temperature",
    "top_k",
    "top_logprobs",
    "top_p",
)


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How one request draws its tokens and when it stops.

    Attributes:
        temperature: Divides the logits; 0 takes the most likely token.
        top_k: Keep the k most likely tokens; 0 keeps all.
        top_p: Keep the smallest set of most likely tokens whose probability reaches this.
        min_p: Drop tokens less likely than this share of the most likely one.
        seed: Names the request's random stream; a draw depends on (seed, position) alone.
        repetition_penalty: Divides positive and multiplies negative logits of tokens seen in the
            prompt or the output (Keskar et al. 2019, CTRL, section 4.1).
        presence_penalty: Subtracted from the logits of tokens in the output.
        frequency_penalty: Subtracted once per occurrence in the output.
        logit_bias: Added to the logits of these token ids.
        eos_token_ids: End the answer with reason stop; masked until min_new_tokens.
        stop_token_ids: Likewise, and reported as the stop reason.
        min_new_tokens: Tokens before which neither eos nor stop ids may be drawn.
        max_new_tokens: Tokens after which the answer ends with reason length.
        top_logprobs: Alternatives to report at each position; None reports nothing.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    eos_token_ids: frozenset[int] = frozenset()
    stop_token_ids: frozenset[int] = frozenset()
    min_new_tokens: int = 0
    max_new_tokens: int = 1
    top_logprobs: int | None = None

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is taken, with no draw."""
        return self.temperature == 0.0

    @property
    def has_penalties(self) -> bool:
        """Whether the logits depend on tokens seen before."""
        return (
            self.repetition_penalty != 1.0
            or self.presence_penalty != 0.0
            or self.frequency_penalty != 0.0
        )


@dataclass(frozen=True, slots=True)
class SamplingLimits:
    """What a request may ask for, fixed when the engine is assembled.

    Attributes:
        vocab_size: Width of a logits row; token ids lie in [0, vocab_size).
        max_model_tokens: Positions one request may use, prompt and answer together.
        seed: Engine-wide seed that unseeded requests derive theirs from; None draws at random.
    """

    vocab_size: int
    max_model_tokens: int
    seed: int | None = None


class _Options:
    """Reads one option after the other: the request's value, else the configuration's, else off."""

    def __init__(
        self,
        options: Mapping[str, object],
        generation_config: GenerationConfig,
        limits: SamplingLimits,
    ) -> None:
        """Refuse names that mean nothing here."""
        unknown = sorted(str(name) for name in options if name not in KNOWN_OPTIONS)
        if unknown:
            raise InvalidRequestError(
                f"unknown sampling option {unknown[0]!r}; known are {', '.join(KNOWN_OPTIONS)}",
                param=unknown[0],
            )
        self._options = options
        self._generation_config = generation_config
        self.limits = limits

    def given(self, name: str) -> object:
        """Return what the request says, or None."""
        return self._options.get(name)

    def default(self, name: str) -> object:
        """Return what the generation configuration says, or None."""
        return getattr(self._generation_config, name, None)

    def value(self, name: str) -> object:
        """Return the request's value, else the configuration's, else None."""
        given = self.given(name)
        return self.default(name) if given is None else given

    def flag(self, name: str) -> bool:
        """Return an option that is on or off."""
        value = self.value(name)
        return False if value is None else as_bool(name, value)

    def number(self, name: str, off: float, low: float, high: float) -> float:
        """Return a number in [low, high], or off."""
        value = self.value(name)
        return off if value is None else as_float(name, value, low, high)

    def token_ids(self, name: str) -> frozenset[int]:
        """Return a set of token ids; the generation configuration has no say."""
        value = self.given(name)
        return frozenset() if value is None else as_token_ids(name, value, self.limits.vocab_size)


def resolve_sampling(
    generation_config: GenerationConfig,
    limits: SamplingLimits,
    options: Mapping[str, object],
    *,
    num_prompt_tokens: int,
    request_index: int = 0,
) -> SamplingParams:
    """Turn what a request asks for into parameters without open ends.

    An option that is absent or None takes its value from the generation configuration, and what
    that leaves open is as in transformers' `generate`: greedy unless do_sample is set. A
    temperature that is given decides by itself: 0 is greedy, anything else samples.

    Args:
        generation_config: The defaults.
        limits: What the engine can hold.
        options: Values by name, of KNOWN_OPTIONS.
        num_prompt_tokens: Length of the prompt, in tokens; its ids are checked elsewhere.
        request_index: The request's place in the order of submission; gives a request without a
            seed its own one when the engine has a seed.

    Raises:
        InvalidRequestError: A name is unknown, or a value has the wrong type or range.
        PromptTooLongError: The prompt, alone or with max_new_tokens, exceeds max_model_tokens.
    """
    read = _Options(options, generation_config, limits)
    top_logprobs = read.given("top_logprobs")
    bias = read.given("logit_bias")
    max_abs = MAX_ABS_PENALTY
    low, high = MIN_REPETITION_PENALTY, MAX_REPETITION_PENALTY
    shape = _resolve_shape(read)
    max_new_tokens = _resolve_max_new_tokens(read, num_prompt_tokens)
    return SamplingParams(
        temperature=shape.temperature,
        top_k=shape.top_k,
        top_p=shape.top_p,
        min_p=shape.min_p,
        seed=_resolve_seed(read, request_index),
        repetition_penalty=read.number("repetition_penalty", 1.0, low, high),
        presence_penalty=read.number("presence_penalty", 0.0, -max_abs, max_abs),
        frequency_penalty=read.number("frequency_penalty", 0.0, -max_abs, max_abs),
        logit_bias={} if bias is None else as_bias("logit_bias", bias, limits.vocab_size),
        eos_token_ids=_resolve_eos(read),
        stop_token_ids=read.token_ids("stop_token_ids"),
        min_new_tokens=_resolve_min_new_tokens(read, num_prompt_tokens, max_new_tokens),
        max_new_tokens=max_new_tokens,
        top_logprobs=None
        if top_logprobs is None
        else as_int("top_logprobs", top_logprobs, 0, MAX_TOP_LOGPROBS),
    )


@dataclass(frozen=True, slots=True)
class _Shape:
    """The options that shape the distribution of a row; neutral when it is greedy."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0


def _resolve_shape(read: _Options) -> _Shape:
    """Decide between greedy and sampling; everything is checked in either case."""
    temperature = read.number("temperature", 1.0, 0.0, MAX_TEMPERATURE)
    top_k = read.value("top_k")
    shape = _Shape(
        temperature=temperature,
        top_k=DEFAULT_TOP_K if top_k is None else max(as_int("top_k", top_k, -1, None), 0),
        top_p=read.number("top_p", 1.0, 0.0, 1.0),
        min_p=read.number("min_p", 0.0, 0.0, 1.0),
    )
    if read.given("do_sample") is None and read.given("temperature") is not None:
        samples = True
    else:
        samples = read.flag("do_sample")
    return shape if samples and temperature >= MIN_TEMPERATURE else _Shape()


def _resolve_seed(read: _Options, request_index: int) -> int:
    """Return 64 bits: the request's seed, one made from the engine's, or a random one."""
    seed = read.given("seed")
    if seed is not None:
        return as_int("seed", seed, None, None) & MASK_64
    if read.limits.seed is not None:
        return derive_seed(read.limits.seed & MASK_64, request_index)
    return secrets.randbits(64)


def _resolve_eos(read: _Options) -> frozenset[int]:
    """Return the ids that end the answer; a negative one stands for none.

    An id of the configuration that the model cannot produce is left out; one of the request is
    refused.
    """
    given, default = read.given("eos_token_id"), read.default("eos_token_id")
    value, largest = (default, None) if given is None else (given, read.limits.vocab_size - 1)
    ignores = read.flag("ignore_eos")
    if value is None:
        return frozenset()
    listed = value if isinstance(value, list | tuple | set | frozenset) else (value,)
    ids = {as_int("eos_token_id", item, None, largest) for item in listed}
    return (
        frozenset()
        if ignores
        else frozenset(item for item in ids if 0 <= item < read.limits.vocab_size)
    )


def _resolve_max_new_tokens(read: _Options, num_prompt_tokens: int) -> int:
    """Return how long the answer may be; a default is cut to what fits, a request is not.

    Raises:
        PromptTooLongError: Not even one token fits, or not as many as asked for.
    """
    given, default = read.given("max_new_tokens"), read.default("max_new_tokens")
    asked = None if given is None else as_int("max_new_tokens", given, 1, None)
    most = read.limits.max_model_tokens
    room = most - num_prompt_tokens
    if room < 1 or (asked is not None and asked > room):
        raise PromptTooLongError(
            num_prompt_tokens=num_prompt_tokens,
            num_new_tokens=None if room < 1 else asked,
            max_model_tokens=most,
        )
    if asked is not None:
        return asked
    return room if default is None else min(as_int("max_new_tokens", default, 1, None), room)


def _resolve_min_new_tokens(read: _Options, num_prompt_tokens: int, max_new_tokens: int) -> int:
    """Return how many tokens come before the answer may end; only a request's value must fit.

    Raises:
        InvalidRequestError: The request asks for more than max_new_tokens.
    """
    given = read.given("min_new_tokens")
    if given is not None:
        asked = as_int("min_new_tokens", given, 0, None)
        if asked > max_new_tokens:
            raise InvalidRequestError(
                f"min_new_tokens is {asked}, more than the {max_new_tokens} tokens of the answer",
                param="min_new_tokens",
            )
        return asked
    default, min_length = read.default("min_new_tokens"), read.default("min_length")
    floor = 0 if default is None else as_int("min_new_tokens", default, 0, None)
    if min_length is not None:  # the same, counted with the prompt
        floor = max(floor, as_int("min_length", min_length, 0, None) - num_prompt_tokens)
    return min(floor, max_new_tokens)
