"""Describes what a measurement ran on, so that its figures mean something later."""

from importlib import metadata

import torch

from benchmarks.host import describe_host

PACKAGES = ("torch", "transformers")


def describe_machine() -> dict[str, str]:
    """Return processor, threads, versions, commit and date, by name."""
    facts = describe_host()
    facts["instructions"] = torch.backends.cpu.get_cpu_capability()
    facts["threads"] = str(torch.get_num_threads())
    facts.update({name: metadata.version(name) for name in PACKAGES})
    return facts
