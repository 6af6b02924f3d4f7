"""How torch.compile is to be called for one kind of batch: the documented configuration, checked.

Pure, but for asking torch what it knows. What the user gives is transformers' `CompileConfig`; what
the levels stand for is written here.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch
from transformers import CompileConfig

from engine.config import ContinuousBatchingConfig
from engine.errors import UnsupportedConfigError

# The default of `CompileConfig`, so that nobody can tell whether it was asked for.
UNSET_MODE = "reduce-overhead"
# Level -> (mode, whether one graph takes batches of every size).
LEVELS: dict[int, tuple[str, bool]] = {
    1: ("default", True),
    2: ("max-autotune-no-cudagraphs", True),
    3: ("max-autotune-no-cudagraphs", False),
}
# Options that would let compiled code go on with weights that have been changed since.
REFUSED_OPTIONS = {
    "freezing": "it compiles the weights in, but they may be changed during a pause",
    "guard_filter_fn": "what it leaves out may be what notices changed weights",
    "use_aoti": "it compiles the weights in, but they may be changed during a pause",
}


@dataclass(frozen=True, slots=True)
class CompileOptions:
    """How one kind of batch is compiled.

    Attributes:
        is_dynamic: One graph for batches of every size; else one for each of a few sizes, to which
            batches are padded.
        fullgraph: Whether the model must be one graph, or else is not compiled at all.
        backend: A name that torch knows, or a function.
        mode: What the backend is to aim at, or None.
        options: What else it takes.
    """

    is_dynamic: bool
    fullgraph: bool
    backend: str | Callable[..., Any]
    mode: str | None
    options: Mapping[str, Any] | None

    def compile(self, function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        """Return a function that is compiled when it is first called.

        Raises:
            RuntimeError: Torch does not know the backend, the mode or an option.
        """
        mode, options = self.mode, self.options
        if self.backend == "inductor":
            known = torch._inductor.list_mode_options(mode, self.is_dynamic) if mode else {}
            mode, options = None, {**known, **(options or {}), "freezing": False}
        compiled: Callable[..., torch.Tensor] = torch.compile(
            function,
            fullgraph=self.fullgraph,
            # Dynamic sizes are marked one by one: those of the weights are not among them.
            dynamic=None if self.is_dynamic else False,
            backend=self.backend,
            mode=mode,
            options=None if options is None else dict(options),
        )
        return compiled

    def describe(self) -> str:
        """Return a few words for people."""
        name = self.backend if isinstance(self.backend, str) else repr(self.backend)
        return f"{name}, {self.mode or 'no'} mode, {'any size' if self.is_dynamic else 'by size'}"


def choose_compile(
    path: str,
    config: ContinuousBatchingConfig,
    fallback: CompileConfig | None,
    reasons: dict[str, str],
) -> CompileOptions | None:
    """Return how a path is compiled, or None: it is not.

    Args:
        path: "varlen" or "decode".
        config: Has a field for the path, which goes first, and the level.
        fallback: The generation configuration's, which goes last.
        reasons: Gets the reason, under the path's name.

    Raises:
        UnsupportedConfigError: See `compile_options`.
    """
    field, name = f"{path}_compile_config", f"{path}_compile"
    own = getattr(config, field)
    if own is not None:
        return compile_options(field, own)
    if config.default_compile_level > 0:
        reasons[name] = f"default_compile_level {config.default_compile_level}"
        return preset(config.default_compile_level)
    if fallback is not None:
        reasons[name] = "compile_config of the generation configuration"
        return compile_options("compile_config", fallback)
    reasons[name] = "default"
    return None


def preset(level: int) -> CompileOptions:
    """Return what a level from 1 to 3 stands for."""
    mode, is_dynamic = LEVELS[level]
    # All or nothing: a model in pieces is slower than one that is not compiled.
    return CompileOptions(is_dynamic, fullgraph=True, backend="inductor", mode=mode, options=None)


def compile_options(field: str, config: object) -> CompileOptions:
    """Return what a configuration asks for.

    `dynamic=None`, with which torch finds out that sizes differ, is taken to mean that they do.

    Args:
        field: The field that holds the configuration.
        config: A `CompileConfig`, or a dict of its fields.

    Raises:
        UnsupportedConfigError: It is something else, or asks for what there is not.
    """
    config = _as_compile_config(field, config)
    for name, (expected, is_valid) in _PARTS.items():
        value = getattr(config, name)
        if not is_valid(value):
            raise UnsupportedConfigError(
                f"{field}.{name} is {value!r}; it must be {expected}", field=field
            )
    for name in config.options or {}:
        if name in REFUSED_OPTIONS:
            raise UnsupportedConfigError(
                f"{field}.options has {name}, which is not supported: {REFUSED_OPTIONS[name]}",
                field=field,
            )
    options = CompileOptions(
        is_dynamic=config.dynamic is not False,
        fullgraph=config.fullgraph,
        backend=config.backend,
        mode=_mode(field, config),
        options=config.options,
    )
    try:
        options.compile(torch.relu)
    except Exception as error:
        raise UnsupportedConfigError(
            f"{field} is not what torch.compile takes: {error}", field=field
        ) from error
    return options


def _as_compile_config(field: str, config: object) -> CompileConfig:
    """Take the fields by name too: a settings file has nothing else."""
    if isinstance(config, CompileConfig):
        return config
    known = [part.name for part in fields(CompileConfig)]
    if isinstance(config, dict) and config.keys() <= set(known):
        return CompileConfig(**config)
    raise UnsupportedConfigError(
        f"{field} is {config!r}; it must be a transformers.CompileConfig or a table of its fields: "
        + ", ".join(known),
        field=field,
    )


def _mode(field: str, config: CompileConfig) -> str | None:
    """Return the mode; torch takes no mode beside options, and its default is no wish."""
    is_unset = config.mode in (None, UNSET_MODE)
    if config.options is not None and not is_unset:
        raise UnsupportedConfigError(
            f"{field} has a mode and options; torch.compile takes one of the two", field=field
        )
    if is_unset and (config.options is not None or config.backend != "inductor"):
        return None
    return config.mode


def _is_options(value: object) -> bool:
    return value is None or (isinstance(value, dict) and all(isinstance(key, str) for key in value))


# Field of a `CompileConfig` -> (what it must be, its test).
_PARTS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "fullgraph": ("true or false", lambda value: type(value) is bool),
    "dynamic": ("true, false or None", lambda value: value is None or type(value) is bool),
    "backend": ("a name or a function", lambda value: isinstance(value, str) or callable(value)),
    "mode": ("a name or None", lambda value: value is None or isinstance(value, str)),
    "options": ("names and their values, or None", _is_options),
}
