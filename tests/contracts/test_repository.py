"""The frame of the repository: what it says is there exists, parses, and means what it says."""

import ast
import dataclasses
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

import engine
from server.settings import (
    ModelSettings,
    SecuritySettings,
    ServerSettings,
    TelemetrySettings,
    load_settings,
)
from server.version import VERSION

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
CONFIGS = sorted((ROOT / "configs").glob("*.toml"))
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
TOP_LEVEL = (
    ".ci/run", "CHANGELOG.md", "CONTRIBUTING.md", "Dockerfile", "LICENSE", "Makefile", "README.md",
    "SECURITY.md", "api_schemas", "benchmarks", "configs", "docker", "docs", "engine", "examples",
    "pyproject.toml", "scripts", "server", "tests",
)  # fmt: skip
SECTIONS = (ModelSettings, ServerSettings, SecuritySettings, TelemetrySettings)
TARGETS = ("bench", "bench-serve", "help", "install", "lint", "serve", "test", "test-long")


def name_of(path: Path) -> str:
    return path.name


def make(*arguments: str) -> str:
    """Return what make would do."""
    done = subprocess.run(
        ["make", "--no-print-directory", "--dry-run", *arguments],
        capture_output=True, text=True, check=False, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", TOP_LEVEL)
def test_the_top_level_is_complete(name):
    assert (ROOT / name).exists()


@pytest.mark.parametrize("target", TARGETS)
def test_a_target_exists(target):
    assert make(target)


def test_help_lists_every_target():
    done = subprocess.run(["make", "help"], capture_output=True, text=True, check=True, cwd=ROOT)
    assert {line.split()[1] for line in done.stdout.splitlines() if line.startswith("  make ")} >= {
        *TARGETS
    }


def test_serve_passes_its_variables_on():
    plan = make("serve", "MODEL=a/b", "PORT=9", "HOST=h", "CONFIG=c.toml")
    assert "slipstream serve a/b --config c.toml --host h --port 9" in plan


def test_serve_takes_a_configuration_that_exists():
    found = re.search(r"slipstream serve +--config (\S+)", make("serve"))
    assert found is not None
    assert (ROOT / found[1]).exists()


def test_the_runner_calls_make_test_and_nothing_else():
    text = (ROOT / ".ci" / "run").read_text()
    assert "make --no-print-directory test" in text
    assert shutil.which(str(ROOT / ".ci" / "run"))


@pytest.mark.parametrize("path", sorted((ROOT / "scripts").iterdir()), ids=name_of)
def test_a_script_parses(path):
    if path.suffix == ".py":
        ast.parse(path.read_text())
    elif path.is_file():
        subprocess.run(["bash", "-n", str(path)], check=True)
        assert shutil.which(str(path)), "not executable"


def test_the_installer_starts_under_an_old_python():
    """It has to say that a Python is too old, so it may only use what that Python reads."""
    ast.parse((ROOT / "scripts" / "install.py").read_text(), feature_version=(3, 8))


def test_every_dependency_has_a_range_and_a_reason():
    text = (ROOT / "pyproject.toml").read_text()
    block = text[text.index("dependencies = [") : text.index("[project.scripts]")]
    for entry in re.findall(r'"([^"]+[<>=][^"]+)"', block):
        assert ">=" in entry
    lines = [line.strip() for line in block.splitlines() if line.strip()]
    assert sum(line.startswith("#") for line in lines) >= 15


def test_the_pins_lie_in_the_ranges():
    packaging = pytest.importorskip("packaging.requirements")
    pins = dict(
        line.split("==")
        for line in (ROOT / "constraints" / "ci.txt").read_text().splitlines()
        if line and not line.startswith("#")
    )
    pins = {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in pins.items()}
    wanted = [
        *PYPROJECT["project"]["dependencies"],
        *PYPROJECT["project"]["optional-dependencies"]["test"],
    ]
    for text in wanted:
        requirement = packaging.Requirement(text)
        pin = pins[re.sub(r"[-_.]+", "-", requirement.name).lower()]
        assert requirement.specifier.contains(pin), text
    assert not {"pip", "setuptools", "slipstream"} & set(pins)


def test_the_version_is_a_release():
    assert re.fullmatch(r"\d+\.\d+\.\d+", VERSION)


@pytest.mark.parametrize("path", CONFIGS, ids=name_of)
def test_a_configuration_builds(path):
    settings = load_settings(path)
    engine.ContinuousBatchingConfig(**settings.engine)


def test_the_configurations_are_the_known_ones():
    assert [path.stem for path in CONFIGS] == ["ci", "cpu", "gpu"]


@pytest.mark.parametrize("section", [*SECTIONS, engine.ContinuousBatchingConfig])
def test_every_setting_is_described(section):
    described = set(re.findall(r"^    +(\w+): ", section.__doc__ or "", re.MULTILINE))
    assert {field.name for field in dataclasses.fields(section)} <= described


@pytest.mark.parametrize("section", SECTIONS)
def test_every_setting_is_read_somewhere(section):
    source = "\n".join(
        path.read_text() for path in (ROOT / "server").rglob("*.py") if path.stem != "settings"
    )
    unread = [f.name for f in dataclasses.fields(section) if f".{f.name}" not in source]
    assert not unread


def test_the_page_of_the_settings_is_what_the_code_says():
    script = [sys.executable, "-m", "scripts.configuration", "--check"]
    assert subprocess.run(script, cwd=ROOT, check=False).returncode == 0


def test_compose_describes_what_the_dockerfile_builds():
    services = yaml.safe_load((ROOT / "docker" / "compose.yaml").read_text())["services"]
    stages = re.findall(r"^FROM \S+ AS (\S+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    for name, service in services.items():
        assert service["build"]["target"] == name
        assert name in stages
        assert service["volumes"]


def test_the_dockerfile_is_not_root_and_is_watched():
    text = (ROOT / "Dockerfile").read_text()
    for target in ("cpu", "gpu"):
        stage = text[text.index(f" AS {target}\n") :].split("\nFROM ")[0]
        assert "\nUSER slipstream\n" in stage
        assert "\nHEALTHCHECK " in stage
        assert f"configs/{target}.toml" in stage
    copied = re.findall(r"^COPY (?:--\S+ )?(.+) \S+$", text, re.MULTILINE)
    for name in " ".join(copied).split():
        assert (ROOT / name).exists()


def test_the_healthcheck_asks_a_server(served_tiny_model):
    port = served_tiny_model.url.rpartition(":")[2]
    script = [sys.executable, str(ROOT / "docker" / "healthcheck.py")]
    assert subprocess.run(script, env={"PORT": port}, check=False).returncode == 0
    silent = subprocess.run(script, env={"PORT": "1"}, check=False, capture_output=True)
    assert silent.returncode == 1


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_a_document_links_to_what_exists(path):
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", path.read_text()):
        if "://" not in target:
            assert (path.parent / target).exists(), target


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_code_in_a_document_compiles(path):
    for block in re.findall(r"```python\n(.*?)```", path.read_text(), re.DOTALL):
        compile(block, path.name, "exec")


def test_the_readme_names_commands_that_exist():
    text = (ROOT / "README.md").read_text()
    targets = set(re.findall(r"`?make ([a-z-]+)", text))
    makefile = (ROOT / "Makefile").read_text()
    for target in targets:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
