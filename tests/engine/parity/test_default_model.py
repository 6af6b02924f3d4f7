"""The default model, greedily: the tokens that `model.generate` gives to each prompt alone."""

from itertools import product

import pytest

import engine
from engine.models.quantized_modules import QuantizedLinear
from server.environment import cache_folder
from server.model_store import find_model
from server.settings import ModelSettings
from tests.engine.parity.default_model import varied_lengths
from tests.engine.parity.grid import Settings
from tests.engine.parity.subject import Subject

NORMAL_LENGTHS = [1, 40, 97, 600, 16, 150, 33, 64]
NORMAL_CASES = [
    (Settings(16, 64, True, True, "fifo"), True),
    (Settings(256, 512, False, False, "prefill_first"), False),
]
LONG_SETTINGS = [
    *(
        Settings(page_size, chunk, sharing, False, "fifo")
        for page_size, chunk, sharing in product((16, 256), (64, 512), (True, False))
    ),
    Settings(16, 64, True, True, "fifo"),
    Settings(16, 512, False, True, "prefill_first"),
    Settings(256, 512, True, True, "fifo"),
]


@pytest.fixture(scope="session")
def few_prompts(default_model) -> Subject:
    return default_model.subject(NORMAL_LENGTHS, 16, spare_tokens=16)


@pytest.fixture(scope="session")
def many_prompts(default_model) -> Subject:
    return default_model.subject(varied_lengths(64), 24, spare_tokens=512)


# The first test of a session may have to fetch the model.
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("settings", "use_kernels"), NORMAL_CASES, ids=str)
def test_tokens_equal_generate(settings, use_kernels, few_prompts, judge):
    judge(few_prompts.run(settings, use_kernels=use_kernels))


@pytest.mark.timeout(600)
def test_the_packed_weights_of_the_file_answer_as_its_numbers(few_prompts, judge):
    """The oracle has the same numbers in float32; what is served has the file's blocks."""
    stored = find_model(ModelSettings(), cache_folder())
    packed = engine.load(stored.source)
    assert isinstance(packed.hf_model.get_output_embeddings(), QuantizedLinear)
    with packed.continuous_batching_context_manager() as manager:
        judge(few_prompts.compare(few_prompts.generate(manager)))


@pytest.mark.long
@pytest.mark.parametrize("settings", LONG_SETTINGS, ids=str)
def test_tokens_of_64_prompts_equal_generate(settings, many_prompts, judge):
    judge(many_prompts.run(settings))


@pytest.mark.long
def test_tokens_of_64_prompts_equal_generate_without_kernels(many_prompts, judge):
    judge(many_prompts.run(Settings(16, 64, True, True, "fifo"), use_kernels=False))
