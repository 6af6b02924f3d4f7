"""What the code must not hold, whatever it does (A1, A2, A20)."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = sorted(path for package in ("api_schemas", "engine", "server")
                 for path in (ROOT / package).rglob("*.py"))  # fmt: skip
BANNED_MODULES = {
    "pickle",
    "dill",
    "marshal",
    "shelve",
    "cloudpickle",
    "joblib",
    "code",
    "telnetlib",
}
BANNED_CALLS = {"eval", "exec", "compile", "__import__", "input"}


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_module_runs_data_as_code(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names = {(node.module or "").split(".")[0]}
        else:
            names = set()
        assert not names & BANNED_MODULES, ast.unparse(node)
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Name):
                assert node.func.id not in BANNED_CALLS, ast.unparse(node)
            for keyword in node.keywords:
                value = keyword.value
                if keyword.arg == "trust_remote_code":
                    assert isinstance(value, ast.Constant)
                    assert value.value is False
                if keyword.arg == "shell":
                    assert isinstance(value, ast.Constant)
                    assert value.value is False
            text = ast.unparse(node.func)
            if text == "torch.load":
                weights_only = [k.value for k in node.keywords if k.arg == "weights_only"]
                assert [getattr(value, "value", None) for value in weights_only] == [True]


def test_no_route_loads_or_writes_a_model():
    """The model is fixed at the start; a route that changed it would be a way in."""
    for path in (ROOT / "server" / "routes").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                assert node.func.attr not in ("from_pretrained", "snapshot_download", "load"), path
