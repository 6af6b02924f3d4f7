"""From what a user calls a model to where it lies.

A folder or a GGUF file is taken as it is, a hub name is downloaded (weights as safetensors only),
and no name means the default model. Code that a repository brings along is never run: a model that
needs it is refused here, before anything is loaded. What is fetched is found on the thread that
loads; what lies here already, before the server listens.
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from transformers import CONFIG_MAPPING

from server.console import print_notice
from server.default_model import DEFAULT_MODEL, prepare_default_model
from server.gguf_store import tokenizer_folder
from server.settings import ModelSettings
from server.startup_errors import ModelUnavailableError

HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
# Where a repository can name Python code of its own.
CODE_NAMES = ("auto_map", "trust_remote_code")
CONFIG_FILES = ("config.json", "tokenizer_config.json", "generation_config.json")
HUB_FILES = ["*.json", "*.safetensors", "*.model", "*.jinja", "*.txt"]


@dataclass(frozen=True, slots=True)
class StoredModel:
    """A model on the disk.

    Attributes:
        folder: Holds the tokenizer and, unless `file` does, config.json and the weights.
        name: What clients call it unless told otherwise.
        file: A GGUF file with configuration and weights, or None.
    """

    folder: Path
    name: str
    file: Path | None = None

    @property
    def source(self) -> Path:
        """What the engine loads."""
        return self.file or self.folder


def is_fetched(settings: ModelSettings) -> bool:
    """Return whether the model comes from elsewhere, though it may be in a cache by now."""
    if not settings.path:
        return True
    is_local = Path(settings.path).expanduser().exists()
    return not is_local and HUB_NAME.fullmatch(settings.path) is not None


def find_model(settings: ModelSettings, cache: Path) -> StoredModel:
    """Return the model that the settings name, fetching it if need be.

    Args:
        settings: The [model] section.
        cache: Where the default model is kept; hub models stay in the hub's own cache.

    Raises:
        ModelUnavailableError: One line that says what is missing and what to do.
    """
    if not settings.path:
        return StoredModel(prepare_default_model(cache), DEFAULT_MODEL.name)
    local = Path(settings.path).expanduser()
    if local.is_dir():
        _check_config(local, settings)
        return StoredModel(local.absolute(), local.resolve().name)
    if local.is_file():
        if local.suffix != ".gguf":
            raise ModelUnavailableError(
                f"{local} is no .gguf file; give one, or the folder that holds config.json and the "
                "weights"
            )
        return StoredModel(tokenizer_folder(local, cache), local.stem, local.absolute())
    if not HUB_NAME.fullmatch(settings.path):
        raise ModelUnavailableError(
            f"the folder {settings.path} does not exist; give a model folder, or a hub name as in "
            "org/name"
        )
    folder = _download(settings.path, settings.revision)
    _check_config(folder, settings)
    return StoredModel(folder, settings.path)


def _download(name: str, revision: str) -> Path:
    at = f"{name} at revision {revision}" if revision else name
    print_notice(f"looking for {at} on the hub")
    try:
        return Path(snapshot_download(name, revision=revision or None, allow_patterns=HUB_FILES))
    except GatedRepoError:
        reason = "is gated: accept its terms on the hub and set HF_TOKEN"
    except RevisionNotFoundError:
        reason = "has no such revision: write model.revision as a branch, tag or commit"
    except RepositoryNotFoundError:
        reason = "is neither a local folder nor a public hub model: check it, or set HF_TOKEN"
    except LocalEntryNotFoundError:
        reason = "is no local folder and the hub cannot be reached: give a folder, or connect"
    except OSError as error:
        reason = f"is not here and could not be downloaded: {error}"
    except Exception as error:  # noqa: BLE001 - the hub's HTTP library raises errors of its own
        reason = f"is no local folder and the hub cannot be reached ({type(error).__name__})"
    raise ModelUnavailableError(f"{at} {reason}")


def _check_config(folder: Path, settings: ModelSettings) -> None:
    """Refuse a folder that is no model, or one whose code is not part of transformers."""
    path = folder / "config.json"
    try:
        config: Any = json.loads(path.read_text(encoding="utf-8"))
        model_type, own_code = config.get("model_type"), "auto_map" in config
    except FileNotFoundError:
        raise ModelUnavailableError(
            f"{folder} holds no config.json; give a folder in Hugging Face format"
        ) from None
    except (OSError, ValueError, AttributeError) as error:
        raise ModelUnavailableError(f"{path} is not a model's config: {error}") from None
    if model_type not in CONFIG_MAPPING:
        raise ModelUnavailableError(
            f"{folder} needs code of its own (auto_map), which is never run; give a model whose "
            "type is part of transformers"
            if own_code
            else f"{path} has the model type {model_type!r}, which transformers does not know"
        )
    if not settings.allow_auto_map:
        _refuse_own_code(folder)
    if not any(folder.glob("*.safetensors")):
        raise ModelUnavailableError(
            f"{folder} holds no *.safetensors; convert the weights, pickled files are not read"
        )


def _refuse_own_code(folder: Path) -> None:
    """Refuse a repository that names code of its own, at whatever depth of its configs."""
    for name in CONFIG_FILES:
        path = folder / name
        try:
            config = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            continue
        except (OSError, ValueError, RecursionError) as error:
            raise ModelUnavailableError(f"{path} cannot be read: {error}") from None
        if found := _find_code_name(config):
            raise ModelUnavailableError(
                f"{path} names code of its own ({found}), which is never run; where transformers "
                "has code for this model, --set model.allow_auto_map=true serves it with that"
            )


def _find_code_name(root: Any) -> str | None:
    """Return the first key of a JSON value that names code, or None."""
    waiting = [root]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            for name in CODE_NAMES:
                if value.get(name):
                    return name
            waiting.extend(value.values())
        elif isinstance(value, list):
            waiting.extend(value)
    return None
