"""The programs that measure the engine and the kernels run, on a small model and briefly."""

import pytest

from benchmarks import attention, engine, kernels, step


def test_step_tells_products_from_the_rest(tiny_model_folder, capsys):
    step.main([str(tiny_model_folder), "--rounds", "1", "--weights", "fp32", "int8+int8"])
    printed = capsys.readouterr().out
    assert "fp32" in printed
    assert "int8+int8" in printed
    assert "GB/s" in printed


def test_engine_compares_with_transformers(tiny_model_folder, capsys):
    sizes = ["--prompt-tokens", "8", "--new-tokens", "3", "--num-blocks", "4", "--rounds", "1"]
    engine.main([str(tiny_model_folder), "--requests", "2", *sizes, "--speculation", "2"])
    printed = capsys.readouterr().out
    for contender in ("slipstream fp32", "fp32, 2 ahead", "batching", "padded"):
        assert contender in printed


@pytest.mark.parametrize("kind", ["fp32", "int8"])
def test_attention_is_measured_beside_reading_and_torch(kind, capsys):
    attention.main(["--seconds", "0.01", "--kv", kind])
    printed = capsys.readouterr().out
    assert f"decode {kind}" in printed
    assert "of reading" in printed


def test_kernels_are_measured_beside_their_limits(capsys):
    formats = ["fp32", "bf16", "int8", "int4", "w8a8", "w4a8"]
    kernels.main(["--seconds", "0.001", "--layers", "out", "--rows", "1", "--formats", *formats])
    printed = capsys.readouterr().out
    assert all(name in printed for name in formats)
