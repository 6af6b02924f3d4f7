"""Every family's calls, read in every way in which they may arrive; what is none stays text."""

import json

import pytest

from api_schemas import FunctionDefinition
from server.message_parts import Part, join_parts
from server.setting_values import TOOL_PARSERS
from server.tools.call_parser import CallParser, CallRules
from server.tools.registry import FORMATS
from tests.server.tools.readings import calls_of, every_reading, pieces, text_of, visible

BAR, LOW = "\uff5c", "\u2581"


def marker(words: str) -> str:
    return f"<{BAR}{words.replace(' ', LOW)}{BAR}>"


CALLS, END_CALLS = marker("tool calls begin"), marker("tool calls end")
CALL, END_CALL, SEP = marker("tool call begin"), marker("tool call end"), marker("tool sep")
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
}
FUNCTIONS = {
    name: FunctionDefinition(name=name, parameters=PARAMETERS)
    for name in ("get_weather", "add", "now", "a.b-c")
}
PARIS = '{"city": "Paris", "days": 2}'
WEATHER = f'{{"name": "get_weather", "arguments": {PARIS}}}'
ADD = '{"name": "add", "arguments": {}}'
ODD = '{"text": "a \\"quoted\\" } ] </tool_call> \\u00e9 é 😀", "n": 1.50, "deep": {"a": [1, {}]}}'
ONE = [("get_weather", PARIS)]
TWO = [("get_weather", PARIS), ("add", "{}")]

# Format, what the model wrote (special tokens in «»), its calls, its text.
READ = [
    (
        "hermes",
        f"<tool_call>\n{WEATHER}\n</tool_call>",
        ONE,
        "",
    ),
    ("hermes", f'<tool_call>{{"name":"add","arguments":{ODD}}}</tool_call>', [("add", ODD)], ""),
    (
        "hermes",
        f'«<tool_call>»{{"arguments": {PARIS}, "name": "get_weather"}}«</tool_call>»',
        ONE,
        "",
    ),
    ("hermes", '<tool_call>\n{"name": "now"}\n</tool_call>', [("now", "{}")], ""),
    (
        "hermes",
        f'<tool_call>{{"name": "get_weather", "name": 5, "arguments": {PARIS}, "parameters": 1}}',
        ONE,
        "",
    ),
    ("hermes", '<tool_call>{"name": "a.b-c", "arguments": null}', [("a.b-c", "{}")], ""),
    (
        "hermes",
        f"Let me see.\n\n<tool_call>\n{WEATHER}\n</tool_call>\n"
        '<tool_call>\n{"name": "add", "arguments": {}}\n</tool_call>\n',
        TWO,
        "Let me see.",
    ),
    (
        "hermes",
        '<tool_call>{"name": "now", "arguments": {}}</tool_call> Done, <b>ok</b>.',
        [("now", "{}")],
        "Done, <b>ok</b>.",
    ),
    (
        "hermes",
        f'<tool_call>{{"name": "get_weather", "arguments": {json.dumps(PARIS)}}}</tool_call>',
        ONE,
        "",
    ),
    ("llama_json", f'{{"name": "get_weather", "parameters": {PARIS}}}', ONE, ""),
    ("llama_json", f'«<|python_tag|>»{{"name": "get_weather", "parameters": {PARIS}}}', ONE, ""),
    ("llama_json", f'<|python_tag|>{{"name": "get_weather", "parameters": {PARIS}}}', ONE, ""),
    (
        "llama_json",
        f'\n{{"type": "function", "name": "get_weather", "parameters": {PARIS}}}; '
        '{"name": "add", "parameters": {}}',
        TWO,
        "",
    ),
    (
        "llama_json",
        f'{{"type": "function", "function": {{"name": "get_weather", "parameters": {PARIS}}}}}',
        ONE,
        "",
    ),
    ("pythonic", '[get_weather(city="Paris", days=2), add()]', TWO, ""),
    ("pythonic", "«<|python_start|>»[get_weather(city='Paris', days=2)]«<|python_end|>»", ONE, ""),
    (
        "pythonic",
        "[add(a=[1, -2.5, {'k': None}], b=true, c=\"it's ]\", d=(1, 2))]",
        [("add", '{"a": [1, -2.5, {"k": null}], "b": true, "c": "it\'s ]", "d": [1, 2]}')],
        "",
    ),
    ("mistral", f'«[TOOL_CALLS]»[{{"name": "get_weather", "arguments": {PARIS}}}]', ONE, ""),
    (
        "mistral",
        f'Sure. [TOOL_CALLS] [{{"name": "get_weather", "arguments": {PARIS}}}, '
        '{"name": "add", "arguments": {}}]',
        TWO,
        "Sure.",
    ),
    ("mistral", f"«[TOOL_CALLS]»get_weather«[ARGS]»{PARIS}«[TOOL_CALLS]»add«[ARGS]»{{}}", TWO, ""),
    ("mistral", f"[TOOL_CALLS]get_weather[CALL_ID]12ab34cd5[ARGS]{PARIS}", ONE, ""),
    ("mistral", f"«[TOOL_CALLS]»get_weather{PARIS}", ONE, ""),
    ("deepseek", f"«{CALLS}»«{CALL}»get_weather«{SEP}»{PARIS}«{END_CALL}»«{END_CALLS}»", ONE, ""),
    (
        "deepseek",
        f"Hm.{CALLS}{CALL}function{SEP}get_weather\n```json\n{PARIS}\n```{END_CALL}\n"
        f"{CALL}function{SEP}add\n```json\n{{}}\n```{END_CALL}{END_CALLS}",
        TWO,
        "Hm.",
    ),
    ("deepseek", f"«{CALLS}»«{CALL}»get_weather«{SEP}»{PARIS}", ONE, ""),
    ("granite", f'«<|tool_call|>»[{{"name": "get_weather", "arguments": {PARIS}}}]', ONE, ""),
    ("granite", f'<tool_call>[{{"name": "get_weather", "arguments": {PARIS}}}]', ONE, ""),
    (
        "phi",
        f'<|tool_call|>[{{"name": "get_weather", "arguments": {PARIS}}}, '
        '{"name": "add", "arguments": {}}]<|/tool_call|>',
        TWO,
        "",
    ),
    ("phi", f'functools[{{"name": "get_weather", "arguments": {PARIS}}}]', ONE, ""),
    (
        "qwen_coder",
        "Ok.\n<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n"
        "<parameter=days>\n2\n</parameter>\n</function>\n</tool_call>",
        ONE,
        "Ok.",
    ),
    ("qwen_coder", "<tool_call>\n<function=now>\n</function>\n</tool_call>", [("now", "{}")], ""),
    (
        "qwen_coder",
        "<tool_call>\n<function=add>\n<parameter=city>\n12\n</parameter>\n<parameter=x>\na\nb\n"
        "</parameter>\n</function>\n</tool_call>",
        [("add", '{"city": "12", "x": "a\\nb"}')],
        "",
    ),
    ("json", f'{{"name": "get_weather", "arguments": {PARIS}}}', ONE, ""),
    ("json", f'[{{"name": "get_weather", "arguments": {PARIS}}}, {{"name": "add"}}]', TWO, ""),
    ("json", f'```json\n{{"name": "get_weather", "arguments": {PARIS}}}\n```', ONE, ""),
    (
        "json",
        f'I call it:\n```json\n{{"name": "get_weather", "arguments": {PARIS}}}\n```\n',
        ONE,
        "I call it:",
    ),
    (
        "glm",
        "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n"
        "<arg_key>days</arg_key>\n<arg_value>2</arg_value>\n</tool_call>",
        ONE,
        "",
    ),
    ("glm", "So.\n«<tool_call>»now\n</tool_call>", [("now", "{}")], "So."),
]

# Format, and what is no call in it: it stays what it is.
TEXTS = [
    ("glm", "<tool_call>unknown\n</tool_call>"),
    ("glm", "<tool_call>add\nwords</tool_call>"),
    ("glm", "<tool_call>now\n"),
    ("glm", "<tool_call>add\n<arg_key>days</arg_key>\n<arg_value>2</arg_value>\n"),
    ("hermes", "Plain words, a < b, <tool, and <tool_call> in a sentence."),
    ("hermes", "<tool_call>{bad"),
    ("hermes", '<tool_call>\n{"name": "get_weather", "arguments": {'),
    (
        "hermes",
        '<tool_call>{"name": "get_weather", "arguments": {\'city\': \'Paris\'}}</tool_call>',
    ),
    ("hermes", '<tool_call>{"arguments": {"city": "Paris"}, "name": "get_weather"'),
    ("hermes", '<tool_call>{"name": "unknown", "arguments": {}}</tool_call>'),
    ("hermes", '<tool_call>{"name": "add", "arguments": [1]}</tool_call>'),
    ("hermes", '<tool_call>{"name": 5}</tool_call>\n'),
    ("hermes", f'<tool_call>{{"name": "nobody", "text": {json.dumps(f"<tool_call>{ADD}")}}}'),
    ("mistral", '[TOOL_CALLS]nobody{"text": "[TOOL_CALLS]add{}"}'),
    ("hermes", '{"name": "add", "arguments": {}}'),
    ("hermes", "\n\n  leading and trailing  \n\n"),
    ("hermes", "<<tool_calls> <tool_call"),
    ("hermes", "a" + " \n" * 100 + "b"),
    ("llama_json", '{"city": "Paris"}'),
    ("llama_json", '  {"name": "Bob", "parameters": {}} is a person'),
    ("llama_json", 'Text first: {"name": "add", "parameters": {}}'),
    ("llama_json", '{"parameters": {"a": 1}, "name": "add"'),
    ("pythonic", "[1, 2, 3]"),
    ("pythonic", "[add(1)]"),
    ("pythonic", "[unknown(a=1)]"),
    ("pythonic", "[add(a=open('x'))]"),
    ("pythonic", "[add(**{'a': 1})]"),
    ("pythonic", "[" * 300),
    ("mistral", '[TOOL_CALLS][{"name": "add"'),
    ("mistral", "[TOOL_CALLS]unknown[ARGS]{}"),
    ("mistral", "[TOOL_CALLS]add[ARGS]{bad}"),
    ("mistral", "[TOOL_CALLS] what is that, " + "x" * 200),
    ("deepseek", f"{CALLS}{CALL}add{SEP}{{bad{END_CALL}{END_CALLS}"),
    ("deepseek", f"{CALLS} and nothing else"),
    ("granite", "<|tool_call|>[]"),
    ("phi", "functools are fun; import functools"),
    ("qwen_coder", "<tool_call>\n<function=unknown>\n</function>\n</tool_call>"),
    ("qwen_coder", "<tool_call>\n<function=add>\nwords\n</function>\n</tool_call>"),
    ("json", "```json\n[1, 2]\n```"),
    ("json", "```python\nprint(1)\n```"),
    ("json", "[see here](http://x) and {braces}"),
]

# Format, what the model wrote, what of it is calls and what is text: once arguments were passed on,
# their call stays, and what is no part of it begins with the first wrong character.
BROKEN = [
    (
        "hermes",
        '<tool_call>{"name": "add", "arguments": {"a": NaN}}</tool_call>',
        [("add", '{"a": ')],
        "NaN}}</tool_call>",
    ),
    (
        "hermes",
        '<tool_call>{"name": "add", "arguments": {"a": 1}, oops}</tool_call> then',
        [("add", '{"a": 1}')],
        "oops}</tool_call> then",
    ),
    (
        "hermes",
        '<tool_call>{"name": "add", "arguments": {"a": "x«<eos>»y',
        [("add", '{"a": "x')],
        "y",
    ),
    (
        "hermes",
        f'«<tool_call>»{{"name": "add", "arguments": {{"a": "x«<tool_call>»{WEATHER}«</tool_call>»',
        [("add", '{"a": "x'), *ONE],
        "",
    ),
    (
        "hermes",
        f'<tool_call>{{"name": "add", "arguments": {{"a": 01<tool_call>{WEATHER}</tool_call>',
        [("add", '{"a": 0'), *ONE],
        "1",
    ),
    (
        "hermes",
        '<tool_call>{"name": "add", "arguments": {"a": "x\ny"}}</tool_call>',
        [("add", '{"a": "x')],
        'y"}}</tool_call>',
    ),
    ("llama_json", '{"name": "add", "parameters": {"a": 1', [("add", '{"a": 1')], ""),
    (
        "phi",
        f'functools[{WEATHER}, {{"name": "nobody", "arguments": {{}}}}, {ADD}] Done.',
        ONE,
        f', {{"name": "nobody", "arguments": {{}}}}, {ADD}] Done.',
    ),
    ("granite", f"<|tool_call|>[{WEATHER}, 1]", ONE, ", 1]"),
    ("json", f"[{WEATHER} and", ONE, "and"),
    ("mistral", "[TOOL_CALLS]get_weather" + PARIS[:-1] + "]", [("get_weather", PARIS[:-1])], "]"),
    (
        "deepseek",
        f"{CALLS}{CALL}get_weather{SEP}{PARIS}{END_CALL}{CALL}nobody{SEP}{{}}{END_CALL}{END_CALLS}",
        ONE,
        f"{CALL}nobody{SEP}{{}}{END_CALL}{END_CALLS}",
    ),
    ("deepseek", f"{CALLS}{CALL}get_weather{SEP}{PARIS} so{END_CALL}", ONE, f"so{END_CALL}"),
]

# Format, and what stands before the arguments.
BEGUN = [
    ("hermes", '<tool_call>\n{"name": "get_weather", "arguments": '),
    ("hermes", '«<tool_call>»{"id": [{"a": 1}], "name": "get_weather" , "parameters" : '),
    ("llama_json", '{"type": "function", "function": {"name": "get_weather", "parameters": '),
    ("llama_json", '{"name":"get_weather","parameters":'),
    ("mistral", '[TOOL_CALLS][{"name": "get_weather", "arguments": '),
    ("mistral", "«[TOOL_CALLS]»get_weather«[ARGS]»"),
    ("deepseek", f"«{CALLS}»«{CALL}»get_weather«{SEP}»"),
    ("deepseek", f"{CALLS}{CALL}function{SEP}get_weather\n```json\n"),
    ("granite", '<|tool_call|>[{"name": "get_weather", "arguments": '),
    ("phi", 'functools[{"name": "get_weather", "arguments": '),
    ("json", '```json\n{"name": "get_weather", "arguments": '),
]


def parser(name: str, **rules):
    return lambda: CallParser(FORMATS[name], CallRules(FUNCTIONS, **rules))


@pytest.mark.parametrize(("name", "recording", "calls", "text"), READ)
def test_calls_are_found_however_they_arrive(name, recording, calls, text):
    parts = every_reading(parser(name), recording)
    assert calls_of(parts) == calls
    assert text_of(parts) == text
    assert all(isinstance(json.loads(arguments), dict) for _, arguments in calls_of(parts))


@pytest.mark.parametrize(("name", "recording"), TEXTS)
def test_what_is_no_call_stays_text_to_the_letter(name, recording):
    parts = every_reading(parser(name), recording)
    assert calls_of(parts) == []
    assert text_of(parts) == recording


@pytest.mark.parametrize(
    "recording", ["«<|python_tag|>»print(1)", "«[TOOL_CALLS]»nonsense «[ARGS]» here", "a «<eos>»b"]
)
@pytest.mark.parametrize("name", ["llama_json", "mistral"])
def test_hidden_markers_without_a_call_are_no_text(name, recording):
    assert text_of(every_reading(parser(name), recording)) == visible(recording)


@pytest.mark.parametrize(("name", "recording"), [(one[0], one[1]) for one in READ])
def test_a_single_call_is_wanted(name, recording):
    parts = every_reading(parser(name, is_single=True), recording)
    assert len(calls_of(parts)) == 1


@pytest.mark.parametrize(("name", "recording", "calls", "text"), BROKEN)
def test_a_call_that_breaks_off_keeps_what_was_passed_on(name, recording, calls, text):
    parts = every_reading(parser(name), recording)
    assert calls_of(parts) == calls
    assert text_of(parts) == text
    alone = every_reading(parser(name, is_single=True), recording)
    assert calls_of(alone) == calls[:1]
    assert text_of(alone) == ""


@pytest.mark.parametrize(("name", "begun"), BEGUN)
def test_arguments_are_passed_on_as_they_come(name, begun):
    for end in range(len(PARIS) + 1):
        reader = parser(name)()
        parts: list[Part] = []
        for special, text in pieces(begun + PARIS[:end]):
            parts += reader.special(text) if special else reader.text(text)
        # The first bracket may yet be that of something else.
        assert calls_of(join_parts(parts)) == ([("get_weather", PARIS[:end])] if end > 1 else [])
        assert text_of(parts) == ""


def test_the_setting_knows_every_format():
    assert set(TOOL_PARSERS) == {"auto", "harmony", *FORMATS}
