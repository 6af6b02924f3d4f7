"""The sampler as it runs on an accelerator, for the tests of sampling."""

import pytest

from engine.sampling import sampler as sampler_module
from engine.sampling.grammar_masks import GrammarMasks
from engine.sampling.history import HistoryCache


@pytest.fixture
def together(monkeypatch):
    """Return a function that samples as on an accelerator, where rows share their kernels."""

    def sample_together(logits, requests, return_logprobs=False):
        step = sampler_module._Step(logits, requests, return_logprobs)
        plans = step._plan(HistoryCache(), GrammarMasks())
        step._draw_in_groups(plans)
        return step.result

    return sample_together
