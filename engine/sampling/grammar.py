"""What a grammar is to the engine: something that knows which tokens may come next.

How it is written (JSON schema, regular expression) is its maker's business. A request hands in a
`Grammar`; the engine asks it for one `Matcher` per answer, shows that one each accepted token, and
asks what may follow, see `grammar_masks`. `resolve_grammar` runs on the caller's thread.
"""

from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from engine.errors import InvalidRequestError
from engine.sampling.checks import wrong_value
from engine.sampling.options import Options


class Matcher(Protocol):
    """Where one answer stands in its grammar. Any method may raise; the request then fails."""

    def accept(self, token_id: int) -> None:
        """Go on by one token of the answer; never called with one that ends it."""

    def allow(self, allowed: npt.NDArray[np.bool_]) -> None:
        """Set the entries of the tokens that may come next, in [V] that are all False.

        Tokens that end an answer are not meant here, see `is_complete`.
        """

    def is_complete(self) -> bool:
        """Return whether the answer may end here."""


@runtime_checkable
class Grammar(Protocol):
    """A compiled grammar, which any number of answers follow at the same time."""

    def matcher(self) -> Matcher:
        """Return the state of an answer without tokens; cheap, on any thread."""


def resolve_grammar(read: Options, eos_token_ids: frozenset[int]) -> Grammar | None:
    """Return the grammar of a request, once it is known that its answer can end.

    Raises:
        InvalidRequestError: It is no grammar, or no token may end the answer.
    """
    value = read.given("grammar")
    if value is None:
        return None
    if not isinstance(value, Grammar):
        raise wrong_value("grammar", value, "an engine.Grammar")
    if read.flag("ignore_eos"):
        raise InvalidRequestError(
            "ignore_eos cannot be combined with a grammar: the answer ends where the grammar does",
            param="ignore_eos",
        )
    if not (eos_token_ids or read.token_ids("stop_token_ids")):
        raise InvalidRequestError(
            "a grammar needs a token that ends the answer: set eos_token_id or stop_token_ids",
            param="grammar",
        )
    return value
