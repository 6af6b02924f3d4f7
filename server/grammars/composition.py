"""Grammars made of grammars: reasoning before an answer, an answer or a call. Pure.

The library reads a list of grammars, of which the first is the whole and names the others.
"""

import json
from typing import Any

from server.reasoning.markers import Opening, ReasoningMarkers

ANY_TEXT = "/(?s:.*)/"
BLANKS = r"/[ \t\n]{1,4}/"

SpecialIds = dict[str, int]


def literal(text: str, special_ids: SpecialIds) -> str:
    """Return a text as Lark has it; special tokens in it are named by their ids."""
    pieces: list[str] = []
    rest = text
    while rest:
        places = [(rest.find(one), one) for one in special_ids if one and one in rest]
        place, special = min(places, default=(len(rest), ""))
        if place:
            pieces.append(json.dumps(rest[:place]))
        if special:
            pieces.append(f"<[{special_ids[special]}]>")
        rest = rest[place + len(special) :]
    return " ".join(pieces) or '""'


def after_reasoning(
    text: str, markers: ReasoningMarkers, opening: Opening, special_ids: SpecialIds
) -> str:
    """Return a grammar that lets reasoning come before what another one asks for.

    Args:
        text: The other grammar.
        markers: What the reasoning stands between.
        opening: What the prompt says.
        special_ids: The special tokens by their texts.
    """
    if opening is Opening.CLOSED:
        return text
    begin = "" if opening is Opening.INSIDE else literal(markers.opening, special_ids)
    if markers.closing in special_ids:
        thought = f"thought: {begin} {ANY_TEXT} {literal(markers.closing, special_ids)}"
    else:
        closing = json.dumps(markers.closing)
        thought = f"thought: {begin} thinking\nthinking[suffix={closing}]: {ANY_TEXT}"
    optional = "?" if opening is Opening.POSSIBLE else ""
    rules = f"start: reasoning{optional} @answer\nreasoning: thought BLANKS?\nBLANKS: {BLANKS}"
    return _join(f"{rules}\n{thought}", answer=text)


def either(answer: str, calls: str) -> str:
    """Return a grammar that takes what one of two asks for."""
    return _join("start: @answer | @calls", answer=answer, calls=calls)


def _join(rules: str, **named: str) -> str:
    """Put grammars under their names beside rules that use them."""
    grammars: list[dict[str, Any]] = [{"lark_grammar": rules}]
    for name, text in named.items():
        first, *others = _parts(text)
        grammars += [{**first, "name": name}, *others]
    return json.dumps({"grammars": grammars})


def _parts(text: str) -> list[dict[str, Any]]:
    """Return the grammars that a text of the library's consists of."""
    if text.lstrip().startswith("{"):
        parts: list[dict[str, Any]] = json.loads(text)["grammars"]
        return parts
    return [{"lark_grammar": text}]
