"""One model under test, and one way to put it there: all prompts together through an engine."""

import engine
from engine import ContinuousBatchingManager, GenerationOutput
from tests.engine.parity.comparison import Parity, compare, reference_tokens
from tests.engine.parity.families import make_family
from tests.engine.parity.grid import (
    MAX_NEW_TOKENS,
    SMALL_CACHE_SPARE_TOKENS,
    Settings,
    longest_request,
    make_prompts,
)

PROMPTS = make_prompts()


class Subject:
    """A family's model with the oracle's answers, made once for all settings."""

    def __init__(self, family: str) -> None:
        """Make the model and ask the oracle."""
        self.hf_model = make_family(family)
        self.references = reference_tokens(self.hf_model, PROMPTS, MAX_NEW_TOKENS)
        self.paged = engine.wrap(self.hf_model)

    def compare(self, outputs: list[GenerationOutput]) -> Parity:
        """Hold outputs to the oracle's answers."""
        return compare(self.hf_model, PROMPTS, self.references, outputs)

    def run(self, settings: Settings) -> Parity:
        """Run all prompts together, twice if the second time can find the first one's blocks."""
        longest = longest_request(PROMPTS, MAX_NEW_TOKENS)
        config = settings.config(longest, spare_tokens=SMALL_CACHE_SPARE_TOKENS)
        parity = Parity()
        with self.paged.continuous_batching_context_manager(
            continuous_batching_config=config
        ) as manager:
            parity.merge(self.compare(generate(manager, PROMPTS, MAX_NEW_TOKENS)))
            assert (manager.statistics().num_preemptions > 0) == settings.small_cache
            if settings.sharing:
                outputs = generate(manager, PROMPTS, MAX_NEW_TOKENS)
                parity.merge(self.compare(outputs))
                assert settings.small_cache or sum(o.num_cached_tokens for o in outputs) > 0
            statistics = manager.statistics()
            assert statistics.num_free_blocks == statistics.num_blocks
        return parity


def generate(
    manager: ContinuousBatchingManager, prompts: list[list[int]], max_new_tokens: int
) -> list[GenerationOutput]:
    """Return the terminal outputs of prompts that are run together."""
    ids = manager.add_requests(prompts, max_new_tokens=max_new_tokens)
    outputs = [manager.get_result(request_id) for request_id in ids]
    return [output for output in outputs if output is not None]
