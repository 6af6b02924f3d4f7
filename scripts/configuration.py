"""Writes docs/configuration.md from the settings' own descriptions.

python -m scripts.configuration            write the page
python -m scripts.configuration --check    fail if the page is not what the code says
"""

import argparse
import dataclasses
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from engine import ContinuousBatchingConfig
from server.effective_settings import as_toml
from server.settings import (
    BatchSettings,
    ModelSettings,
    SecuritySettings,
    ServerSettings,
    TelemetrySettings,
)

PAGE = Path(__file__).parents[1] / "docs" / "configuration.md"
SECTIONS = {
    "model": ModelSettings,
    "engine": ContinuousBatchingConfig,
    "server": ServerSettings,
    "batches": BatchSettings,
    "security": SecuritySettings,
    "telemetry": TelemetrySettings,
}
HEAD = """# Configuration

Written by `scripts/configuration.py` from the code; `slipstream config` prints what is in force.

A setting is named `section.key`. It is taken from, the later the stronger:

1. its default, below;
2. the file given with `--config`, in TOML: a table `[section]` with `key = value`;
3. the environment: `SLIPSTREAM_SECTION_KEY`, as in `SLIPSTREAM_SERVER_PORT=9000`;
4. the command line: `--set section.key=value`, or an option of its own (`slipstream serve --help`).

A key, a section or a `SLIPSTREAM_` variable that does not exist is an error. Keys of clients come
from files or from the variables at the end, and are printed nowhere.
"""
TAIL = """
## Variables that are no settings

| variable | meaning |
|---|---|
| `SLIPSTREAM_API_KEY`, `SLIPSTREAM_API_KEYS` | keys of clients, separated by commas |
| `SLIPSTREAM_ADMIN_KEY`, `SLIPSTREAM_ADMIN_KEYS` | keys of `/admin`, separated by commas |
| `SLIPSTREAM_CACHE` | where the default model is kept (`~/.cache/slipstream`) |
| `SLIPSTREAM_TORCH_INDEX` | read by `make install`: the index with torch's CPU builds |
| `HF_TOKEN`, `HF_HOME`, `HF_HUB_OFFLINE` | read by the hub's library when a hub name is served |
"""


def describe(section: type) -> dict[str, str]:
    """Return the sentence of each setting, from the class's docstring."""
    text = inspect.getdoc(section) or ""
    attributes = text[text.index("Attributes:") :].split("\n\n")[0]
    found: dict[str, str] = {}
    name = ""
    for line in attributes.splitlines()[1:]:
        if match := re.match(r"    (\w+): (.*)", line):
            name = match[1]
            found[name] = match[2]
        else:
            found[name] += " " + line.strip()
    return found


def rows(section: type) -> Iterator[str]:
    """Yield the lines of a section's table."""
    sentences = describe(section)
    yield "| key | default | meaning |"
    yield "|---|---|---|"
    for entry in dataclasses.fields(section):
        default = "decided at the start" if entry.default is None else f"`{as_toml(entry.default)}`"
        yield f"| `{entry.name}` | {default} | {sentences[entry.name]} |"


def page() -> str:
    """Return the whole page."""
    parts = [HEAD]
    for name, section in SECTIONS.items():
        parts += [f"\n## [{name}]\n\n", "\n".join(rows(section)), "\n"]
    return "".join([*parts, TAIL])


def main() -> int:
    """Write or check the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    if parser.parse_args().check:
        if PAGE.exists() and PAGE.read_text(encoding="utf-8") == page():
            return 0
        print("docs/configuration.md is old; run python -m scripts.configuration", file=sys.stderr)
        return 1
    PAGE.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
