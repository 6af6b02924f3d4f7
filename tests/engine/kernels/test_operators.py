"""Kernels as operators of torch: what the compiler is told of them is what they do."""

import pytest
import torch

from engine.attention.interface import AttentionOptions
from engine.attention.operator import OperatorAttention
from engine.kernels.cpu.library import kernels
from engine.kernels.cpu.linear import PackedLinear, packed_linear
from engine.kernels.cpu.mixture import Mixture, Routing
from engine.kernels.cpu.quantized_linear import Format, QuantizedWeight, pack_int4
from engine.kernels.cpu.rows import Activation, Norm, gate_mul, norm_rows, rotate
from engine.kernels.operators import define_operator
from engine.models.fused_decoder import FusedDecoder, _check_step
from engine.models.opaque_decoder import OpaqueDecoder
from engine.models.replacement import in_place
from engine.models.rotary_operator import OpaqueRotary, find_rotary

GENERATOR = torch.Generator().manual_seed(0)


def random(*shape):
    return torch.randn(*shape, generator=GENERATOR)


def linear_case(*shape, bias=True):
    layer = PackedLinear(kernels(), random(40, 24), random(40) if bias else None)
    return "packed_linear", packed_linear, (random(*shape), layer._panels, layer._bias, 40)


def quantized_cases(*shape):
    codes = torch.randint(0, 16, (40, 24), generator=GENERATOR, dtype=torch.uint8)
    weight = pack_int4(kernels(), Format.INT4, codes, random(40, 1).half(), random(40, 1).half())
    numbers = (int(weight.format), 40, 24)
    ids = torch.tensor([[3, 39, 0]])
    return [
        ("quantized_linear", apply_linear, (random(*shape), weight.panels, random(40), *numbers)),
        ("unpack_rows", apply_rows, (ids, weight.panels, *numbers)),
    ]


def apply_linear(library, x, panels, bias, *numbers):
    kind, *shape = numbers
    return QuantizedWeight(Format(kind), panels, tuple(shape), library).linear(x, bias)


def apply_rows(library, ids, panels, *numbers):
    kind, *shape = numbers
    return QuantizedWeight(Format(kind), panels, tuple(shape), library).rows(ids)


def apply_norm(library, x, weight, bias, epsilon, centres):
    return norm_rows(library, x, Norm(weight, epsilon, bias, centres))


# Heads as they lie in the product of the fused projections: rows are apart.
HEADS = random(5, 96)[:, :64].view(5, 4, 16)
CASES = [
    linear_case(5, 24),
    linear_case(1, 5, 24, bias=False),
    linear_case(1, 0, 24),
    *quantized_cases(1, 5, 24),
    *quantized_cases(1, 0, 24),
    ("norm_rows", apply_norm, (random(1, 5, 24), random(24), None, 1e-5, False)),
    ("norm_rows", apply_norm, (HEADS, random(16), random(16), 1e-5, True)),
    ("gate_mul", gate_mul, (random(1, 5, 24), int(Activation.SILU))),
    ("gate_mul", gate_mul, (random(1, 5, 24), int(Activation.GELU_TANH))),
    ("rotate", rotate, (HEADS, random(5, 16), random(5, 16))),
    ("rotate", rotate, (random(1, 4, 16), random(1, 16), random(1, 16))),
]
NAMES = [f"{name}-{tuple(arguments[0].shape)}" for name, _, arguments in CASES]


@pytest.mark.parametrize(("name", "function", "arguments"), CASES, ids=NAMES)
def test_an_operator_is_what_its_schema_and_its_fake_say(name, function, arguments):
    operator = getattr(torch.ops.slipstream, name).default
    torch.library.opcheck(operator, arguments)
    assert torch.equal(operator(*arguments), function(kernels(), *arguments))


def test_a_mixture_is_an_operator_that_knows_it_by_a_number():
    def view(*shape):
        return PackedLinear(kernels(), random(*shape), None).view

    experts = [(view(16, 24), view(24, 8)) for _ in range(3)]
    mixture = Mixture(kernels(), view(3, 24), experts, Routing(2, True, False), Activation.SILU)
    x = random(1, 5, 24)
    torch.library.opcheck(torch.ops.slipstream.mix.default, (x, mixture._number))
    assert torch.equal(torch.ops.slipstream.mix(x, mixture._number), mixture(x))


class Doubling:
    """Attention that answers with twice the values, and notes what it was asked."""

    def __init__(self):
        self.calls = []

    def attend(self, layer, query, key, value, options):
        self.calls.append((layer, len(query), options))
        return 2 * value.repeat_interleave(query.shape[1] // value.shape[1], dim=1)


OPTIONS = [
    AttentionOptions(0.5),
    AttentionOptions(0.25, sliding_window=7, softcap=30.0),
    AttentionOptions(1.0, sinks=random(4)),
]


@pytest.mark.parametrize("options", OPTIONS, ids=["plain", "window", "sinks"])
def test_attention_is_an_operator_that_hands_everything_on(options):
    target = Doubling()
    attention = OperatorAttention(target, torch.device("cpu"))
    attention.num_tokens = 5
    query, key, value = random(5, 4, 16), random(5, 2, 16), random(5, 2, 8)
    expected = 2 * value.repeat_interleave(2, dim=1)
    assert torch.equal(attention.attend(3, query, key, value, options), expected)
    assert target.calls == [(3, 5, options)]
    tensors = (query, key, value, attention._cache, options.sinks)
    numbers = (attention._number, 3, options.scaling, options.sliding_window, options.softcap)
    torch.library.opcheck(torch.ops.slipstream.attend.default, (*tensors, *numbers))


def test_attention_does_not_see_padding_and_answers_it_with_zeros():
    target = Doubling()
    attention = OperatorAttention(target, torch.device("cpu"))
    attention.num_tokens = 3
    query, key, value = random(8, 4, 16), random(8, 2, 16), random(8, 2, 16)
    result = attention.attend(0, query, key, value, OPTIONS[0])
    assert target.calls == [(0, 3, OPTIONS[0])]
    assert torch.equal(result[:3], 2 * value[:3].repeat_interleave(2, dim=1))
    assert result.shape == (8, 4, 16)
    assert not result[3:].any()


def test_two_attentions_do_not_meet_and_one_that_is_gone_is_known_no_more():
    targets = [Doubling(), Doubling()]
    first, second = (OperatorAttention(target, torch.device("cpu")) for target in targets)
    first.num_tokens = second.num_tokens = 2
    query = random(2, 2, 4)
    first.attend(1, query, query, query, OPTIONS[0])
    assert [len(target.calls) for target in targets] == [1, 0]
    cache, number = first._cache, first._number
    del first
    with pytest.raises(KeyError):
        torch.ops.slipstream.attend(query, query, query, cache, None, number, 1, 1.0, None, None)


def test_a_compiled_function_calls_the_kernels_in_one_graph():
    library = kernels()
    layer = PackedLinear(library, random(48, 24), None)
    weight = random(24)

    def compute(x):
        return gate_mul(library, layer(norm_rows(library, x, Norm(weight, 1e-5))), 1)

    compiled = torch.compile(compute, fullgraph=True, backend="aot_eager")
    for rows in (2, 3, 7):
        x = random(rows, 24)
        assert torch.equal(compiled(x), compute(x))


def test_an_operator_of_another_kind_is_registered_in_the_same_way():
    halve = define_operator("halve_for_a_test(Tensor x) -> Tensor", lambda x: x / 2, torch.clone)
    torch.library.opcheck(torch.ops.slipstream.halve_for_a_test.default, (random(3),))
    assert torch.equal(halve(torch.ones(2)), torch.full((2,), 0.5))


def test_what_a_model_does_by_itself_is_an_operator_too(tiny_model):
    """The rotary tables of its own module, padding or not."""
    model = tiny_model.hf_model.model
    (rotary,) = find_rotary(tiny_model.hf_model)
    assert isinstance(rotary, OpaqueRotary)
    positions = torch.tensor([[3, 0, 7]])
    hidden = random(1, 3, 32)
    number = rotary._number
    torch.library.opcheck(torch.ops.slipstream.rotary.default, (hidden, positions, number, None, 8))
    expected = model.rotary_emb(hidden, positions)
    with in_place([rotary]):
        tables = model.rotary_emb(hidden, positions)
    assert all(map(torch.equal, tables, expected))


def test_a_whole_decoder_is_an_operator_that_does_not_see_padding(tiny_model):
    lm = tiny_model.causal_lm
    (decoder,) = (OpaqueDecoder(r) for r in lm.in_place if isinstance(r, FusedDecoder))
    inputs, attention = _check_step(decoder._decoder)
    with lm.in_use(attention):
        attention.begin_step(inputs)
        expected = lm.hf_model.model(inputs.input_ids, position_ids=inputs.position_ids)
    own = (inputs.input_ids, inputs.position_ids)
    ids, positions = (torch.nn.functional.pad(values, (0, 7)) for values in own)
    decoder.num_tokens = 9
    with lm.in_use(attention, [decoder]):
        padded = lm.hf_model.model(ids, position_ids=positions).last_hidden_state
        arguments = (ids, positions, decoder._cache, decoder._number, 32)
        torch.library.opcheck(torch.ops.slipstream.decoder.default, arguments)
    assert torch.equal(padded[:, :9], expected.last_hidden_state)
    assert not padded[:, 9:].any()
