"""Every family, greedily, 16 requests at a time: the tokens that `model.generate` gives alone."""

import random
from itertools import combinations, cycle

import pytest

from tests.engine.parity.comparison import Parity, reference_tokens
from tests.engine.parity.families import (
    FAMILIES,
    SLIDING_FAMILIES,
    WINDOW,
    make_family,
    make_random_model,
)
from tests.engine.parity.grid import (
    ALL_SETTINGS,
    MAX_NEW_TOKENS,
    PAIRWISE_SETTINGS,
    Settings,
    make_prompts,
)
from tests.engine.parity.more_families import MORE_FAMILIES
from tests.engine.parity.subject import Subject

NUM_SETTINGS_PER_FAMILY = 2


def normal_cases() -> list[tuple[str, Settings, bool]]:
    """Deal the pairwise settings out, so that each family gets some and each is run often.

    Every other case is run without kernels; the number of settings is odd, so each meets both.
    """
    families = [family for family in FAMILIES for _ in range(NUM_SETTINGS_PER_FAMILY)]
    cases = zip(families, cycle(PAIRWISE_SETTINGS), cycle((True, False)), strict=False)
    return list(cases)


@pytest.mark.parametrize(("family", "settings", "use_kernels"), normal_cases(), ids=str)
def test_tokens_equal_generate(family, settings, use_kernels, subjects, judge):
    judge(subjects(family).run(settings, use_kernels=use_kernels))


@pytest.mark.long
@pytest.mark.parametrize("family", FAMILIES)
def test_tokens_equal_generate_under_all_settings(family, subjects, judge):
    total = Parity()
    shuffled = random.Random(0).sample(ALL_SETTINGS, len(ALL_SETTINGS))
    for settings, use_kernels in zip(shuffled, cycle((True, False)), strict=False):
        parity = subjects(family).run(settings, use_kernels=use_kernels)
        assert not parity.mistakes, f"{settings}, kernels {use_kernels}: {parity}"
        total.merge(parity)
    judge(total)


@pytest.mark.long
@pytest.mark.parametrize("family", MORE_FAMILIES)
def test_tokens_of_more_families_equal_generate(family, judge):
    model = make_random_model(MORE_FAMILIES[family]())
    subject = Subject(model, make_prompts(), MAX_NEW_TOKENS, spare_tokens=48)
    judge(subject.run(Settings(4, 8, True, False, "fifo")))
    judge(subject.run(Settings(16, 64, True, True, "prefill_first"), use_kernels=False))


def test_the_settings_cover_every_pair():
    fields = Settings.__slots__
    for one, other in combinations(fields, 2):
        wanted = {(getattr(s, one), getattr(s, other)) for s in ALL_SETTINGS}
        found = {(getattr(s, one), getattr(s, other)) for s in PAIRWISE_SETTINGS}
        assert found == wanted, f"{one}, {other}: {wanted - found}"


@pytest.mark.parametrize("family", FAMILIES)
def test_the_oracle_answers_variedly(family, subjects):
    """Answers that repeat one token, or are all alike, would hide mistakes."""
    answers = subjects(family).references
    assert len({tuple(answer) for answer in answers}) >= len(answers) - 2
    assert len({token for answer in answers for token in answer}) >= 30


@pytest.mark.parametrize("family", SLIDING_FAMILIES)
def test_the_oracle_sees_windows_crossed_in_prefill_and_in_decode(family, subjects):
    """Its answers would be others if a window were ignored, whenever it is crossed."""
    unlimited, subject = make_family(family, sliding_window=4096), subjects(family)
    lengths = [len(prompt) for prompt in subject.prompts]
    crossed_in_prefill = next(i for i, length in enumerate(lengths) if length > 2 * WINDOW)
    crossed_in_decode = next(i for i, length in enumerate(lengths) if 1 < length < WINDOW)
    for index in (crossed_in_prefill, crossed_in_decode):
        answer = reference_tokens(unlimited, [subject.prompts[index]], MAX_NEW_TOKENS)[0]
        assert answer != subject.references[index]
