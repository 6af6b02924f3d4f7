"""Which format a model writes its calls in: named by the operator, or told from its template."""

from server.tools.call_format import CallFormat, JsonCallFormat
from server.tools.deepseek import BEGIN, DEEPSEEK
from server.tools.generic_json import GENERIC_JSON
from server.tools.glm import GLM
from server.tools.granite import GRANITE
from server.tools.harmony import NAME as HARMONY
from server.tools.harmony import SIGN as HARMONY_SIGN
from server.tools.hermes import HERMES
from server.tools.llama_json import LLAMA_JSON
from server.tools.mistral import MISTRAL, MistralFormat
from server.tools.phi import PHI
from server.tools.pythonic import PYTHONIC
from server.tools.qwen_coder import QWEN_CODER

FORMATS: dict[str, CallFormat] = {
    one.name: one
    for one in (
        HERMES,
        LLAMA_JSON,
        PYTHONIC,
        MISTRAL,
        DEEPSEEK,
        GRANITE,
        PHI,
        QWEN_CODER,
        GLM,
        GENERIC_JSON,
    )
}

# What a template that renders tools holds, and what it then says; the first that fits.
_SIGNS: tuple[tuple[tuple[str, ...], CallFormat], ...] = (
    (("[TOOL_CALLS]",), MISTRAL),
    ((BEGIN,), DEEPSEEK),
    (("<|/tool_call|>",), PHI),
    (("functools",), PHI),
    (("<|tool_call|>",), GRANITE),
    (("<tool_call>", "<function="), QWEN_CODER),
    (("<tool_call>", "<arg_key>"), GLM),
    (("<tool_call>",), HERMES),
    (("<|python_start|>",), PYTHONIC),
    (("[func_name1(",), PYTHONIC),
    (("<|python_tag|>",), LLAMA_JSON),
    (('"parameters"', "<|start_header_id|>"), LLAMA_JSON),
)


def is_harmony(name: str, template: str) -> bool:
    """Return whether a model's answers are messages with channels; see `find_format`."""
    return name == HARMONY or (name == "auto" and HARMONY_SIGN in template)


def find_format(name: str, template: str, *, renders_tools: bool) -> CallFormat:
    """Return the format of a model's calls.

    Args:
        name: The operator's setting: "auto" or a key of FORMATS.
        template: The model's chat template.
        renders_tools: Whether the template tells the model of tools; where it doesn't, our own
            prompt does, and asks for the first format.
    """
    if is_harmony(name, template):
        return GENERIC_JSON
    if name != "auto":
        return FORMATS[name]
    if not renders_tools:
        return HERMES
    for signs, call_format in _SIGNS:
        if all(sign in template for sign in signs):
            return call_format
    return GENERIC_JSON


def forced_format(call_format: CallFormat) -> JsonCallFormat | MistralFormat:
    """Return the format in which calls are forced: the model's own if that is made of JSON."""
    if isinstance(call_format, JsonCallFormat | MistralFormat):
        return call_format
    return GENERIC_JSON
