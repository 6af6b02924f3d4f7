"""A needle in a crowd: the same tokens and the same bits of every log-probability as alone.

With our kernels no number of a request depends on the others in its batch, on where it stands among
them, on the chunks its prompt is cut into, nor on what of it was cached. A difference in the last
bit is a failure: where two tokens are nearly equally likely it becomes another answer.
"""

import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

import pytest
import torch

import engine
from engine import ContinuousBatchingConfig, ContinuousBatchingManager, GenerationOutput, PagedModel
from engine.kernels.cpu.library import load_library
from tests.engine.parity.families import make_family

pytestmark = pytest.mark.skipif(load_library() is None, reason="there is no compiler for kernels")

MOST_FILLERS = 31
TOP = 3
# Tokens in a step, positions in a block, whether prefixes are cached.
WAYS = ((7, 4, True), (16, 16, False), (64, 16, True), (256, 256, False))


@dataclass(slots=True)
class Crowd:
    """A needle, what is known of it, and those that it is put among.

    Attributes:
        num_trials: Trials made.
        num_cached: Of these, those that found part of the needle in the cache.
        kv_cache_dtype: How keys and values are kept.
    """

    model: PagedModel
    needle: list[int]
    num_new_tokens: int
    longest_filler: int
    longest_answer: int
    num_trials: int = 0
    num_cached: int = 0
    places: set[tuple[int, int]] = field(default_factory=set)
    kv_cache_dtype: str = "auto"

    @contextmanager
    def managers(self) -> Iterator[list[ContinuousBatchingManager]]:
        """Yield a running manager for each way to cut and to cache."""
        with ExitStack() as stack:
            managers = []
            for chunk, page_size, sharing in WAYS:
                config = ContinuousBatchingConfig(
                    max_batch_tokens=chunk,
                    max_requests_per_batch=min(chunk, MOST_FILLERS + 1),
                    page_size=page_size,
                    num_blocks=8192 // page_size,
                    allow_block_sharing=sharing,
                    return_logprobs=True,
                    step_time_target=0.0,
                    kv_cache_dtype=self.kv_cache_dtype,
                )
                manager = self.model.init_continuous_batching(continuous_batching_config=config)
                stack.callback(manager.destroy)
                manager.start()
                managers.append(manager)
            yield managers

    def run(self, num_trials: int, seed: int) -> None:
        """Put the needle into crowds and compare it with itself alone."""
        source = random.Random(seed)
        with self.managers() as managers:
            alone = {
                samples: self._bits(self._ask(managers[-1], samples, source, num_fillers=0))
                for samples in (False, True)
            }
            for _ in range(num_trials):
                manager = source.choice(managers)
                if source.random() < 0.5:
                    manager.clear_prefix_cache()
                samples = source.random() < 0.5
                num_fillers = source.randint(1, MOST_FILLERS)
                output = self._ask(manager, samples, source, num_fillers=num_fillers)
                self.num_trials += 1
                self.num_cached += output.num_cached_tokens > 0
                for ours, expected in zip(self._bits(output), alone[samples], strict=True):
                    assert torch.equal(ours, expected), (self.num_trials, num_fillers, samples)

    def _ask(
        self,
        manager: ContinuousBatchingManager,
        samples: bool,
        source: random.Random,
        *,
        num_fillers: int,
    ) -> GenerationOutput:
        """Return the needle's output, submitted at a random place among ragged fillers."""
        place = source.randint(0, num_fillers)
        self.places.add((place, num_fillers))
        names = []
        for index in range(num_fillers + 1):
            if index == place:
                names.append(
                    manager.add_request(
                        self.needle,
                        max_new_tokens=self.num_new_tokens,
                        do_sample=samples,
                        seed=11,
                        top_logprobs=TOP,
                    )
                )
                continue
            prompt = self._filler(source)
            length = source.randint(1, self.longest_answer)
            names.append(
                manager.add_request(
                    prompt, max_new_tokens=length, do_sample=source.random() < 0.5, seed=index
                )
            )
        outputs = [manager.get_result(name) for name in names]
        output = outputs[place]
        assert output is not None
        assert output.error is None
        return output

    def _filler(self, source: random.Random) -> list[int]:
        """Return a prompt of any length; some begin like the needle."""
        length = source.randint(1, self.longest_filler)
        vocab_size = self.model.vocab_size
        prompt = [source.randrange(vocab_size) for _ in range(length)]
        if source.random() < 0.2:
            prompt[: length // 2] = self.needle[: length // 2]
        return prompt

    @staticmethod
    def _bits(output: GenerationOutput) -> tuple[torch.Tensor, ...]:
        """Return the tokens, their log-probabilities as drawn and by the model, the best."""
        best = [pair for entry in output.token_logprobs for pair in entry.top]
        return (
            torch.tensor(output.generated_tokens),
            torch.tensor(output.logprobs, dtype=torch.float64),
            torch.tensor([entry.logprob for entry in output.token_logprobs], dtype=torch.float64),
            torch.tensor([token for token, _ in best]),
            torch.tensor([logprob for _, logprob in best], dtype=torch.float64),
        )


def tiny_crowd(family: str) -> Crowd:
    model = engine.wrap(make_family(family))
    needle = [(37 * index + 11) % model.vocab_size for index in range(29)]
    return Crowd(model, needle, num_new_tokens=8, longest_filler=40, longest_answer=8)


def default_crowd(hf_model) -> Crowd:
    model = engine.wrap(hf_model)
    needle = [(7919 * index + 11) % model.vocab_size for index in range(21)]
    return Crowd(model, needle, num_new_tokens=4, longest_filler=12, longest_answer=3)


# One of each structure that is one call of the kernels.
NUM_TRIALS = {"llama": 200, "qwen3": 40} | dict.fromkeys(
    ("gemma2", "gemma3", "phi3", "olmo2", "granite", "smollm3", "mixtral", "qwen3_moe"), 30
)


@pytest.mark.parametrize(("family", "num_trials"), NUM_TRIALS.items())
def test_a_needle_in_a_crowd_has_the_bits_it_has_alone(family, num_trials):
    crowd = tiny_crowd(family)
    crowd.run(num_trials, seed=1)
    assert crowd.num_trials == num_trials
    assert num_trials * 0.1 < crowd.num_cached < num_trials * 0.9
    assert len(crowd.places) > num_trials * 0.6


@pytest.mark.parametrize("kv_cache_dtype", ["bf16", "fp16", "int8"])
def test_a_needle_has_the_bits_it_has_alone_over_rounded_keys_and_values(kv_cache_dtype):
    crowd = tiny_crowd("llama")
    crowd.kv_cache_dtype = kv_cache_dtype
    crowd.run(40, seed=5)
    assert crowd.num_cached > 4


def test_bits_are_compared_and_not_only_tokens():
    """Guards the tests above: torch's products, which follow the batch, must be seen."""
    model = engine.wrap(make_family("llama"), use_kernels=False)
    crowd = tiny_crowd("llama")
    crowd.model = model
    with pytest.raises(AssertionError):
        crowd.run(60, seed=1)


@pytest.mark.timeout(600)
def test_a_needle_in_crowds_of_the_default_model_has_the_bits_it_has_alone(default_model):
    default_crowd(default_model.hf_model).run(4, seed=2)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_a_needle_in_200_crowds_of_the_default_model_has_the_bits_it_has_alone(default_model):
    crowd = default_crowd(default_model.hf_model)
    crowd.run(200, seed=3)
    assert crowd.num_cached > 20
