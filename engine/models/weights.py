"""Notices that a model's weights were changed while nobody was computing with them.

Engine thread. Replacing a parameter and changing it in place leave traces on it. Writing through
`parameter.data`, as many training loops do, leaves none, so some values of each are compared too.
"""

from collections.abc import Iterable

import torch

# Values looked at per parameter: a step of an optimiser or a new checkpoint changes nearly all.
NUM_SAMPLES = 64

_Traces = list[tuple[int, int, int]]


class WeightWatch:
    """Compares a model's weights at two moments; costs a few milliseconds, not a pass over them."""

    def __init__(self, model: torch.nn.Module | None) -> None:
        """Remember nothing yet.

        Args:
            model: Whose parameters and buffers are watched; None has none.
        """
        self._model = model
        self._remembered: tuple[_Traces, bytes] | None = None

    def remember(self) -> None:
        """Note the weights as they are."""
        self._remembered = self._look()

    def have_changed(self) -> bool:
        """Return whether the weights differ from the remembered ones; False if there are none.

        If they do, every parameter is marked as changed in place, so that whatever was made from
        one is made again.
        """
        if self._remembered is None or self._remembered == self._look():
            return False
        self.mark_changed()
        return True

    def mark_changed(self) -> None:
        """Leave on every parameter the trace of a change in place."""
        for tensor in self._tensors():
            if not tensor.is_inference():
                torch.autograd.graph.increment_version(tensor)

    def _tensors(self) -> Iterable[torch.Tensor]:
        if self._model is not None:
            yield from self._model.parameters()
            yield from self._model.buffers()

    @torch.no_grad()
    def _look(self) -> tuple[_Traces, bytes]:
        traces, samples = [], []
        for tensor in self._tensors():
            version = 0 if tensor.is_inference() else tensor._version
            traces.append((id(tensor), tensor.data_ptr(), version))
            if tensor.numel() > 0:
                flat = tensor.reshape(-1)
                samples.append(flat[:: max(1, len(flat) // NUM_SAMPLES)].to(torch.float32))
        values = torch.cat(samples).cpu().numpy().tobytes() if samples else b""
        return traces, values
