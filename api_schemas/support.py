"""What becomes of each request field: honoured, refused or ignored.

The request models read these tables, so a field can't be documented one way and treated another;
`docs/compatibility.md` is generated from them. Data only.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any


class Handling(Enum):
    """What the server does with a field."""

    SUPPORTED = "supported"
    REFUSED = "refused"
    IGNORED = "ignored"


@dataclass(frozen=True, slots=True)
class FieldSupport:
    """One field of a request.

    Attributes:
        name: Its name on the wire.
        handling: What the server does with it.
        note: What is particular about it, for the reader of the documentation.
        neutral: Values of a refused field that ask for nothing and pass.
        hint: What a client that is refused can do instead; begins with a blank.
    """

    name: str
    handling: Handling
    note: str = ""
    neutral: tuple[Any, ...] = ()
    hint: str = ""


def _supported(**notes: str) -> Iterable[FieldSupport]:
    return (FieldSupport(name, Handling.SUPPORTED, note) for name, note in notes.items())


def _ignored(note: str, *names: str) -> Iterable[FieldSupport]:
    return (FieldSupport(name, Handling.IGNORED, note) for name in names)


def _refused(name: str, *neutral: Any, note: str = "", hint: str = "") -> FieldSupport:
    return FieldSupport(name, Handling.REFUSED, note, neutral, hint)


SHARED_FIELDS: tuple[FieldSupport, ...] = (
    *_supported(
        model="a served name; may be left out",
        max_tokens="more than the context holds is refused; left out, it is clamped",
        n="choice k draws from seed + k",
        stop="up to the server's limit; special tokens match too",
        stop_token_ids="end the answer; counted, their text is hidden",
        include_stop_str_in_output="keeps the matched stop string or stop token's text",
        stream="server-sent events",
        stream_options="include_usage and continuous_usage_stats",
        temperature="0 takes the most likely token",
        top_p="0 takes the most likely token",
        top_k="0 and -1 keep all tokens",
        min_p="",
        repetition_penalty="over prompt and answer",
        presence_penalty="over the answer only",
        frequency_penalty="over the answer only",
        logit_bias="token id to bias",
        seed="independent of what else runs",
        ignore_eos="runs to max_tokens",
        min_tokens="stop strings are not looked for before it",
        skip_special_tokens="false shows special tokens, the closing one included",
        add_special_tokens="completions true, chat false by default",
        return_token_ids="adds token_ids, and prompt_token_ids where a choice begins",
        service_tier="echoed",
    ),
    *_ignored(
        "no effect on the answer",
        "user",
        "metadata",
        "store",
        "prompt_cache_key",
        "safety_identifier",
        "prediction",
        "moderation",
        "request_id",
        "session_id",
    ),
    *_ignored(
        "details of samplers that are refused when switched on",
        "dry_base",
        "dry_allowed_length",
        "dry_sequence_breakers",
        "xtc_threshold",
        "mirostat_tau",
        "mirostat_eta",
        "dynatemp_exponent",
        "early_stopping",
    ),
    _refused("typical_p", 1, 1.0),
    _refused("typical", 1, 1.0),
    _refused("top_a", 0, 0.0),
    _refused("tfs", 1, 1.0),
    _refused("dry_multiplier", 0, 0.0),
    _refused("xtc_probability", 0, 0.0),
    _refused("mirostat_mode", 0),
    _refused("mirostat", 0),
    _refused("dynatemp_range", 0, 0.0),
    _refused("length_penalty", 1, 1.0),
    _refused("use_beam_search", False),
    _refused("spaces_between_special_tokens", True),
    _refused("truncate_prompt_tokens", hint=" Shorten the prompt before sending it."),
    _refused("truncation_side", "left"),
    _refused("prompt_logprobs"),
    _refused("allowed_token_ids", hint=" Use logit_bias."),
    _refused("bad_words", [], hint=" Use logit_bias."),
    _refused("logprob_token_ids", []),
    _refused("return_tokens_as_token_ids", False, hint=" Use return_token_ids."),
    _refused("return_prompt_text", False),
    _refused("structured_outputs", {}),
    _refused("response_format", {"type": "text"}, note='only {"type": "text"}'),
    _refused("guided_json"),
    _refused("guided_regex"),
    _refused("guided_choice", []),
    _refused("guided_grammar"),
    _refused("guided_decoding_backend"),
    _refused("guided_whitespace_pattern"),
    _refused("grammar", ""),
    _refused("json_schema", {}),
    _refused("regex", ""),
    _refused("ebnf", ""),
    _refused("priority", 0),
    _refused("cache_salt", ""),
    _refused("repetition_detection", False, {}),
    _refused("stream_interval", 1),
    _refused("timeout"),
    _refused("t_max_predict_ms", 0, -1),
)

CHAT_FIELDS: tuple[FieldSupport, ...] = (
    *SHARED_FIELDS,
    *_supported(
        messages="roles system, developer, user, assistant, tool and function; text only",
        max_completion_tokens="wins over max_tokens; -1 is unlimited for both",
        logprobs="of the model's own distribution",
        top_logprobs="needs logprobs",
        reasoning_effort="given to the template; none also sets enable_thinking to false",
        chat_template_kwargs="given to the template, except reserved names",
        add_generation_prompt="",
        continue_final_message="needs add_generation_prompt false",
    ),
    *_ignored("no effect on the answer", "web_search_options", "verbosity"),
    *_ignored("no effect without tools", "parallel_tool_calls"),
    _refused("tools", []),
    _refused("tool_choice", "none", hint=" No tools are given."),
    _refused("functions", []),
    _refused("function_call", "none"),
    _refused("modalities", ["text"]),
    _refused("audio"),
    _refused("thinking_token_budget"),
    _refused("include_reasoning", True),
    _refused("documents", []),
    _refused("chat_template", hint=" The operator sets the template."),
    _refused("best_of", 1),
    _refused("echo", False),
)

COMPLETION_FIELDS: tuple[FieldSupport, ...] = (
    *SHARED_FIELDS,
    *_supported(
        prompt="a text, texts, token ids, or lists of token ids",
        best_of="only when it equals n",
        echo="the prompt's text comes first; not together with logprobs",
        logprobs="alternatives per token, 0 reports the chosen one only",
    ),
    _refused("suffix", ""),
)
