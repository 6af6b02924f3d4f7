"""What no linter checks: sizes, module docstrings, sorted exports, names that mean nothing."""

import ast
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("api_schemas", "engine", "server")
SOURCES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
SCRIPTS = sorted(
    path for folder in ("benchmarks", "docker", "scripts") for path in (ROOT / folder).rglob("*.py")
)
TESTS = sorted((ROOT / "tests").rglob("*.py"))
MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 40
MEANINGLESS = {"utils", "util", "helpers", "common", "misc", "core"}
# Its members are looked up by HTTP status and name, not imported.
EXPORTING = [
    package for package in PACKAGES if "__all__" in (ROOT / package / "__init__.py").read_text()
]


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def functions(path: Path) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    tree = ast.parse(path.read_text())
    return [
        node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]


def num_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of a function without its docstring, which should be as long as it needs to be."""
    assert function.end_lineno is not None
    lines = function.end_lineno - function.lineno + 1
    first = function.body[0]
    if ast.get_docstring(function) is not None and first.end_lineno is not None:
        lines -= first.end_lineno - first.lineno + 1
    return lines


@pytest.mark.parametrize("path", [*SOURCES, *SCRIPTS, *TESTS], ids=name_of)
def test_a_file_is_short(path):
    assert len(path.read_text().splitlines()) <= MAX_FILE_LINES


@pytest.mark.parametrize("path", [*SOURCES, *SCRIPTS], ids=name_of)
def test_its_functions_are_short(path):
    too_long = {f.name: num_lines(f) for f in functions(path) if num_lines(f) > MAX_FUNCTION_LINES}
    assert not too_long


@pytest.mark.parametrize("path", [*SOURCES, *SCRIPTS], ids=name_of)
def test_a_module_says_what_it_is_and_has_a_name(path):
    assert path.stem not in MEANINGLESS
    text = path.read_text()
    assert not text or ast.get_docstring(ast.parse(text))


@pytest.mark.parametrize("package", EXPORTING)
def test_exports_are_sorted_unique_and_there(package):
    module = importlib.import_module(package)
    assert module.__all__ == sorted(module.__all__)
    assert len(set(module.__all__)) == len(module.__all__)
    assert all(hasattr(module, name) for name in module.__all__)


def test_the_engine_exports_every_error():
    errors = importlib.import_module("engine.errors")
    names = {name for name, value in vars(errors).items() if isinstance(value, type)}
    assert names <= set(importlib.import_module("engine").__all__)


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_is_typed(package):
    assert (ROOT / package / "py.typed").exists()


@pytest.mark.parametrize("folder", ["api_schemas", "benchmarks", "contracts", "engine", "server"])
def test_a_folder_of_tests_holds_tests(folder):
    """A renamed pattern would make a whole folder pass by running nothing."""
    files = list((ROOT / "tests" / folder).rglob("test_*.py"))
    assert any(function.name.startswith("test_") for path in files for function in functions(path))
