"""Stop strings through a manager: where answers end, as `generate` ends them, and what is said."""

import pytest
import torch
from tokenizers import Tokenizer, decoders, models
from transformers import GenerationConfig, PreTrainedTokenizerFast

from engine import ContinuousBatchingConfig, FinishReason, InvalidRequestError, RequestStatus
from tests.engine.threads import until

CONFIG = ContinuousBatchingConfig(num_blocks=64, page_size=4, max_batch_tokens=64)
PROMPTS = [[n, n + 1, n + 2] for n in range(0, 60, 7)]
NUM_TOKENS = 30


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    """A tokenizer whose tokens are all words of one or two of 14 letters, so that they overlap."""
    letters = "abcdefghijklmn"
    words = [*letters, *(first + second for first in letters for second in letters)]
    tokenizer = Tokenizer(models.BPE({word: token for token, word in enumerate(words)}, []))
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


@pytest.fixture
def generate(tiny_model):
    def call(prompts=PROMPTS, generation_config=None, **options):
        outputs = tiny_model.generate_batch(
            prompts, generation_config, CONFIG, max_new_tokens=NUM_TOKENS, **options
        )
        return list(outputs.values())

    yield call
    tiny_model.tokenizer = None


@pytest.fixture
def strings(generate, tokenizer) -> list[str]:
    """Strings that some of the answers contain, from the middle of one token to that of another."""
    texts = [tokenizer.decode(output.generated_tokens) for output in generate()]
    return [text[k : k + 3] for text, k in zip(texts, (7, 20, 33), strict=False)]


def reference(model, tokenizer, strings):
    answers = []
    for prompt in PROMPTS:
        ids = torch.tensor([prompt])
        output = model.hf_model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=NUM_TOKENS,
            do_sample=False,
            stop_strings=strings,
            tokenizer=tokenizer,
        )
        answers.append(output[0, len(prompt) :].tolist())
    return answers


@pytest.mark.parametrize("how", ["keyword", "attribute", "configuration"])
def test_answers_end_where_generate_ends_them(generate, tiny_model, tokenizer, strings, how):
    expected = reference(tiny_model, tokenizer, strings)
    assert len({len(answer) for answer in expected}) > 2
    if how == "keyword":
        outputs = generate(stop_strings=strings, tokenizer=tokenizer)
    else:
        tiny_model.tokenizer = tokenizer
        if how == "attribute":
            outputs = generate(stop_strings=strings)
        else:
            config = GenerationConfig(stop_strings=strings, eos_token_id=None)
            outputs = generate(generation_config=config)
    assert [output.generated_tokens for output in outputs] == expected
    for output in outputs:
        if len(output.generated_tokens) < NUM_TOKENS:
            assert output.finish_reason is FinishReason.STOP
            assert output.stop_reason in strings
            text = tokenizer.decode([*output.prompt_ids, *output.generated_tokens])
            assert output.stop_reason in text


def test_they_are_not_looked_for_before_the_least_number_of_tokens(generate, tokenizer, strings):
    outputs = generate(stop_strings=strings, tokenizer=tokenizer, min_new_tokens=12)
    assert min(len(output.generated_tokens) for output in outputs) >= 12


def test_without_a_tokenizer_they_are_refused_by_name(generate):
    with pytest.raises(InvalidRequestError, match="tokenizer") as caught:
        generate(stop_strings=["x"])
    assert caught.value.param == "stop_strings"


def test_a_tokenizer_that_raises_fails_its_own_request_alone(make_manager, tokenizer):
    class Broken:
        def decode(self, token_ids, **options):
            raise KeyError("no such token")

    manager = make_manager()
    manager.start()
    manager.add_request([1], "a", max_new_tokens=5, stop_strings=["x"], tokenizer=Broken())
    manager.add_request([1], "b", max_new_tokens=5)
    failed, sound = manager.get_result("a"), manager.get_result("b")
    manager.stop()
    assert (failed.status, failed.finish_reason) == (RequestStatus.FAILED, FinishReason.ERROR)
    assert "no such token" in failed.error
    assert len(sound.generated_tokens) == 5


def test_a_stream_ends_with_its_stop_string(make_manager, tiny_model, generate, tokenizer, strings):
    expected = next(
        output
        for output in generate(stop_strings=strings, tokenizer=tokenizer)
        if output.stop_reason
    )
    manager = make_manager()
    manager.start()
    name = manager.add_request(
        expected.prompt_ids,
        max_new_tokens=NUM_TOKENS,
        streaming=True,
        stop_strings=strings,
        tokenizer=tokenizer,
    )
    outputs = list(manager.request_id_iter(name))
    manager.stop()
    assert [t for output in outputs for t in output.new_tokens] == expected.generated_tokens
    assert outputs[-1].stop_reason == expected.stop_reason
    until(lambda: not manager.is_running())
