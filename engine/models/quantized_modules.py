"""Linear layers and embeddings whose weights are packed; they take the place of torch's.

A model with these in it is a model like any other: its own forward and `generate` compute with the
numbers that the packed weights mean. The weights are a buffer, `panels`, and no parameter: they
cannot be trained, and new ones are given to `set_weight` or through `load_state_dict`, which round
them to the format the layer has.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from engine.kernels.cpu.library import kernels
from engine.kernels.cpu.quantized_linear import Format, QuantizedWeight, panel_layout
from engine.models.quantization import quantize


class QuantizedModule(nn.Module):
    """What both kinds have in common.

    Attributes:
        format: How the weights are stored.
        shape: (N, K) of the matrix.
    """

    panels: torch.Tensor

    def __init__(self, weight: QuantizedWeight) -> None:
        """Hold a packed weight."""
        super().__init__()
        self.format: Format = weight.format
        self.shape = weight.shape
        self.register_buffer("panels", weight.panels)

    @property
    def packed(self) -> QuantizedWeight:
        """The weight, for the kernels.

        Raises:
            RuntimeError: The module was moved to another device.
        """
        if self.panels.device.type != "cpu":
            raise RuntimeError(
                f"packed weights are computed with on a CPU only, and these are on "
                f"{self.panels.device}"
            )
        return QuantizedWeight(self.format, self.panels, self.shape)

    def numbers(self) -> torch.Tensor:
        """Return what the packed weights mean: [N, K] float32, a copy."""
        return self.packed.rows(torch.arange(self.shape[0]))

    def set_weight(self, weight: torch.Tensor) -> None:
        """Round a new weight to this layer's format and pack it in place of the old one.

        Args:
            weight: [N, K] of any floating dtype.

        Raises:
            ValueError: It has another shape, or numbers that the format cannot hold.
        """
        if tuple(weight.shape) != self.shape:
            raise ValueError(f"a weight of {tuple(weight.shape)} instead of {self.shape}")
        new = quantize(weight.cpu(), self.format).pack(self.packed.library)
        with torch.no_grad():
            self.panels.copy_(new.panels)

    def __getattr__(self, name: str) -> Any:
        """Say why there is no weight."""
        if name == "weight":
            raise AttributeError(
                f"the weights of this layer are packed as {self.format.name}: give new ones to "
                "set_weight(), or load the model with weights='fp32'"
            )
        return super().__getattr__(name)

    def __setattr__(self, name: str, value: Any) -> None:
        """Take a new weight where it is assigned."""
        if name == "weight":
            self.set_weight(value)
        else:
            super().__setattr__(name, value)

    def get_extra_state(self) -> torch.Tensor:
        """Return how the panels lie, which is part of a saved state: a number."""
        return torch.tensor(self._layout())

    def set_extra_state(self, state: torch.Tensor) -> None:
        """Take what `_load_from_state_dict` has looked at."""

    def _load_from_state_dict(
        self, state_dict: Mapping[str, Any], prefix: str, *arguments: Any
    ) -> None:
        """Take a weight of an ordinary checkpoint, too; refuse panels that lie otherwise."""
        key, extra = f"{prefix}weight", f"{prefix}_extra_state"
        if key in state_dict:
            self.set_weight(state_dict[key])
            state_dict = {k: v for k, v in state_dict.items() if k != key}
            state_dict[f"{prefix}panels"] = self.panels
            state_dict[extra] = self.get_extra_state()
        elif int(state_dict.get(extra, self._layout())) != self._layout():
            raise RuntimeError(
                f"{prefix}panels were packed as {self.format.name} for another kind of processor: "
                "load a state with float32 weights instead"
            )
        super()._load_from_state_dict(state_dict, prefix, *arguments)

    def _layout(self) -> int:
        return panel_layout(kernels(), self.format)

    def extra_repr(self) -> str:
        """Show shape and format."""
        return f"{self.shape[1]}, {self.shape[0]}, {self.format.name}"


class QuantizedLinear(QuantizedModule):
    """y = x W^T + bias.

    Attributes:
        in_features: K.
        out_features: N.
        bias: [N] or None.
    """

    def __init__(self, weight: QuantizedWeight, bias: nn.Parameter | None) -> None:
        """Hold a packed weight and a bias as it is."""
        super().__init__(weight)
        self.out_features, self.in_features = weight.shape
        self.register_parameter("bias", bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return [..., N] for x [..., K]; computed in float32, whatever the dtype of x."""
        bias = None if self.bias is None else self.bias.detach().float().contiguous()
        return self.packed.linear(x.detach().float(), bias).to(x.dtype)


class QuantizedEmbedding(QuantizedModule):
    """Rows of a packed matrix, one for each token.

    Attributes:
        num_embeddings: N.
        embedding_dim: K.
    """

    def __init__(self, weight: QuantizedWeight) -> None:
        """Hold a packed weight; that of the head, where the two are tied."""
        super().__init__(weight)
        self.num_embeddings, self.embedding_dim = weight.shape

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Return [..., K] float32 for ids [...].

        Raises:
            IndexError: An id lies outside [0, N).
        """
        return self.packed.rows(ids)
