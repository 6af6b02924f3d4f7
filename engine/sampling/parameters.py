"""Per-request sampling parameters: their ranges, their defaults, their resolved form.

`resolve_sampling` is the only place where what a caller passed, what the model's generation
configuration says and what the engine can hold become a `SamplingParams` without open ends. It
runs on the caller's thread, at submit, so that a bad value never reaches the engine thread.
"""

import math
import secrets
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field

from transformers import GenerationConfig

from engine.errors import InvalidRequestError, PromptTooLongError
from engine.sampling.checks import as_bias, as_int
from engine.sampling.grammar import Grammar, resolve_grammar
from engine.sampling.options import Options, SamplingLimits
from engine.sampling.random import MASK_64, derive_seed
from engine.sampling.stop_strings import StopStrings, make_stop_strings
from engine.sampling.token_processors import Answer, TokenProcessors, make_processors

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
        max_seconds: Ends the answer with reason length at the first token after this long.
        stop_strings: End the answer with reason stop once min_new_tokens are there; None has none.
        processors: transformers' logits processors for this request; None has none.
        grammar: What the answer must follow; None has none.
        top_logprobs: Alternatives to report at each position; None reports nothing.
        prompt_logprobs: The same for the prompt's positions.
        ending_token_ids: The eos and stop ids together.
        has_plain_end: Whether token ids and their number alone decide when the answer ends.
        is_plain: Whether each token is the argmax of the logits as they are, but for a minimum.
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
    max_seconds: float = math.inf
    stop_strings: StopStrings | None = None
    processors: TokenProcessors | None = None
    grammar: Grammar | None = None
    top_logprobs: int | None = None
    prompt_logprobs: int | None = None
    # Asked for each token of each request, so worked out once.
    ending_token_ids: frozenset[int] = field(init=False)
    has_plain_end: bool = field(init=False)
    is_plain: bool = field(init=False)

    def __post_init__(self) -> None:
        """Work out what the values together mean."""
        set_field = object.__setattr__
        set_field(self, "ending_token_ids", self.eos_token_ids | self.stop_token_ids)
        set_field(self, "has_plain_end", self.stop_strings is None and self.max_seconds == math.inf)
        is_plain = self.greedy and not (
            self.logit_bias
            or self.has_penalties
            or self.processors is not None
            or self.grammar is not None
        )
        set_field(self, "is_plain", is_plain)

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
    read = Options(options, generation_config, limits)
    bias = read.given("logit_bias")
    max_abs = MAX_ABS_PENALTY
    low, high = MIN_REPETITION_PENALTY, MAX_REPETITION_PENALTY
    shape = _resolve_shape(read)
    max_new_tokens = _resolve_max_new_tokens(read, num_prompt_tokens)
    eos = _resolve_eos(read)
    answer = Answer(num_prompt_tokens, max_new_tokens, eos, samples=shape.temperature > 0.0)
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
        eos_token_ids=eos,
        stop_token_ids=read.token_ids("stop_token_ids"),
        min_new_tokens=_resolve_min_new_tokens(read, num_prompt_tokens, max_new_tokens),
        max_new_tokens=max_new_tokens,
        max_seconds=read.number("max_time", math.inf, 0.0, math.inf),
        stop_strings=make_stop_strings(read),
        processors=make_processors(read, answer),
        grammar=resolve_grammar(read, eos),
        top_logprobs=_resolve_report(read, "top_logprobs"),
        prompt_logprobs=_resolve_report(read, "prompt_logprobs"),
    )


def default_processes_logits(generation_config: GenerationConfig, vocab_size: int) -> bool:
    """Return whether requests that say nothing need tensors as wide as the vocabulary.

    Args:
        generation_config: The defaults; what is wrong with them is said to the first request.
        vocab_size: Width of a row of logits.
    """
    limits = SamplingLimits(vocab_size, max_model_tokens=sys.maxsize, seed=0)
    try:
        params = resolve_sampling(generation_config, limits, {}, num_prompt_tokens=1)
    except InvalidRequestError:
        return True
    return (
        params.temperature not in (0.0, 1.0)
        or (params.top_k, params.top_p, params.min_p) != (0, 1.0, 0.0)
        or params.has_penalties
        or params.min_new_tokens > 0
        or params.processors is not None
    )


@dataclass(frozen=True, slots=True)
class _Shape:
    """The options that shape the distribution of a row; neutral when it is greedy."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0


def _resolve_shape(read: Options) -> _Shape:
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


def _resolve_report(read: Options, name: str) -> int | None:
    """Return how many alternatives to report; only a request can ask for them."""
    value = read.given(name)
    return None if value is None else as_int(name, value, 0, MAX_TOP_LOGPROBS)


def _resolve_seed(read: Options, request_index: int) -> int:
    """Return 64 bits: the request's seed, one made from the engine's, or a random one."""
    seed = read.given("seed")
    if seed is not None:
        return as_int("seed", seed, None, None) & MASK_64
    if read.limits.seed is not None:
        return derive_seed(read.limits.seed & MASK_64, request_index)
    return secrets.randbits(64)


def _resolve_eos(read: Options) -> frozenset[int]:
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


def _resolve_max_new_tokens(read: Options, num_prompt_tokens: int) -> int:
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


def _resolve_min_new_tokens(read: Options, num_prompt_tokens: int, max_new_tokens: int) -> int:
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
    default, min_length = read.default("min_new_tokens"), read.value("min_length")
    if default is not None and read.given("min_length") is None:
        floor = as_int("min_new_tokens", default, 0, None)
    elif min_length is not None:  # counted with the prompt; `generate` ignores it beside the other
        floor = max(0, as_int("min_length", min_length, 0, None) - num_prompt_tokens)
    else:
        floor = 0
    return min(floor, max_new_tokens)
