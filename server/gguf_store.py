"""Where the tokenizer of a GGUF file lies: beside nothing of the user's, in the cache folder.

The folder is named after the file and what it holds, so another file of the same name gets one of
its own. Runs before the server listens.
"""

import hashlib
import tempfile
from pathlib import Path

from engine import EngineError, gguf_metadata
from server.gguf_tokenizer import write_tokenizer
from server.startup_errors import ModelUnavailableError

# Rises when tokenizers are written in another way.
VERSION = 1


def tokenizer_folder(path: Path, cache: Path) -> Path:
    """Return a folder with the tokenizer of a GGUF file, written if it is not there yet.

    Args:
        path: The file.
        cache: The cache folder; made if it does not exist.

    Raises:
        ModelUnavailableError: One line that says what is wrong with the file or the cache.
    """
    try:
        status = path.stat()
        identity = f"{VERSION} {path.absolute()} {status.st_size} {status.st_mtime_ns}"
        digest = hashlib.sha256(identity.encode()).hexdigest()[:12]
        folder = cache / "gguf" / f"{path.stem}-{digest}"
        if not folder.exists():
            folder.parent.mkdir(parents=True, exist_ok=True)
            _make(path, folder)
    except OSError as error:
        raise ModelUnavailableError(
            f"the tokenizer of {path} cannot be written to {cache}: {error.strerror or error}"
        ) from error
    return folder


def write_from(path: Path, target: Path) -> None:
    """Write the tokenizer of a GGUF file into an existing folder.

    Raises:
        ModelUnavailableError: The file is damaged, or its tokenizer of an unknown kind.
    """
    try:
        write_tokenizer(gguf_metadata(path), target)
    except EngineError as error:
        raise ModelUnavailableError(str(error)) from error
    except OSError:
        raise
    except Exception as error:
        # A vocabulary that is no vocabulary makes its library raise errors of its own kind.
        raise ModelUnavailableError(f"{path.name} cannot be served: {error}") from error


def _make(path: Path, folder: Path) -> None:
    """Write beside the goal and rename, so that what has its final name is whole."""
    with tempfile.TemporaryDirectory(prefix=".staging-", dir=folder.parent) as staging:
        made = Path(staging) / "tokenizer"
        made.mkdir()
        write_from(path, made)
        try:
            made.rename(folder)
        except OSError:
            # Another process was faster; what it has made is the same.
            if not folder.exists():
                raise
