"""What reads the answers of a model: calls, reasoning, stop strings, tokens."""

from collections.abc import Callable
from functools import partial

from server.message_parts import MessageParser
from server.reasoning.markers import MARKERS, Opening
from server.reasoning.parser import ReasoningParser
from server.rendering.message import MessageRenderer
from server.tools.call_parser import CallParser, CallRules
from server.tools.harmony import HarmonyParser
from server.tools.registry import FORMATS
from tests.reliability.fuzz.draw import Draw
from tests.server.test_detokenizer import TOKENIZERS, VOCABULARIES, pieces
from tests.server.test_stop_strings import naive, run
from tests.server.tools.readings import calls_of, read, text_of, visible
from tests.server.tools.test_any_text import (
    ARGUMENTS,
    FUNCTIONS,
    VALUES,
    WRITTEN,
    agree,
    fragments,
)

HARMONY_PIECES = [
    "«<|channel|>»", "«<|message|>»", "«<|end|>»", "«<|start|>»", "«<|call|>»", "analysis",
    "final", "commentary to=functions.add", "{}",
]  # fmt: skip
MAX_PIECES = 40


def recording(draw: Draw, own: list[str]) -> str:
    """Return an answer of markers, literals, whole calls and letters."""
    kinds = [*own, *VALUES, *ARGUMENTS]
    found: list[str] = []
    while draw and len(found) < MAX_PIECES:
        if draw.below(4):
            found.append(draw.choose(kinds))
        else:
            found.append(draw.take(1 + draw.below(8)).decode("utf-8", errors="replace"))
    return "".join(found)


def check(parser: Callable[[], MessageParser], text: str, place: int) -> None:
    """Read it in pieces and at once: the same comes out, and it can be sent."""
    parts = agree(parser, text, place)
    message = MessageRenderer(is_legacy=False, short_ids=False)
    for part in parts:
        assert message.delta(part).model_dump_json()
    assert message.whole().model_dump_json()


def check_calls(data: bytes) -> None:
    """An answer in any format of calls: cut anywhere it is the same, and no letter is lost."""
    draw = Draw(data)
    name = draw.choose(list(FORMATS))
    place = draw.below(64)
    text = recording(draw, [*fragments(name), WRITTEN[name]])
    rules = CallRules(FUNCTIONS, is_single=bool(place % 2))
    parser = partial(CallParser, FORMATS[name], rules)
    check(parser, text, place)
    parts = read(parser(), text, list)
    if not calls_of(parts):
        assert text_of(parts) == visible(text)


def check_reasoning(data: bytes) -> None:
    """An answer with reasoning before calls, and one in channels."""
    draw = Draw(data)
    place = draw.below(64)
    if draw.below(2):
        rules = CallRules(FUNCTIONS)
        parser = partial(HarmonyParser, rules, shows_reasoning=True)
        check(parser, recording(draw, HARMONY_PIECES), place)
        return
    markers = draw.choose(list(MARKERS.values()))
    opening = draw.choose(list(Opening))
    own = [markers.opening, markers.closing, "</", f"«{markers.closing}»", *fragments("hermes")]
    text = recording(draw, own)

    def make() -> MessageParser:
        calls = CallParser(FORMATS["hermes"], CallRules(FUNCTIONS))
        return ReasoningParser(markers, opening, calls, shown=True)

    check(make, text, place)


def check_stops(data: bytes) -> None:
    """Stop strings, against a search after every character."""
    draw = Draw(data)
    include = bool(draw.below(2))
    letters = "ab\u00e9\U0001f999"
    stops = [
        "".join(draw.choose(letters) for _ in range(1 + draw.below(6)))
        for _ in range(1 + draw.below(4))
    ]
    text = "".join(letters[byte % len(letters)] for byte in draw.take(24))
    assert run(draw.cut(text), stops, include=include) == naive(text, stops, include=include)


def check_tokens(data: bytes) -> None:
    """Any tokens: the pieces, joined, are what the tokenizer makes of all of them."""
    draw = Draw(data)
    name = draw.choose(list(TOKENIZERS))
    skip = bool(draw.below(2))
    tokenizer = TOKENIZERS[name]
    ids: list[int] = []
    while draw and len(ids) < 64:
        ids.append(draw.below(len(tokenizer)))
    text = "".join(pieces(VOCABULARIES[name], ids, skip=skip))
    assert text == tokenizer.decode(ids, skip_special_tokens=skip)
