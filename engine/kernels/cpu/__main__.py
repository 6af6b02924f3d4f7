"""Builds the CPU kernels ahead of time and says what was built.

python -m engine.kernels.cpu          for this processor
python -m engine.kernels.cpu --all    for every processor of this kind, as an image needs
"""

import argparse
import sys

from engine.kernels.cpu.build import build, instruction_set, instruction_sets


def main() -> int:
    """Build and say what was built; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n", 1)[0])
    parser.add_argument("--all", action="store_true", help="not for this processor only")
    targets = instruction_sets() if parser.parse_args().all else [instruction_set()]
    for target in targets:
        path = build(target)
        sys.stdout.write(f"CPU kernels for {target.name}: {path or 'not built, torch computes'}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
