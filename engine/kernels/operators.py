"""Makes functions of ours known to torch as operators, so that torch.compile takes them whole.

An operator is opaque to the compiler: it sees what comes out of one (its fake implementation) and
what one changes (its schema), and calls it as it is. Code that runs without a compiler calls the
functions themselves; torch's dispatcher would cost it microseconds a call.
"""

from collections.abc import Callable
from typing import Any

import torch

NAMESPACE = "slipstream"
# One that can be called on any device; the others name a device: "CPU", "CUDA".
ANY_DEVICE = "CompositeExplicitAutograd"

# Registrations are undone when it is collected.
_LIBRARY = torch.library.Library(NAMESPACE, "FRAGMENT")  # type: ignore[no-untyped-call]


def define_operator(
    schema: str,
    compute: Callable[..., Any],
    fake: Callable[..., Any],
    *,
    device: str = "CPU",
    tags: tuple[torch.Tag, ...] = (),
) -> Callable[..., torch.Tensor]:
    """Register an operator and return it.

    Args:
        schema: Its name and arguments as torch writes them: "name(Tensor x, int n) -> Tensor";
            what it changes is marked "Tensor(a!)". A result must not share memory with an argument.
        compute: What it does.
        fake: Takes the same arguments and returns empty results of the right shapes and strides.
        device: Torch's dispatch key of the device that `compute` is for, or `ANY_DEVICE`.
        tags: What else the compiler is to know of it.
    """
    name = schema[: schema.index("(")]
    _LIBRARY.define(schema, tags=tags)  # type: ignore[no-untyped-call]
    _LIBRARY.impl(name, compute, device)  # type: ignore[no-untyped-call]
    torch.library.register_fake(f"{NAMESPACE}::{name}", fake, lib=_LIBRARY)
    operator: Callable[..., torch.Tensor] = getattr(getattr(torch.ops, NAMESPACE), name).default
    return operator
