"""Compiles the CPU kernels; some seconds, once per machine and version.

`python -m engine.kernels.cpu` does it ahead of time.

The result lies beside the sources under a name made of their hash, so a stale build is never
loaded. There is one build per instruction set of the processor; which one is used is decided when
it is loaded. No torch headers are needed: the kernels see plain pointers.
"""

import hashlib
import logging
import platform
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch

logger = logging.getLogger(__name__)

FOLDER = Path(__file__).parent
SOURCES = sorted(FOLDER.glob("*.cpp"))
HEADERS = sorted(FOLDER.glob("*.h"))
BUILD_FOLDER = FOLDER / "build"
COMPILERS = ("c++", "g++", "clang++")
# -ffp-contract=fast makes every multiply-add one fused instruction, in every tile alike.
COMMON_FLAGS = ("-O3", "-std=c++17", "-shared", "-fPIC", "-ffp-contract=fast")
TIMEOUT_SECONDS = 300


@dataclass(frozen=True, slots=True)
class InstructionSet:
    """One way to compile the kernels.

    Attributes:
        name: For the file name.
        flags: What the compiler may use.
    """

    name: str
    flags: tuple[str, ...]


AVX512 = InstructionSet(
    "avx512",
    (
        "-mavx512f",
        "-mavx512bw",
        "-mavx512vl",
        "-mfma",
        "-mf16c",
        "-mprefer-vector-width=512",
        "-DVECTOR_FLOATS=16",
    ),
)
AVX2 = InstructionSet("avx2", ("-mavx2", "-mfma", "-mf16c", "-DVECTOR_FLOATS=8"))
GENERIC = InstructionSet("generic", ("-DVECTOR_FLOATS=4",))


def instruction_set() -> InstructionSet:
    """Return the widest one that this processor runs."""
    if not _is_x86():
        return GENERIC
    capability = torch.backends.cpu.get_cpu_capability()
    return {"AVX512": AVX512, "AVX2": AVX2}.get(capability, GENERIC)


def library_path(target: InstructionSet) -> Path:
    """Return where the build for an instruction set lies, whether it exists or not."""
    digest = hashlib.sha256(" ".join((*COMMON_FLAGS, *target.flags)).encode())
    for source in (*SOURCES, *HEADERS):
        digest.update(source.read_bytes())
    return BUILD_FOLDER / f"kernels-{target.name}-{digest.hexdigest()[:12]}.so"


def build(target: InstructionSet) -> Path | None:
    """Return the library for an instruction set, compiled if need be.

    Returns:
        Its path, or None if there is no compiler, it fails or the folder cannot be written; the
        reason is logged in one line.
    """
    path = library_path(target)
    if path.exists():
        return path
    compiler = next(filter(None, map(shutil.which, COMPILERS)), None)
    if compiler is None:
        logger.warning("no C++ compiler is installed: torch computes the matrix products, slower")
        return None
    try:
        BUILD_FOLDER.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=BUILD_FOLDER) as folder:
            product = Path(folder) / path.name
            _compile(compiler, target, product)
            # In one step, so that another process never loads half a file.
            product.replace(path)
    except (OSError, subprocess.SubprocessError) as error:
        logger.warning("the kernels were not built (%s): torch computes, slower", error)
        return None
    return path


def _compile(compiler: str, target: InstructionSet, product: Path) -> None:
    """Compile with threads, or without where the compiler has no OpenMP."""
    command = [compiler, *COMMON_FLAGS, *target.flags, *map(str, SOURCES), "-o", str(product)]
    with_threads = subprocess.run(
        [*command, "-fopenmp"], capture_output=True, timeout=TIMEOUT_SECONDS, check=False
    )
    if with_threads.returncode != 0:
        subprocess.run(command, capture_output=True, timeout=TIMEOUT_SECONDS, check=True)


def instruction_sets() -> list[InstructionSet]:
    """Return all that processors of this machine's kind may run."""
    return [AVX512, AVX2, GENERIC] if _is_x86() else [GENERIC]


def _is_x86() -> bool:
    return platform.machine().lower() in ("x86_64", "amd64")
