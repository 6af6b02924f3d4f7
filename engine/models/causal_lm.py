"""A Hugging Face causal language model as the engine runs it: packed tokens in, logits out.

Owned by whoever runs a forward: the engine thread while an engine runs, the caller before that. The
model's own attention is switched only for the duration of a forward, so that between two steps (a
pause, a stop) it is an ordinary model again.
"""

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from transformers import PretrainedConfig, PreTrainedModel

from engine.attention.interface import ATTENTION_NAME, STEP_ATTRIBUTE, StepAttention
from engine.errors import UnsupportedModelError
from engine.models.fused_decoder import join_decoder
from engine.models.fusion import find_replacements
from engine.models.positions import known_positions
from engine.models.quantized_modules import QuantizedLinear
from engine.models.replacement import Replacement, in_place
from engine.models.turns import Turn
from engine.models.weight_formats import has_int8_activations


class CausalLM:
    """Runs one Hugging Face model over packed tokens."""

    def __init__(
        self,
        hf_model: PreTrainedModel,
        *,
        max_model_tokens: int | None = None,
        use_kernels: bool = True,
    ) -> None:
        """Wrap a model; it is put into eval mode.

        Args:
            hf_model: A causal language model.
            max_model_tokens: Positions to use at most; None takes the model's own limit.
            use_kernels: Compute with our own kernels where there are any for this device.

        Raises:
            UnsupportedModelError: The model cannot be run with an attention of ours.
        """
        if not hf_model._can_set_attn_implementation():
            raise UnsupportedModelError(
                f"{type(hf_model).__name__} does not use transformers' AttentionInterface, "
                "so its attention cannot be run over a paged cache"
            )
        hf_model.train(False)
        self._max_model_tokens = max_model_tokens
        self.hf_model = hf_model
        self._configs = _distinct_configs(hf_model)
        # Two engines on one model take turns: what they change belongs to the model.
        self._turn = Turn([*hf_model.modules(), *self._configs])
        # Decoder layers carry a layer_idx too; marking them as well is harmless.
        self._layers = [m for m in hf_model.modules() if m.__dict__.get("layer_idx") is not None]
        parameters = inspect.signature(hf_model.forward).parameters
        self._takes_logits_to_keep = "logits_to_keep" in parameters
        self.use_kernels = use_kernels
        # Names of the attention backends whose logits were compared with the model's own.
        self.checked_attention: set[str] = set()
        with self._turn.taken():
            self.replacements = (
                find_replacements(hf_model, self._attention_switched) if use_kernels else []
            )
            self.in_place = join_decoder(hf_model, self.replacements, self._attention_switched)

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.hf_model.device

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the weights."""
        return self.hf_model.dtype

    @property
    def has_int8_activations(self) -> bool:
        """Whether a layer rounds what it is given to 8 bits."""
        return has_int8_activations(self.hf_model)

    @property
    def vocab_size(self) -> int:
        """Width of a row of logits."""
        head: torch.nn.Module | None = self.hf_model.get_output_embeddings()  # type: ignore[no-untyped-call]
        if isinstance(head, QuantizedLinear):
            return head.out_features
        weight = getattr(head, "weight", None)
        if isinstance(weight, torch.Tensor):
            return weight.shape[0]
        return int(self.text_config.vocab_size)

    @property
    def text_config(self) -> PretrainedConfig:
        """The configuration of the decoder, also of a composite model."""
        return self.hf_model.config.get_text_config(decoder=True)

    @property
    def max_model_tokens(self) -> int | None:
        """Positions the model may use; None if neither its configuration nor the caller says."""
        known = known_positions(self.text_config)
        limits = [limit for limit in (known, self._max_model_tokens) if limit is not None]
        return min(limits) if limits else None

    def forward(
        self,
        input_ids: torch.Tensor,
        position_ids: torch.Tensor,
        sample_indices: torch.Tensor,
        attention: StepAttention,
    ) -> torch.Tensor:
        """Return the logits of the wanted tokens.

        Args:
            input_ids: [1, T] int64.
            position_ids: [1, T] int64.
            sample_indices: [N] int64, rows of T whose logits are wanted.
            attention: What the layers call.

        Returns:
            [N, V] in the model's dtype.
        """
        with self.in_use(attention):
            return self.compute_logits(input_ids, position_ids, sample_indices)

    @contextmanager
    def in_use(
        self, attention: StepAttention, replacements: Sequence[Replacement] | None = None
    ) -> Iterator[None]:
        """Let the calling thread alone compute with the model.

        Args:
            attention: What the layers call.
            replacements: What is in place meanwhile; None takes the model's own.
        """
        with (
            self._turn.taken(),
            torch.inference_mode(),
            self._attention_switched(attention),
            in_place(self.in_place if replacements is None else replacements),
        ):
            yield

    def compute_logits(
        self, input_ids: torch.Tensor, position_ids: torch.Tensor, sample_indices: torch.Tensor
    ) -> torch.Tensor:
        """Do what `forward` does, inside of `in_use`; this is what is compiled."""
        options = {"logits_to_keep": sample_indices} if self._takes_logits_to_keep else {}
        output = self.hf_model(
            input_ids=input_ids, position_ids=position_ids, use_cache=False, **options
        )
        logits: torch.Tensor = output.logits[0]
        return logits if self._takes_logits_to_keep else logits[sample_indices]

    def own_logits(self, input_ids: torch.Tensor) -> torch.Tensor:
        """Return the logits that the model gives without us, in its turn.

        Args:
            input_ids: [1, T] int64.

        Returns:
            [T, V] in the model's dtype.
        """
        with self._turn.taken(), torch.inference_mode():
            logits: torch.Tensor = self.hf_model(input_ids=input_ids, use_cache=False).logits[0]
        return logits

    @property
    def vector_size(self) -> int | None:
        """Width of the last hidden states; None if no module of its own puts them out."""
        head: torch.nn.Module | None = self.hf_model.get_output_embeddings()  # type: ignore[no-untyped-call]
        if self.hf_model.base_model is self.hf_model or head is None:
            return None
        # Linear layers of every format, packed ones included, say what they take.
        size = getattr(head, "in_features", None)
        return size if isinstance(size, int) else None

    @contextmanager
    def watching(self, read: Callable[[torch.Tensor], None]) -> Iterator[None]:
        """Let a callback see the last hidden states of each forward of a with block.

        Args:
            read: Given [T, H] in the model's dtype, as they go into the head.
        """
        hook = self.hf_model.base_model.register_forward_hook(
            lambda _module, _inputs, output: read(output[0][0])
        )
        try:
            yield
        finally:
            hook.remove()

    @contextmanager
    def _attention_switched(self, attention: StepAttention) -> Iterator[None]:
        """Point the model at our attention function, and back at its own afterwards."""
        for layer in self._layers:
            # Straight into the dictionary: torch's own __setattr__ costs microseconds a layer.
            layer.__dict__[STEP_ATTRIBUTE] = attention
        before = [config._attn_implementation for config in self._configs]
        for config in self._configs:
            config._attn_implementation_internal = ATTENTION_NAME
        try:
            yield
        finally:
            for config, name in zip(self._configs, before, strict=True):
                config._attn_implementation_internal = name
            for layer in self._layers:
                layer.__dict__.pop(STEP_ATTRIBUTE, None)


def _distinct_configs(hf_model: PreTrainedModel) -> list[PretrainedConfig]:
    """Return every configuration object that a submodule reads its attention's name from."""
    found: dict[int, PretrainedConfig] = {}
    for module in hf_model.modules():
        config = getattr(module, "config", None)
        if isinstance(config, PretrainedConfig):
            found[id(config)] = config
    return list(found.values())
