"""The options of one request by name: where a value comes from, and its plain checks.

Caller's thread, at submit. `parameters` and its neighbours read from an `Options` what they know
how to resolve; a name that nobody knows is refused here.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from transformers import GenerationConfig

from engine.errors import InvalidRequestError
from engine.sampling.checks import as_bool, as_float, as_token_ids

KNOWN_OPTIONS = (
    "bad_words_ids",
    "begin_suppress_tokens",
    "do_sample",
    "encoder_no_repeat_ngram_size",
    "encoder_repetition_penalty",
    "eos_token_id",
    "epsilon_cutoff",
    "eta_cutoff",
    "exponential_decay_length_penalty",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "frequency_penalty",
    "grammar",
    "ignore_eos",
    "logit_bias",
    "max_new_tokens",
    "max_time",
    "min_length",
    "min_new_tokens",
    "min_p",
    "no_repeat_ngram_size",
    "presence_penalty",
    "prompt_logprobs",
    "remove_invalid_values",
    "repetition_penalty",
    "seed",
    "sequence_bias",
    "stop_strings",
    "stop_token_ids",
    "suppress_tokens",
    "temperature",
    "tokenizer",
    "top_h",
    "top_k",
    "top_logprobs",
    "top_p",
    "typical_p",
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


class Options:
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
