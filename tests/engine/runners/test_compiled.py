"""Compiled forwards: the model's own answers, in few graphs; and what is wrong costs no request.

Most tests compile with "aot_eager", which traces and lowers the model and generates no code; and
one path of the two where that shows the same, since each graph takes a second.
"""

import copy
import logging

import pytest
import torch
from torch._dynamo.utils import counters
from transformers import CompileConfig, GenerationConfig

from engine import ContinuousBatchingConfig, wrap
from engine.runners import compiled
from engine.runners.compile_probe import CompiledDiffersError
from engine.runners.compiled import CompiledRunner
from tests.engine.control import loop_of

# The import of torch's own compiler warns of a part of torch.
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")

TRACED = CompileConfig(backend="aot_eager", fullgraph=True)
BY_SIZE = CompileConfig(backend="aot_eager", fullgraph=True, dynamic=False)
SMALL = {"num_blocks": 64, "page_size": 16, "max_batch_tokens": 64, "max_requests_per_batch": 8}
PROMPTS = [[(7 * i + row) % 199 for i in range(3 + 11 * row)] for row in range(6)]


@pytest.fixture(autouse=True)
def few_graphs_are_left(monkeypatch):
    """Compiled code of one test must not weigh on the next."""
    counters.clear()
    # It describes every tensor to whoever listens to all loggers, as pytest does.
    monkeypatch.setattr(logging.getLogger("torch.__trace"), "propagate", False)
    yield
    torch._dynamo.reset()


@pytest.fixture
def make(tiny_model):
    """A function from a model and fields of the configuration to a manager and its runner."""
    managers = []

    def make_one(model=tiny_model, *, both=None, **fields):
        if both is not None:
            fields.update(varlen_compile_config=both, decode_compile_config=both)
        config = ContinuousBatchingConfig(**{**SMALL, "return_logprobs": True, **fields})
        manager = model.init_continuous_batching(GenerationConfig(), config)
        managers.append(manager)
        return manager

    yield make_one
    for manager in managers:
        if manager.is_running():
            manager.stop()
        manager.destroy()


def runner_of(manager) -> CompiledRunner:
    runner = loop_of(manager)._parts.runner
    assert isinstance(runner, CompiledRunner)
    return runner


def ask(manager, prompts=PROMPTS, count=8):
    """Tokens and log-probabilities of greedy answers, all asked for at once."""
    ids = manager.add_requests(prompts, max_new_tokens=count)
    outputs = [manager.get_result(name) for name in ids]
    assert [output.error for output in outputs] == [None] * len(outputs)
    return [(output.generated_tokens, output.logprobs) for output in outputs]


def num_graphs():
    return counters["stats"]["unique_graphs"]


def as_it_is(make, model):
    manager = make(model)
    manager.start()
    return ask(manager)


@pytest.fixture
def expected(make, tiny_model):
    return as_it_is(make, tiny_model)


def copy_of(model, *, in_layers=False):
    """A copy whose decoder is one call of the kernels, or one for each part of a layer."""
    copied = wrap(copy.deepcopy(model.hf_model))
    if in_layers:
        copied.causal_lm.in_place = copied.causal_lm.replacements
    return copied


@pytest.mark.parametrize("in_layers", [False, True])
@pytest.mark.parametrize(
    ("config", "graphs"),
    [(TRACED, 3), pytest.param(BY_SIZE, 3 + 4, marks=pytest.mark.long)],
)
def test_answers_are_bitwise_those_of_the_model_as_it_is(
    make, tiny_model, config, graphs, in_layers
):
    """Alone and in a crowd, in graphs that were all compiled while warming up."""
    model = copy_of(tiny_model, in_layers=in_layers)
    expected = as_it_is(make, model)
    manager = make(model, both=config)
    manager.warmup()
    assert num_graphs() == graphs
    manager.start()
    runner = runner_of(manager)
    assert ask(manager) == expected
    assert [answer for prompt in PROMPTS for answer in ask(manager, [prompt])] == expected
    assert runner.failure is None
    assert (num_graphs(), len(runner._graphs)) == (graphs, graphs)


def test_without_warming_up_a_graph_is_compiled_when_it_is_needed(make, expected):
    manager = make(decode_compile_config=TRACED)
    manager.start()
    runner = runner_of(manager)
    assert ask(manager, PROMPTS[:1], 1) == [(expected[0][0][:1], expected[0][1][:1])]
    assert (num_graphs(), runner.failure) == (0, None)
    assert ask(manager) == expected
    assert runner.failure is None
    assert num_graphs() == len(runner._graphs) <= 2
    assert all(shape.is_decode for shape in runner._graphs)


@pytest.mark.long
def test_a_model_without_kernels_is_compiled_too(make, tiny_model):
    model = wrap(copy.deepcopy(tiny_model.hf_model), use_kernels=False)
    expected, traced = as_it_is(make, model), make(model, both=TRACED)
    traced.start()
    for (tokens, logprobs), (own_tokens, own) in zip(ask(traced), expected, strict=True):
        assert tokens == own_tokens
        assert logprobs == pytest.approx(own, abs=1e-4)
    assert runner_of(traced).failure is None


def test_two_engines_on_one_model_and_one_on_another_do_not_meet(make, expected, tiny_model):
    other = wrap(copy.deepcopy(tiny_model.hf_model))
    with torch.no_grad():
        for parameter in other.hf_model.parameters():
            parameter.mul_(-1.1)
    others = as_it_is(make, other)
    assert others != expected
    managers = [make(varlen_compile_config=TRACED) for _ in range(2)]
    managers.append(make(other, varlen_compile_config=TRACED))
    for manager in managers:
        manager.start()
    ids = [manager.add_requests(PROMPTS, max_new_tokens=8) for manager in managers]
    answers = [
        [manager.get_result(name).generated_tokens for name in names]
        for manager, names in zip(managers, ids, strict=True)
    ]
    right, wrong = ([tokens for tokens, _ in answer] for answer in (expected, others))
    assert answers == [right, right, wrong]
    assert [runner_of(manager).failure for manager in managers] == [None] * 3


@pytest.mark.parametrize(("in_layers", "through_data"), [(False, False), (True, True)])
def test_weights_changed_in_a_pause_take_effect_without_compiling(
    make, tiny_model, in_layers, through_data
):
    model = copy_of(tiny_model, in_layers=in_layers)
    manager = make(model, varlen_compile_config=TRACED)
    manager.warmup()
    manager.start()
    before, graphs = ask(manager), num_graphs()
    with manager.pause(), torch.no_grad():
        for parameter in model.hf_model.parameters():
            (parameter.data if through_data else parameter).mul_(-1.3)
        down = model.hf_model.model.layers[0].mlp.down_proj
        down.weight = torch.nn.Parameter(-down.weight.detach())
    assert ask(manager) == as_it_is(make, model) != before
    assert (num_graphs(), runner_of(manager).failure) == (graphs, None)


def broken(graph, example_inputs):
    """A backend of torch.compile that fails on purpose: the model must run without it."""
    raise NotImplementedError("this backend knows no such thing")


def wrong(graph, example_inputs):
    return lambda *inputs: tuple(1.01 * output for output in graph(*inputs))


@pytest.mark.parametrize("warm", [True, False])
@pytest.mark.parametrize(
    ("backend", "reason"),
    [(broken, "knows no such thing"), (wrong, "compiled logits differ by 0.01 of the largest")],
)
def test_what_cannot_be_compiled_runs_as_it_is(make, expected, caplog, backend, reason, warm):
    manager = make(both=CompileConfig(backend=backend))
    with caplog.at_level(logging.WARNING):
        if warm:
            manager.warmup()
        manager.start()
        assert ask(manager) == expected
    warnings = [record.message for record in caplog.records if "given up" in record.message]
    assert len(warnings) == 1
    assert reason in warnings[0]
    assert runner_of(manager).failure is not None


def test_without_a_compiler_the_model_runs_as_it_is(make, expected, caplog, monkeypatch, tmp_path):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    manager = make(default_compile_level=1)
    no_compiler = torch._inductor.config.patch({"cpp.cxx": ("no-such-compiler",)})
    with no_compiler, caplog.at_level(logging.WARNING):
        manager.warmup()
    manager.start()
    assert ask(manager) == expected
    assert "given up" in caplog.text
    assert "compiler" in caplog.text.lower()
    assert runner_of(manager).failure is not None


def test_a_graph_that_breaks_later_costs_no_request(make, expected, caplog):
    manager = make(varlen_compile_config=TRACED)
    manager.warmup()
    runner = runner_of(manager)

    def breaks(*_):
        raise RuntimeError("out of its depth")

    for shape in runner._graphs:
        runner._graphs[shape] = breaks
    manager.start()
    assert ask(manager) == expected
    assert "out of its depth" in caplog.text
    assert "out of its depth" in str(runner.failure)


def test_a_batch_that_nobody_can_compute_is_not_the_compiler_s_fault(make, monkeypatch):
    manager = make(varlen_compile_config=TRACED)
    manager.warmup()
    runner = runner_of(manager)
    before = runner._graphs.copy()

    def breaks(*_, **__):
        raise ValueError("a bad batch")

    with monkeypatch.context() as patches:
        patches.setattr(runner._attention, "begin_step", breaks)
        manager.start()
        manager.add_request([1, 2, 3], "bad", max_new_tokens=2)
        output = manager.get_result("bad")
    assert "a bad batch" in str(output.error)
    assert runner.failure is None
    assert runner._graphs == before
    assert len(ask(manager, [[1, 2, 3]], 2)[0][0]) == 2


def test_the_check_sees_what_is_not_a_number(make):
    runner = runner_of(make(varlen_compile_config=TRACED))

    def forward(inputs, attention):
        return torch.full((len(inputs.sample_indices), 199), float("nan"))

    with pytest.raises(CompiledDiffersError, match="differ by nan"):
        runner._probe.check(forward, is_decode=False)


def test_sizes_are_powers_of_two_that_hold_the_batch():
    sizes = [compiled._next_size(count, 16) for count in (1, 16, 17, 64, 65)]
    assert sizes == [16, 16, 32, 64, 128]
    assert [compiled._next_size(count, 1) for count in (1, 2, 3, 8)] == [1, 2, 4, 8]
