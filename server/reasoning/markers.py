"""The markers between which models reason, and which of them a chat template speaks of. Pure."""

from dataclasses import dataclass
from enum import Enum


@dataclass(frozen=True, slots=True)
class ReasoningMarkers:
    """What a family writes before and after its reasoning."""

    opening: str
    closing: str


MARKERS = {
    "think": ReasoningMarkers("<think>", "</think>"),
    "mistral": ReasoningMarkers("[THINK]", "[/THINK]"),
    "cohere": ReasoningMarkers("<|START_THINKING|>", "<|END_THINKING|>"),
    "seed": ReasoningMarkers("<seed:think>", "</seed:think>"),
    "thought": ReasoningMarkers("<thought>", "</thought>"),
}


class Opening(Enum):
    """What a prompt says about the reasoning of its answer."""

    INSIDE = "the prompt has opened it"
    POSSIBLE = "the answer may open it"
    CLOSED = "the prompt has closed it"


def find_markers(name: str, template: str) -> ReasoningMarkers | None:
    """Return the markers of a model.

    Args:
        name: The operator's setting: "auto", "none" or a key of MARKERS.
        template: The model's chat template, which "auto" looks into.
    """
    if name != "auto":
        return MARKERS.get(name)
    # Templates cut old answers at the closing marker.
    return next((one for one in MARKERS.values() if one.closing in template), None)


def find_opening(markers: ReasoningMarkers, prompt: str, begun: str = "") -> Opening:
    """Return what a rendered prompt says: only what follows its last message counts.

    Args:
        markers: The family's.
        prompt: The whole prompt.
        begun: The message that the answer continues, if it continues one.
    """
    place = begun.rfind(markers.opening)
    if place >= 0 and markers.closing not in begun[place:]:
        return Opening.INSIDE
    tail = prompt.rstrip()
    if tail.endswith(markers.opening):
        return Opening.INSIDE
    if tail.endswith(markers.closing):
        return Opening.CLOSED
    return Opening.POSSIBLE
