"""How far a replacement may be from the module it replaces.

Pure.
"""

from torch import nn

from engine.models.weight_formats import has_int8_activations

# Sums of the same numbers in another order.
TOLERANCE = 1e-4
# A number that lies between two of 8 bits may be rounded to the other one, and then the next layer
# starts from there. A wrong order of heads or a wrong position is far above this.
ROUNDED_TOLERANCE = 2e-2


def tolerance_of(module: nn.Module) -> float:
    """Return the largest difference of outputs that means nothing, as a share of the largest."""
    return ROUNDED_TOLERANCE if has_int8_activations(module) else TOLERANCE
