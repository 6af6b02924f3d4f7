"""What a layer of a decoder consists of: found by its parts' names, joined for one call.

Names say what to try only. Whether a layer computes what its parts make of it is found out when the
whole decoder is compared with its layers.
"""

from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from torch import nn

from engine.cache.sizing import LayerGeometry
from engine.kernels.cpu.decoder import DecoderLayer, GatedMLP
from engine.kernels.cpu.mixture import Mixture
from engine.models.fused_layers import FusedAttention, FusedMLP, FusedNorm
from engine.models.fused_mixture import FusedMixture
from engine.models.replacement import Replacement

T = TypeVar("T")


class ByPlace(NamedTuple, Generic[T]):
    """One thing for each place of a layer where a norm may stand."""

    before_attention: T
    after_attention: T
    before_mlp: T
    after_mlp: T


# What layers call their norms; None where they have none.
NORM_NAMES: tuple[ByPlace[str | None], ...] = (
    ByPlace("input_layernorm", None, "post_attention_layernorm", None),
    ByPlace(None, "post_attention_layernorm", None, "post_feedforward_layernorm"),
    ByPlace(
        "input_layernorm",
        "post_attention_layernorm",
        "pre_feedforward_layernorm",
        "post_feedforward_layernorm",
    ),
)
ATTENTION_NAME = "self_attn"
MLP_NAMES = ("mlp", "block_sparse_moe")


@dataclass(frozen=True, slots=True)
class FusedLayer:
    """The replacements that one layer consists of.

    Attributes:
        norms: None where there is none.
        attention: Attention.
        head_norms: Of queries and keys.
        mlp: The MLP, or several of them.
        factor: On what attention and MLP add.
    """

    norms: ByPlace[FusedNorm | None]
    attention: FusedAttention
    head_norms: tuple[FusedNorm | None, FusedNorm | None]
    mlp: FusedMLP | FusedMixture
    factor: float

    @property
    def parts(self) -> list[Replacement]:
        """All of them."""
        norms = [norm for norm in (*self.norms, *self.head_norms) if norm is not None]
        return [*norms, self.attention, self.mlp]

    @property
    def geometry(self) -> LayerGeometry:
        """What the layer keeps per position."""
        shape = self.attention.shape
        heads, kv_heads = (width // shape.head_dim for width in shape.widths[:2])
        window = shape.options.sliding_window
        return LayerGeometry(heads, kv_heads, shape.head_dim, shape.head_dim, window)

    def describe(self, rotation: int | None) -> DecoderLayer:
        """Return what the kernel is to know, of parts that are built.

        Args:
            rotation: The number of its rotary table; None if no head is turned.
        """
        norms = ByPlace(*(None if norm is None else norm.norm for norm in self.norms))
        query_norm, key_norm = (None if norm is None else norm.norm for norm in self.head_norms)
        shape = self.attention.shape
        return DecoderLayer(
            before_attention=norms.before_attention,
            qkv=self.attention.products[0].view,
            query_norm=query_norm,
            key_norm=key_norm,
            out=self.attention.products[1].view,
            after_attention=norms.after_attention,
            before_mlp=norms.before_mlp,
            mlp=self._describe_mlp(),
            after_mlp=norms.after_mlp,
            factor=self.factor,
            rotation=rotation,
            window=shape.options.sliding_window or 0,
            scaling=shape.options.scaling,
            softcap=shape.options.softcap or 0.0,
        )

    def _describe_mlp(self) -> GatedMLP | Mixture:
        if isinstance(self.mlp, FusedMixture):
            return self.mlp.mixture
        gate_up, down = self.mlp.products
        return GatedMLP(gate_up.view, self.mlp.activation, down.view)


def find_layer(layer: nn.Module, known: dict[int, Replacement]) -> FusedLayer | None:
    """Return a layer's parts, if they are of a known structure and nothing else is in it.

    Args:
        layer: The layer.
        known: Replacements by the id of their module.
    """
    modules = {
        name: module
        for name, module in layer._modules.items()
        if module is not None and not isinstance(module, nn.Dropout)
    }
    attention = known.get(id(modules.pop(ATTENTION_NAME, None)))
    mlp = next((known.get(id(modules.pop(name))) for name in MLP_NAMES if name in modules), None)
    if not isinstance(attention, FusedAttention) or not isinstance(mlp, FusedMLP | FusedMixture):
        return None
    if not attention.is_joined or (isinstance(mlp, FusedMLP) and not mlp.is_joined):
        return None
    if attention.shape.options.sinks is not None:
        return None
    places = next(
        (places for places in NORM_NAMES if set(filter(None, places)) == set(modules)), None
    )
    if places is None:
        return None
    wanted = [*(modules[name] if name else None for name in places), *attention.norms]
    norms = [_norm_of(module, known) for module in wanted]
    if [norm is None for norm in norms] != [module is None for module in wanted]:
        return None
    factor = float(getattr(layer, "residual_multiplier", 1.0))
    return FusedLayer(ByPlace(*norms[:4]), attention, (norms[4], norms[5]), mlp, factor)


def _norm_of(module: nn.Module | None, known: dict[int, Replacement]) -> FusedNorm | None:
    found = known.get(id(module))
    return found if isinstance(found, FusedNorm) else None


def are_alike(layers: list[FusedLayer]) -> bool:
    """Return whether all layers have heads of one shape, and keys as wide as values."""
    shapes = {(layer.attention.shape.head_dim, *layer.attention.shape.widths) for layer in layers}
    _, _, key_width, value_width = next(iter(shapes))
    return len(shapes) == 1 and key_width == value_width
