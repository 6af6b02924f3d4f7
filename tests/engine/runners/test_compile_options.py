"""What is taken for a compile configuration, what is refused, and which of several goes first."""

from typing import Any

import pytest
import torch
from transformers import CompileConfig, GenerationConfig

from engine import ContinuousBatchingConfig, UnsupportedConfigError
from engine.runners.compile_options import LEVELS, choose_compile, compile_options, preset

# The import of torch's own compiler warns of a part of torch.
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")

FIELD = "decode_compile_config"
# Untyped, so that it can be given what is wrong.
Config: Any = CompileConfig


def backend(graph, example_inputs):
    return graph.forward


@pytest.mark.parametrize(
    ("config", "complaint"),
    [
        (3, r"^decode_compile_config is 3; it must be a transformers.CompileConfig"),
        ({"dynamics": True}, r"must be .* table of its fields: fullgraph, dynamic, backend"),
        (Config(fullgraph=1), r"^decode_compile_config\.fullgraph is 1; it must be true"),
        (Config(dynamic="no"), r"^decode_compile_config\.dynamic is 'no'; it must be"),
        (Config(backend=None), r"^decode_compile_config\.backend is None; it must be a"),
        (Config(mode=1), r"^decode_compile_config\.mode is 1; it must be a name"),
        (Config(options=[1]), r"^decode_compile_config\.options is \[1\]; it must be"),
        (Config(options={1: 2}), r"^decode_compile_config\.options is .*; it must be"),
        (Config(backend="fast"), r"^decode_compile_config is not what torch.*fast"),
        (Config(mode="fast"), r"^decode_compile_config is not what torch.*fast"),
        (Config(options={"fast": 1}), r"^decode_compile_config is not what torch.*fast"),
        (
            Config(options={"freezing": True}),
            r"^decode_compile_config\.options has freezing",
        ),
        (Config(options={"guard_filter_fn": list}), r"options has guard_filter_fn, which"),
        (Config(mode="default", options={}), r"^decode_compile_config has a mode and opt"),
    ],
)
def test_what_is_wrong_is_refused_by_name(config, complaint):
    with pytest.raises(UnsupportedConfigError, match=complaint) as caught:
        compile_options(FIELD, config)
    assert caught.value.field == FIELD


def test_a_manager_is_not_built_with_what_is_wrong(tiny_model):
    config = ContinuousBatchingConfig(num_blocks=8, varlen_compile_config=Config(mode="x"))
    with pytest.raises(UnsupportedConfigError, match=r"^varlen_compile_config is not what"):
        tiny_model.init_continuous_batching(continuous_batching_config=config)


def test_every_field_of_a_configuration_is_taken():
    config = Config(fullgraph=True, dynamic=False, mode="max-autotune-no-cudagraphs")
    options = compile_options(FIELD, config)
    assert options.fullgraph
    assert not options.is_dynamic
    assert (options.backend, options.mode) == ("inductor", "max-autotune-no-cudagraphs")
    assert compile_options(FIELD, Config(options={"epilogue_fusion": False})).options
    assert compile_options(FIELD, Config(backend=backend)).backend is backend
    assert compile_options(FIELD, Config()).is_dynamic


def test_a_table_of_fields_is_as_good_as_a_configuration():
    table = {"dynamic": False, "mode": "default"}
    assert compile_options(FIELD, table) == compile_options(FIELD, Config(**table))


def test_the_default_mode_is_no_wish_beside_options_or_another_backend():
    assert compile_options(FIELD, Config()).mode == "reduce-overhead"
    assert compile_options(FIELD, Config(options={"max_autotune": True})).mode is None
    assert compile_options(FIELD, Config(backend="aot_eager")).mode is None
    assert compile_options(FIELD, Config(mode=None)).mode is None


def test_the_levels_are_the_documented_ones():
    assert {level: preset(level).is_dynamic for level in LEVELS} == {1: True, 2: True, 3: False}
    assert preset(1).mode == "default"
    assert {preset(2).mode, preset(3).mode} == {"max-autotune-no-cudagraphs"}
    assert all(preset(level).fullgraph for level in LEVELS)


def test_a_path_has_its_own_configuration_then_the_level_then_the_fallback():
    own = Config(backend="aot_eager")
    fallback = Config(backend="eager")
    config = ContinuousBatchingConfig(decode_compile_config=own, default_compile_level=2)
    reasons: dict[str, str] = {}
    decode = choose_compile("decode", config, fallback, reasons)
    varlen = choose_compile("varlen", config, fallback, reasons)
    assert decode is not None
    assert decode.backend == "aot_eager"
    assert varlen == preset(2)
    assert reasons == {"varlen_compile": "default_compile_level 2"}
    without = choose_compile("varlen", ContinuousBatchingConfig(), fallback, reasons)
    assert without is not None
    assert without.backend == "eager"
    assert "generation configuration" in reasons["varlen_compile"]
    assert choose_compile("varlen", ContinuousBatchingConfig(), None, reasons) is None


def test_the_generation_configuration_s_is_the_fallback_of_a_manager(make_manager, tiny_model):
    generation = GenerationConfig(eos_token_id=None)
    generation.compile_config = Config(backend="eager")
    config = ContinuousBatchingConfig(num_blocks=8, page_size=16, default_compile_level=0)
    manager = tiny_model.init_continuous_batching(generation, config)
    rows = {name: (value, reason) for name, value, reason in manager.resolved_config.describe()}
    manager.destroy()
    reason = "compile_config of the generation configuration"
    assert rows["varlen_compile"] == rows["decode_compile"]
    assert rows["varlen_compile"] == ("eager, no mode, any size", reason)
    default = make_manager().resolved_config
    assert (default.varlen_compile, default.decode_compile) == (None, None)


def test_options_are_not_changed_by_compiling():
    options = {"epilogue_fusion": False}
    compile_options(FIELD, Config(options=options)).compile(torch.relu)
    assert options == {"epilogue_fusion": False}
