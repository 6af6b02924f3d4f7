"""Options of a generation configuration that change the output and that are not done here.

`check_generation_config` runs once per manager, on the thread that builds it. Ignoring such an
option silently would make answers differ from `generate` with no one the wiser, so each one is
either named in a warning or refused. It must never judge options that do not change the output.
"""

import logging
from collections.abc import Mapping, Sized
from types import MappingProxyType

from transformers import GenerationConfig

from engine.errors import UnsupportedConfigError

_logger = logging.getLogger(__name__)

# Option -> the values besides None that leave the output as it is.
# Source: transformers 5.24 `GenerationMixin._get_logits_processor`, `_get_stopping_criteria` and
# the decoding modes of `GenerationConfig.get_generation_mode`. Assisted decoding and
# renormalize_logits are absent because they leave the distribution unchanged.
_NEUTRAL_VALUES: Mapping[str, tuple[object, ...]] = MappingProxyType(
    {
        "constraints": (),
        "diversity_penalty": (0,),
        "dola_layers": (),
        "force_words_ids": (),
        "guidance_scale": (1,),
        "num_beam_groups": (1,),
        "num_beams": (1,),
        "penalty_alpha": (0,),
        "token_healing": (False,),
        "watermarking_config": (),
    }
)


def unsupported_options(generation_config: GenerationConfig) -> dict[str, object]:
    """Return the options that are set and would change the output, with their values."""
    found: dict[str, object] = {}
    for name, neutral in _NEUTRAL_VALUES.items():
        value = getattr(generation_config, name, None)
        is_empty = isinstance(value, Sized) and len(value) == 0
        if value is not None and not is_empty and value not in neutral:
            found[name] = value
    return found


def check_generation_config(generation_config: GenerationConfig, drop_unsupported: bool) -> None:
    """Warn about, or refuse, options that the sampler does not do.

    Args:
        generation_config: The defaults of all requests.
        drop_unsupported: Whether to go on without them; one warning names them all.

    Raises:
        UnsupportedConfigError: Such options are set and must not be dropped.
    """
    found = unsupported_options(generation_config)
    if not found:
        return
    listed = ", ".join(f"{name}={value!r}" for name, value in found.items())
    if not drop_unsupported:
        raise UnsupportedConfigError(
            f"the generation configuration sets {listed}, which this engine does not do; "
            "unset them, or set drop_unsupported_processors to generate without them",
            field="drop_unsupported_processors",
        )
    _logger.warning("The generation configuration sets %s; generating without them.", listed)
