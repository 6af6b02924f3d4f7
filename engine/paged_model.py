"""`PagedModel`: a Hugging Face model taken over by the engine, and the two ways to make one.

Runs on the caller's thread. Composition: the Hugging Face model stays what it is, `hf_model`, and
can be used as before whenever no forward of the engine runs.
"""

import logging
from pathlib import Path

import torch
from transformers import GenerationConfig, PretrainedConfig, PreTrainedModel

from engine.mixin import ContinuousMixin
from engine.models.causal_lm import CausalLM
from engine.models.gguf_model import find_gguf
from engine.models.loading import load_gguf, load_hf_model
from engine.models.probe import ModelGeometry, probe_geometry, self_check
from engine.models.weight_formats import check_activations, check_weights, store_weights

logger = logging.getLogger(__name__)


class PagedModel(ContinuousMixin):
    """A causal language model that generates over a paged cache.

    Attributes:
        hf_model: The Hugging Face model.
        generation_config: Defaults of the requests' parameters.
        self_check_error: Largest relative difference between its logits over a paged cache and by
            itself, measured when it was taken over.
    """

    def __init__(
        self,
        hf_model: PreTrainedModel,
        *,
        max_model_tokens: int | None = None,
        use_kernels: bool = True,
    ) -> None:
        """Probe a model's attention layers and check that they can be served.

        Args:
            hf_model: A causal language model; it is put into eval mode.
            max_model_tokens: Positions to use at most; None takes the model's own limit.
            use_kernels: Compute with our own kernels where there are any for this device.

        Raises:
            UnsupportedModelError: Its attention is of another kind.
        """
        self.hf_model = hf_model
        self.causal_lm, self.geometry, self.self_check_error = _take_over(
            hf_model, max_model_tokens, use_kernels=use_kernels
        )
        self.generation_config: GenerationConfig = hf_model.generation_config

    @property
    def config(self) -> PretrainedConfig:
        """The Hugging Face configuration."""
        return self.hf_model.config

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.causal_lm.device

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the weights."""
        return self.causal_lm.dtype

    @property
    def vocab_size(self) -> int:
        """Width of a row of logits; token ids lie in [0, vocab_size)."""
        return self.causal_lm.vocab_size

    @property
    def vector_size(self) -> int | None:
        """Numbers in a prompt's vector (`pooling`); None if hidden states cannot be seen."""
        return self.causal_lm.vector_size

    @property
    def max_model_tokens(self) -> int | None:
        """Positions one request may use; None if the configuration does not say."""
        return self.causal_lm.max_model_tokens


def _take_over(
    hf_model: PreTrainedModel, max_model_tokens: int | None, *, use_kernels: bool
) -> tuple[CausalLM, ModelGeometry, float]:
    """Probe and check a model; one that goes wrong with kernels is taken without them."""
    model = CausalLM(hf_model, max_model_tokens=max_model_tokens, use_kernels=use_kernels)
    try:
        geometry = probe_geometry(model)
        return model, geometry, self_check(model, geometry)
    except Exception as failure:
        if not use_kernels:
            raise
        taken = _take_over(hf_model, max_model_tokens, use_kernels=False)
        logger.warning("the kernels are not used for this model: %s", failure)
        return taken


def wrap(
    hf_model: PreTrainedModel,
    *,
    max_model_tokens: int | None = None,
    use_kernels: bool = True,
    use_fusion: bool = True,
    weights: str = "fp32",
    activations: str = "fp32",
) -> PagedModel:
    """Take over a Hugging Face model that is loaded already.

    Args:
        hf_model: A causal language model.
        max_model_tokens: Positions to use at most; None takes the model's own limit.
        use_kernels: Compute with our own kernels where there are any for this device.
        use_fusion: Compute modules, and the whole decoder, in one call of these where possible. If
            not, the model's own forward and torch's attention compute, to compare with; packed
            weights stay, module by module.
        weights: What the linear layers and the embedding are stored as: "fp32" leaves the model as
            it is, "auto", "bf16x3", "bf16", "int8", "int4" put packed layers in their place, in the
            model itself. See docs/quantisation.md.
        activations: What weights of 8 and 4 bits are multiplied with: "fp32", or "int8", which is
            two to four times as fast and changes logits by a few thousandths.

    Raises:
        UnsupportedConfigError: The weights cannot be stored like this here.
        UnsupportedModelError: Its attention cannot be run over a paged cache.
    """
    store_weights(hf_model, weights, use_kernels=use_kernels, activations=activations)
    return PagedModel(
        hf_model, max_model_tokens=max_model_tokens, use_kernels=use_kernels and use_fusion
    )


def load(  # noqa: PLR0913 - each is a choice of its own, and all have names
    path: str | Path,
    *,
    dtype: str | torch.dtype = "auto",
    device: str | torch.device = "auto",
    revision: str | None = None,
    max_model_tokens: int | None = None,
    use_kernels: bool = True,
    use_fusion: bool = True,
    weights: str = "auto",
    activations: str = "fp32",
) -> PagedModel:
    """Load a model from a local folder, a GGUF file or a hub name and take it over.

    Args:
        path: Local folder, GGUF file, or hub name.
        dtype: "auto", "float32", "bfloat16", "float16" or a torch dtype; auto is float32 on a CPU.
        device: "auto", "cpu", "cuda", ...; auto takes a CUDA device where there is one.
        revision: Hub revision.
        max_model_tokens: Positions to use at most; None takes the model's own limit.
        use_kernels: Compute with our own kernels where there are any for this device.
        use_fusion: As of `wrap`.
        weights: What the linear layers and the embedding are stored as: "fp32", "bf16x3", "bf16",
            "int8", "int4"; auto is bf16 on a CPU if that loses nothing, else it leaves them as they
            are. The blocks of a GGUF file are kept by auto, and unpacked by all others first.
        activations: As of `wrap`.

    Raises:
        OSError: There is no such model.
        ValueError: dtype is unknown.
        UnsupportedConfigError: The weights cannot be stored like this here.
        UnsupportedModelError: Its attention cannot be run over a paged cache.
    """
    check_weights(weights)
    check_activations(activations)
    gguf_file = find_gguf(path)
    if gguf_file is None:
        hf_model = load_hf_model(path, dtype=dtype, device=device, revision=revision)
    else:
        keep_packed = weights == "auto" and use_kernels
        hf_model = load_gguf(
            gguf_file,
            dtype=dtype,
            device=device,
            keep_packed=keep_packed,
            activations=activations,
        )
    return wrap(
        hf_model,
        max_model_tokens=max_model_tokens,
        use_kernels=use_kernels,
        use_fusion=use_fusion,
        weights=weights,
        activations=activations,
    )
