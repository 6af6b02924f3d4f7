"""A mixture of experts in one call: what it computes, and that rows stay strangers in it."""

import pytest
import torch
from torch.nn import functional

from engine.kernels.cpu.linear import LinearView, PackedLinear
from engine.kernels.cpu.mixture import Mixture, Routing
from engine.kernels.cpu.quantized_linear import Format, has_tile_unit
from engine.kernels.cpu.rows import Activation
from engine.models.quantization import quantize

HIDDEN, WIDTH, SHARED_WIDTH, EXPERTS = 40, 24, 72, 6
FORMATS = [None, Format.BF16, Format.INT4, Format.W8A8, Format.AMX_BF16]
ROUTINGS = [
    Routing(chosen=2, normalises=True, shares=False),
    Routing(chosen=3, normalises=False, shares=False),
    Routing(chosen=2, normalises=False, shares=True),
    Routing(chosen=EXPERTS, normalises=False, shares=True),
]


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


class Case:
    """A mixture and the same as torch computes it."""

    def __init__(self, library, kind, routing, *, has_gate=False):
        if kind is Format.AMX_BF16 and not has_tile_unit(library):
            pytest.skip("needs a processor with a tile unit, and a build that uses it")
        self.routing = routing
        self.has_gate = has_gate
        self.router = random(EXPERTS + has_gate, HIDDEN, seed=1) / 4
        widths = [WIDTH] * EXPERTS + [SHARED_WIDTH] * routing.shares
        self.experts = [
            (random(2 * width, HIDDEN, seed=2 + n) / 6, random(HIDDEN, width, seed=99 + n) / 5)
            for n, width in enumerate(widths)
        ]
        views = []
        for number, pair in enumerate(self.experts):
            packed = [self._pack(library, kind, weight) for weight in pair]
            views.append((packed[0][0], packed[1][0]))
            self.experts[number] = (packed[0][1], packed[1][1])
        self.mixture = Mixture(
            library,
            PackedLinear(library, self.router, None).view,
            views,
            routing,
            Activation.SILU,
        )

    @staticmethod
    def _pack(library, kind, weight):
        """Return a view, and the numbers that it stands for."""
        if kind is None:
            return PackedLinear(library, weight, None).view, weight
        stored = quantize(weight, kind)
        packed = stored.pack(library)
        return LinearView(int(kind), packed.panels, None, *packed.shape), stored.numbers()

    def expected(self, x):
        logits = x @ self.router.T
        weights, chosen = logits[:, :EXPERTS].softmax(-1).topk(self.routing.chosen)
        if self.routing.normalises:
            weights = weights / weights.sum(-1, keepdim=True)
        if self.routing.shares:
            gate = logits[:, EXPERTS:].sigmoid() if self.has_gate else torch.ones(len(x), 1)
            weights = torch.cat((weights, gate), dim=1)
            chosen = torch.cat((chosen, torch.full((len(x), 1), EXPERTS)), dim=1)
        out = torch.zeros(len(x), HIDDEN)
        for i, row in enumerate(x):
            for weight, expert in zip(weights[i], chosen[i].tolist(), strict=True):
                out[i] += weight * self._expert(expert, row)
        return out

    def _expert(self, number, row):
        gate_up, down = self.experts[number]
        gate, up = (gate_up @ row).chunk(2)
        return down @ (functional.silu(gate) * up)


@pytest.mark.parametrize("routing", ROUTINGS, ids=str)
@pytest.mark.parametrize("kind", FORMATS, ids=str)
def test_a_mixture_is_what_its_experts_add_up_to(kind, routing, library):
    case = Case(library, kind, routing, has_gate=routing.shares and routing.chosen == 2)
    x = random(37, HIDDEN, seed=5)
    tolerance = 2e-2 if kind is Format.W8A8 else 1e-4
    for rows in (1, 2, 37):
        expected = case.expected(x[:rows])
        difference = (case.mixture(x[:rows]) - expected).abs().max()
        assert difference <= tolerance * expected.abs().max(), rows


@pytest.mark.parametrize("kind", FORMATS, ids=str)
def test_a_row_is_bitwise_the_same_in_any_batch_and_team(kind, library):
    case = Case(library, kind, ROUTINGS[2], has_gate=True)
    x = random(70, HIDDEN, seed=6)
    threads = torch.get_num_threads()
    alone = torch.cat([case.mixture(row[None]) for row in x])
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            for rows in (2, 5, 13, 70):
                assert torch.equal(case.mixture(x[:rows]), alone[:rows]), (count, rows)
    finally:
        torch.set_num_threads(threads)


def test_experts_that_nobody_and_that_everybody_chooses(library):
    case = Case(library, None, ROUTINGS[0])
    x = random(29, HIDDEN, seed=7).abs()
    case.router[:2] += 1.0
    case.router[4] -= 5.0
    mixture = Mixture(
        library, PackedLinear(library, case.router, None).view,
        [
            (PackedLinear(library, a, None).view, PackedLinear(library, b, None).view)
            for a, b in case.experts
        ],
        case.routing, Activation.SILU,
    )  # fmt: skip
    chosen = (x @ case.router.T).topk(2).indices
    assert set(chosen.flatten().tolist()) == {0, 1}
    torch.testing.assert_close(mixture(x), case.expected(x), rtol=1e-4, atol=1e-4)


def test_equal_logits_choose_the_first_experts(library):
    case = Case(library, None, ROUTINGS[0])
    x = torch.zeros(3, HIDDEN)
    x[1] = random(HIDDEN, seed=8)
    out = case.mixture(x)
    assert torch.equal(out[0], torch.zeros(HIDDEN))
    torch.testing.assert_close(out[1:2], case.expected(x[1:2]), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", FORMATS, ids=str)
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_row_that_is_no_number_harms_no_other(bad, kind, library):
    case = Case(library, kind, ROUTINGS[2], has_gate=True)
    x = random(9, HIDDEN, seed=9)
    right = case.mixture(x)
    x[4, 3] = bad
    out = case.mixture(x)
    assert not out[4].isfinite().all()
    assert torch.equal(out[:4], right[:4])
    assert torch.equal(out[5:], right[5:])
