"""Rows that follow a grammar beside rows that do not, drawn one by one and together."""

from dataclasses import replace

import pytest

from engine.sampling.grammar_masks import GrammarMasks
from tests.engine.sampling.rows import KINDS, VOCAB, logits_for, request, sample
from tests.engine.sampling.stairs import Stairs

EOS = frozenset({90})


@pytest.mark.parametrize("params", KINDS, ids=range(len(KINDS)))
def test_a_held_row_draws_what_may_come_and_its_neighbours_draw_as_ever(params, together):
    # Tokens 50 to 57 may follow 49; the odd ones are there for every kind.
    held = replace(params, grammar=Stairs(1, 9), eos_token_ids=EOS, min_new_tokens=50)
    requests = [request(params), request(held, "held", output=[8, 16, 24, 32, 40, 48, 49])]
    logits = logits_for(2)
    for draw_rows in (sample, together):
        result = draw_rows(logits, requests)
        assert not result.errors
        assert result.token_ids[1] in range(50, 58)
        assert result.token_ids[0] == draw_rows(logits[:1], requests[:1]).token_ids[0]


def test_states_go_with_their_requests():
    masks = GrammarMasks()
    one = request(replace(KINDS[0], grammar=Stairs(1, 9), eos_token_ids=EOS))
    same_id = request(replace(KINDS[0], grammar=Stairs(1, 9), eos_token_ids=EOS), output=[8])
    assert masks.get(request(), VOCAB) is None
    for held, first in ((one, 1), (same_id, 9)):
        mask = masks.get(held, VOCAB)
        assert mask is not None
        assert not mask.blocked[first : first + 8].any()
    assert len(masks) == 1
    masks.close()
    assert len(masks) == 0
