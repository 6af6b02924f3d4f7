"""One model under test, and one way to put it there: all prompts together through an engine."""

from transformers import PreTrainedModel

import engine
from engine import ContinuousBatchingManager, GenerationOutput
from tests.engine.parity.comparison import Parity, compare, reference_tokens
from tests.engine.parity.grid import Settings


class Subject:
    """A model and prompts with the oracle's answers, made once for all settings."""

    def __init__(
        self,
        hf_model: PreTrainedModel,
        prompts: list[list[int]],
        max_new_tokens: int,
        *,
        spare_tokens: int,
    ) -> None:
        """Ask the oracle.

        Args:
            hf_model: The model; taken over by an engine, which must not change it.
            prompts: What to run.
            max_new_tokens: Length of the answers.
            spare_tokens: What a small cache holds beside the largest request.
        """
        self.hf_model = hf_model
        self.prompts = prompts
        self.max_new_tokens = max_new_tokens
        self.references = reference_tokens(hf_model, prompts, max_new_tokens)
        self.paged = engine.wrap(hf_model)
        self._without_kernels = engine.wrap(hf_model, use_kernels=False)
        self._spare_tokens = spare_tokens

    def compare(self, outputs: list[GenerationOutput]) -> Parity:
        """Hold outputs to the oracle's answers."""
        return compare(self.hf_model, self.prompts, self.references, outputs)

    def run(self, settings: Settings, *, use_kernels: bool = True) -> Parity:
        """Run all prompts together, twice if the second time can find the first one's blocks.

        Args:
            settings: How.
            use_kernels: With our own kernels, or as on a machine that has none.
        """
        longest = max(len(prompt) for prompt in self.prompts) + self.max_new_tokens
        config = settings.config(longest, spare_tokens=self._spare_tokens)
        parity = Parity()
        model = self.paged if use_kernels else self._without_kernels
        with model.continuous_batching_context_manager(
            continuous_batching_config=config
        ) as manager:
            parity.merge(self.compare(self.generate(manager)))
            assert (manager.statistics().num_preemptions > 0) == settings.small_cache
            if settings.sharing:
                outputs = self.generate(manager)
                parity.merge(self.compare(outputs))
                assert settings.small_cache or sum(o.num_cached_tokens for o in outputs) > 0
            statistics = manager.statistics()
            assert statistics.num_free_blocks == statistics.num_blocks
        return parity

    def generate(self, manager: ContinuousBatchingManager) -> list[GenerationOutput]:
        """Return the terminal outputs of the prompts, run together."""
        ids = manager.add_requests(self.prompts, max_new_tokens=self.max_new_tokens)
        outputs = [manager.get_result(request_id) for request_id in ids]
        return [output for output in outputs if output is not None]
