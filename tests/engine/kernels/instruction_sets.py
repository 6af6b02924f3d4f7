"""Which builds of the kernels can be tried on this processor."""

from engine.kernels.cpu.build import AVX2, AVX512, GENERIC, InstructionSet, instruction_set


def runnable() -> list[InstructionSet]:
    """The instruction sets that this processor runs."""
    widest = instruction_set()
    return {AVX512: [AVX512, AVX2, GENERIC], AVX2: [AVX2, GENERIC]}.get(widest, [GENERIC])
