"""transformers' own token-level logits processors, one request at a time, on its whole history.

`make_processors` runs on the caller's thread, at submit: it checks the options and builds what
`generate` would build for this request alone. The engine thread then hands each processor
[1, L] token ids, prompt and output, and the request's own [1, V] row of scores; where in the order
of the sampler's own steps a processor stands is its `Stage`. Must never look at another row.

Source of order and conditions: transformers 5.24 `GenerationMixin._get_logits_processor`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch
from transformers.generation import logits_process as hf

from engine.sampling.checks import (
    as_float,
    as_int,
    as_sequence_bias,
    as_token_ids,
    as_token_sequences,
    wrong_value,
)
from engine.sampling.options import Options

# (input_ids [1, L], scores [1, V]) -> scores [1, V]
Processor = Callable[[Any, Any], torch.Tensor]

MAX_ENCODER_PENALTY = 1e2
MAX_DECAY_FACTOR = 1e3


class Stage(Enum):
    """When a processor's turn comes."""

    BIAS = "before the penalties"
    BAN = "after the penalties, before the ends of the answer are masked"
    FORCE = "last, before temperature"
    HEAT = "after temperature, before top-k"
    CUT = "after min-p"


# What changes a row in place; the other stages are only for rows that are sampled.
_EDITS = (Stage.BIAS, Stage.BAN, Stage.FORCE)


@dataclass(frozen=True, slots=True, eq=False)
class TokenProcessors:
    """A request's processors; they hold no state that a token would change.

    Attributes:
        stages: The processors of each stage, in their order.
        takes_invalid: Whether logits that are not numbers are mended instead of refused.
    """

    stages: Mapping[Stage, tuple[Processor, ...]]
    takes_invalid: bool = False

    @property
    def edits(self) -> bool:
        """Whether a row changes before temperature."""
        return any(stage in self.stages for stage in _EDITS)

    @property
    def shapes(self) -> bool:
        """Whether the distribution of a sampled row is cut further."""
        return Stage.HEAT in self.stages or Stage.CUT in self.stages

    def apply(self, stage: Stage, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Return one row's [1, V] fp32 scores after a stage; the given ones are not changed.

        Args:
            stage: Which one.
            input_ids: [1, L] int64, on the device of the scores.
            scores: [1, V] fp32.
        """
        for processor in self.stages.get(stage, ()):
            scores = processor(input_ids, scores)
        return scores


@dataclass(frozen=True, slots=True)
class Answer:
    """What processors have to know of a request's answer.

    Attributes:
        num_prompt_tokens: Where it begins.
        max_new_tokens: How long it may become.
        eos_token_ids: What ends it.
        samples: Whether its tokens are drawn, not taken as the most likely.
    """

    num_prompt_tokens: int
    max_new_tokens: int
    eos_token_ids: frozenset[int]
    samples: bool


class _OnPrompt:
    """A processor that needs the prompt, and is made when it first sees the tokens."""

    def __init__(self, make: Callable[[Any], Processor], num_prompt_tokens: int) -> None:
        self._make = make
        self._num_prompt_tokens = num_prompt_tokens
        self._processor: Processor | None = None

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        if self._processor is None:
            self._processor = self._make(input_ids[:, : self._num_prompt_tokens].clone())
        return self._processor(input_ids, scores)


def make_processors(read: Options, answer: Answer) -> TokenProcessors | None:
    """Return the processors that a request's options ask for; None if there are none.

    Raises:
        InvalidRequestError: An option has the wrong type or range.
    """
    stages: dict[Stage, tuple[Processor, ...]] = {}
    takes_invalid = False
    for name, stage, make in _MAKERS:
        value = read.value(name)
        if value is None:
            continue
        processor = make(name, value, read, answer)
        if processor is None or (stage not in _EDITS and not answer.samples):
            continue
        stages[stage] = (*stages.get(stage, ()), processor)
        takes_invalid = takes_invalid or name == "remove_invalid_values"
    return TokenProcessors(stages, takes_invalid) if stages else None


def _sequence_bias(name: str, value: object, read: Options, answer: Answer) -> Processor | None:
    bias = as_sequence_bias(name, value, read.limits.vocab_size)
    return hf.SequenceBiasLogitsProcessor(bias) if bias else None  # type: ignore[arg-type]


def _encoder_repetition(
    name: str, value: object, read: Options, answer: Answer
) -> Processor | None:
    penalty = as_float(name, value, 1 / MAX_ENCODER_PENALTY, MAX_ENCODER_PENALTY)
    if penalty == 1.0:
        return None
    return _OnPrompt(
        lambda prompt: hf.EncoderRepetitionPenaltyLogitsProcessor(penalty, prompt),
        answer.num_prompt_tokens,
    )


def _no_repeat_ngram(name: str, value: object, read: Options, answer: Answer) -> Processor | None:
    size = as_int(name, value, 0, None)
    return hf.NoRepeatNGramLogitsProcessor(size) if size else None


def _encoder_no_repeat_ngram(
    name: str, value: object, read: Options, answer: Answer
) -> Processor | None:
    size = as_int(name, value, 0, None)
    if size == 0:
        return None
    return _OnPrompt(
        lambda prompt: hf.EncoderNoRepeatNGramLogitsProcessor(size, prompt),
        answer.num_prompt_tokens,
    )


def _bad_words(name: str, value: object, read: Options, answer: Answer) -> Processor | None:
    words = as_token_sequences(name, value, read.limits.vocab_size)
    if not words:
        return None
    return hf.NoBadWordsLogitsProcessor(words, sorted(answer.eos_token_ids) or None)


def _forced_bos(name: str, value: object, read: Options, answer: Answer) -> Processor | None:
    return hf.ForcedBOSTokenLogitsProcessor(as_int(name, value, 0, read.limits.vocab_size - 1))


def _forced_eos(name: str, value: object, read: Options, answer: Answer) -> Processor | None:
    listed = value if isinstance(value, list | tuple) else (value,)
    ids = as_token_ids(name, listed, read.limits.vocab_size)
    if not ids:
        return None
    longest = answer.num_prompt_tokens + answer.max_new_tokens
    return hf.ForcedEOSTokenLogitsProcessor(longest, sorted(ids))


def _remove_invalid(name: str, value: object, read: Options, answer: Answer) -> Processor | None:
    return hf.InfNanRemoveLogitsProcessor() if read.flag(name) else None


def _decay(name: str, value: object, read: Options, answer: Answer) -> Processor | None:
    if isinstance(value, list | tuple) and not value:
        return None
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise wrong_value(name, value, "[start, factor]")
    start, factor = as_int(name, value[0], 0, None), as_float(name, value[1], 0, MAX_DECAY_FACTOR)
    if not answer.eos_token_ids:  # nothing that could become likelier
        return None
    return hf.ExponentialDecayLengthPenalty(
        (start, factor), sorted(answer.eos_token_ids), answer.num_prompt_tokens
    )


def _suppress(name: str, value: object, read: Options, answer: Answer) -> Processor | None:
    ids = as_token_ids(name, value, read.limits.vocab_size)
    return hf.SuppressTokensLogitsProcessor(sorted(ids)) if ids else None


def _suppress_first(name: str, value: object, read: Options, answer: Answer) -> Processor | None:
    ids = as_token_ids(name, value, read.limits.vocab_size)
    if not ids:
        return None
    first = answer.num_prompt_tokens
    if first == 1 and read.value("forced_bos_token_id") is not None:
        first += 1  # the first token is not the answer's own
    return hf.SuppressTokensAtBeginLogitsProcessor(sorted(ids), first)


def _top_h(name: str, value: object, read: Options, answer: Answer) -> Processor | None:
    share = as_float(name, value, 0.0, 1.0)
    return hf.TopHLogitsWarper(share) if share else None


def _typical(name: str, value: object, read: Options, answer: Answer) -> Processor | None:
    mass = as_float(name, value, 0.0, 1.0)
    return hf.TypicalLogitsWarper(mass) if 0.0 < mass < 1.0 else None


def _epsilon(name: str, value: object, read: Options, answer: Answer) -> Processor | None:
    cutoff = as_float(name, value, 0.0, 1.0)
    return hf.EpsilonLogitsWarper(cutoff) if 0.0 < cutoff < 1.0 else None


def _eta(name: str, value: object, read: Options, answer: Answer) -> Processor | None:
    cutoff = as_float(name, value, 0.0, 1.0)
    return hf.EtaLogitsWarper(cutoff) if 0.0 < cutoff < 1.0 else None


_Maker = Callable[[str, object, Options, Answer], Processor | None]

# In the order of `generate`; a stage's processors run in the order in which they stand here.
_MAKERS: tuple[tuple[str, Stage, _Maker], ...] = (
    ("sequence_bias", Stage.BIAS, _sequence_bias),
    ("encoder_repetition_penalty", Stage.BIAS, _encoder_repetition),
    ("no_repeat_ngram_size", Stage.BAN, _no_repeat_ngram),
    ("encoder_no_repeat_ngram_size", Stage.BAN, _encoder_no_repeat_ngram),
    ("bad_words_ids", Stage.BAN, _bad_words),
    ("forced_bos_token_id", Stage.FORCE, _forced_bos),
    ("forced_eos_token_id", Stage.FORCE, _forced_eos),
    ("remove_invalid_values", Stage.FORCE, _remove_invalid),
    ("exponential_decay_length_penalty", Stage.FORCE, _decay),
    ("suppress_tokens", Stage.FORCE, _suppress),
    ("begin_suppress_tokens", Stage.FORCE, _suppress_first),
    ("top_h", Stage.HEAT, _top_h),
    ("typical_p", Stage.CUT, _typical),
    ("epsilon_cutoff", Stage.CUT, _epsilon),
    ("eta_cutoff", Stage.CUT, _eta),
)
