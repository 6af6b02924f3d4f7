"""Answers that follow a grammar: what is drawn, when it ends, and what may not disturb it."""

import threading

import pytest

from engine import ContinuousBatchingConfig, FinishReason, GrammarFailedError, InvalidRequestError
from engine.sampling import grammar_masks
from tests.engine.sampling.stairs import Stairs

EOS = 150
CONFIG = ContinuousBatchingConfig(num_blocks=64, page_size=4, max_batch_tokens=16)
PROMPTS = [[5, 6, 7, 8, 9], [20, 30], [7] * 11]
KINDS = [
    {"temperature": 0.0},
    {"temperature": 3.0, "seed": 1},
    {"temperature": 2.0, "seed": 2, "top_k": 3, "top_p": 0.9},
    {"temperature": 0.0, "repetition_penalty": 1.8, "presence_penalty": 1.0},
    {"temperature": 0.0, "logit_bias": {3: 50.0}, "top_logprobs": 2},
    {"temperature": 1.0, "seed": 3, "no_repeat_ngram_size": 1},
    {"temperature": 4.0, "seed": 4, "min_new_tokens": 4},
]


@pytest.fixture
def generate(tiny_model):
    def call(inputs, config=CONFIG, **options):
        outputs = tiny_model.generate_batch(
            inputs,
            continuous_batching_config=config,
            **{"max_new_tokens": 20, "eos_token_id": EOS, **options},
        )
        return list(outputs.values())

    yield call
    tiny_model.destroy_cached_continuous_batching_manager()


def tokens(outputs):
    assert [output.error for output in outputs] == [None] * len(outputs)
    return [output.generated_tokens for output in outputs]


def assert_follows(grammar, generated):
    *body, last = generated
    assert last == EOS
    assert grammar.accepts(body), generated


@pytest.mark.parametrize("options", KINDS, ids=str)
def test_every_kind_of_row_follows_its_grammar_and_then_ends(generate, options):
    grammar = Stairs(least=3, most=6)
    outputs = generate(PROMPTS, grammar=grammar, **options)
    for generated in tokens(outputs):
        assert_follows(grammar, generated)
    assert {output.finish_reason for output in outputs} == {FinishReason.STOP}


def test_rows_without_a_grammar_are_untouched_by_one_beside_them(tiny_model, make_manager):
    manager = make_manager()
    alone = tiny_model.generate_batch([PROMPTS[0]], max_new_tokens=8, temperature=0.0)
    manager.start()
    manager.add_request(
        PROMPTS[1], "held", 8, grammar=Stairs(2, 4), eos_token_id=EOS, temperature=0.0
    )
    manager.add_request(PROMPTS[0], "free", 8, temperature=0.0)
    outputs = {output.request_id: output for output in manager}
    manager.stop()
    assert outputs["free"].generated_tokens == next(iter(alone.values())).generated_tokens
    assert_follows(Stairs(2, 4), outputs["held"].generated_tokens)


@pytest.mark.parametrize("options", [{"temperature": 0.0}, {"temperature": 3.0, "seed": 5}])
def test_every_answer_of_a_family_has_a_state_of_its_own(generate, options):
    grammar = Stairs(least=2, most=5)
    outputs = generate([PROMPTS[0]], grammar=grammar, num_return_sequences=5, **options)
    for generated in tokens(outputs):
        assert_follows(grammar, generated)


def test_preempted_requests_go_on_where_their_grammar_was(generate):
    grammar = Stairs(least=12, most=16, widest=6)
    options = {"grammar": grammar, "temperature": 3.0, "seed": 9, "max_new_tokens": 20}
    prompts = [[n, n + 1, n + 2] for n in range(1, 9)]
    ample = tokens(generate(prompts, **options))
    tight = ContinuousBatchingConfig(
        num_blocks=12, page_size=4, max_batch_tokens=16, allow_block_sharing=False
    )
    outputs = generate(prompts, config=tight, **options)
    assert sum(output.num_preemptions for output in outputs) > 0
    assert tokens(outputs) == ample
    for generated in ample:
        assert_follows(grammar, generated)


def test_an_answer_that_is_cut_has_followed_so_far(generate):
    (output,) = generate([PROMPTS[0]], grammar=Stairs(10, 12), max_new_tokens=4, temperature=0.0)
    assert output.finish_reason is FinishReason.LENGTH
    assert Stairs(4, 4).accepts(output.generated_tokens)


def test_a_grammar_that_is_complete_ends_before_min_new_tokens(generate):
    grammar = Stairs(least=2, most=2)
    (output,) = generate([PROMPTS[0]], grammar=grammar, min_new_tokens=9, temperature=0.0)
    assert_follows(grammar, output.generated_tokens)


def test_a_stop_token_may_end_a_complete_answer_only(generate):
    grammar = Stairs(least=3, most=3)
    (output,) = generate(
        [PROMPTS[0]], grammar=grammar, eos_token_id=-1, stop_token_ids=[190], temperature=0.0
    )
    assert (output.stop_reason, len(output.generated_tokens)) == (190, 4)
    assert grammar.accepts(output.generated_tokens[:-1])


def test_logprobs_are_the_models_own(generate):
    (free,) = generate([PROMPTS[0]], temperature=0.0, top_logprobs=1, max_new_tokens=1)
    (held,) = generate(
        [PROMPTS[0]], temperature=0.0, top_logprobs=1, max_new_tokens=1, grammar=Stairs(1, 2)
    )
    assert held.token_logprobs[0].top == free.token_logprobs[0].top


class Panic(BaseException):
    """What a native library may raise."""


@pytest.mark.parametrize("failure", [ValueError("it is too complex"), Panic("at the disco")])
@pytest.mark.parametrize("temperature", [0.0, 2.0])
def test_a_grammar_that_gives_up_fails_its_own_request(make_manager, temperature, failure):
    manager = make_manager()
    manager.start()
    options = {"eos_token_id": EOS, "temperature": temperature, "max_new_tokens": 9}
    bad = Stairs(4, 7, breaks_at=2, failure=failure)
    manager.add_request(PROMPTS[0], "bad", grammar=bad, **options)
    manager.add_request(PROMPTS[1], "good", grammar=Stairs(4, 7), **options)
    outputs = {output.request_id: output for output in manager}
    manager.stop()
    assert isinstance(outputs["bad"].exception, GrammarFailedError)
    assert len(outputs["bad"].generated_tokens) == 2
    assert_follows(Stairs(4, 7), outputs["good"].generated_tokens)


def test_a_grammar_that_slows_everybody_is_given_up(generate, monkeypatch):
    monkeypatch.setattr(grammar_masks, "ALLOWED_SECONDS", 0.0)
    monkeypatch.setattr(grammar_masks, "ALLOWED_SECONDS_PER_TOKEN", 0.0)
    (output,) = generate([PROMPTS[0]], grammar=Stairs(4, 9), temperature=0.0)
    assert isinstance(output.exception, GrammarFailedError)
    assert "too long" in str(output.exception)
    assert len(output.generated_tokens) == 1, "the first mask is made in any case"


def test_nothing_left_to_draw_is_the_grammars_failure(generate):
    (output,) = generate(
        [PROMPTS[0]], grammar=Stairs(2, 4, widest=1), suppress_tokens=[2], temperature=0.0
    )
    assert isinstance(output.exception, GrammarFailedError)


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"grammar": "root ::= x"}, "grammar"),
        ({"grammar": Stairs(1, 2), "ignore_eos": True, "eos_token_id": EOS}, "ignore_eos"),
        ({"grammar": Stairs(1, 2)}, "grammar"),
    ],
)
def test_what_cannot_end_is_refused(make_manager, options, param):
    manager = make_manager()
    with pytest.raises(InvalidRequestError) as caught:
        manager.add_request(PROMPTS[0], **options)
    assert caught.value.param == param


def test_masks_are_made_once_for_each_token_while_the_model_computes(controlled):
    manager, runner = controlled()
    grammar = Stairs(least=3, most=3)
    manager.start()
    manager.add_request([1, 2], "warm", 1, temperature=0.0)  # the width of a row is known
    manager.get_result("warm", timeout=10)
    runner.hold()
    manager.add_request([5], "held", 9, grammar=grammar, eos_token_id=EOS, temperature=0.0)
    runner.wait_for_forward(2)
    while not grammar.masks:  # made although no forward may end
        threading.Event().wait(0.001)
    runner.go()
    output = manager.get_result("held", timeout=10)
    manager.stop()
    assert grammar.masks == [0, 1, 2, 3]
    assert_follows(grammar, output.generated_tokens)


def test_no_thread_is_left_when_the_engine_stops(make_manager):
    manager = make_manager()
    manager.start()
    manager.add_request([5], "one", 9, grammar=Stairs(2, 3), eos_token_id=EOS, temperature=0.0)
    manager.get_result("one", timeout=10)
    manager.stop()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("grammar")]
