"""flash-attn over block tables equals the reference, on an NVIDIA GPU."""

import importlib.util

import pytest
import torch

from engine.attention.interface import AttentionOptions
from engine.attention.select_backend import BackendChoice, make_backend
from engine.attention.torch_reference import TorchReferenceBackend
from tests.engine.attention.cases import Shape, make_step

pytestmark = pytest.mark.gpu
needs_flash = pytest.mark.skipif(
    importlib.util.find_spec("flash_attn") is None, reason="needs the package flash-attn"
)

PAGE_SIZE = 256
SHAPES = [Shape(8, 2, 64, 64), Shape(4, 4, 128, 128), Shape(6, 1, 96, 96)]
RAGGED = [(0, 9), (0, 1), (300, 1), (255, 2), (256, 4), (511, 1), (100, 600)]
OPTIONS = [
    AttentionOptions(0.125),
    AttentionOptions(0.125, sliding_window=5),
    AttentionOptions(0.125, sliding_window=300),
    AttentionOptions(0.125, softcap=20.0),
]
# Half a unit in the last place of values near 1, summed over a few hundred keys.
TOLERANCES = {torch.float16: 4e-3, torch.bfloat16: 3e-2}


@needs_flash
@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("shape", SHAPES)
def test_flash_equals_the_reference(shape, options, dtype):
    step = make_step(RAGGED, shape, PAGE_SIZE, scattered=True).to("cuda", dtype)
    output = step.attend(make_backend(BackendChoice("flash", "a test"), PAGE_SIZE), options)
    exact = step.to("cuda", torch.float32).attend(TorchReferenceBackend(PAGE_SIZE), options)
    tolerance = TOLERANCES[dtype]
    torch.testing.assert_close(output.float(), exact, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("options", OPTIONS)
def test_the_reference_on_a_gpu_equals_itself_on_the_host(options):
    step = make_step(RAGGED, Shape(), 16, scattered=True)
    host = step.attend(TorchReferenceBackend(16), options)
    device = step.to("cuda", torch.float32).attend(TorchReferenceBackend(16), options)
    torch.testing.assert_close(device.cpu(), host, atol=1e-4, rtol=1e-4)
