"""The layout of the code: which package may import which, and how large files may grow."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "tfswap"

# A package may import packages of its own level and of those below it.
LEVELS = {
    "io": 0,
    "ops": 1,
    "machine": 2,
    "plan": 2,
    "step": 2,
    "traces": 2,
    "addresses": 3,
    "cost_model": 3,
    "hooks": 3,
    "planning": 3,
    "jobs": 4,
    "report": 4,
    "devices": 5,
    "training": 6,
    "public": 7,  # the modules directly in tfswap/
    "commands": 8,
    "entry": 9,  # __main__.py
}

MAX_LINES = 400
MAX_PUBLIC_MODULES = 14
# Of tfswap/training, which had 48 files and 7,700 lines before it was a state machine.
MAX_TRAINING_FILES, MAX_TRAINING_LINES = 20, 5_200

# TensorFlow's and Keras's private interfaces are used by tfswap/hooks/ alone.
PRIVATE = re.compile(
    r"tensorflow\.python|tf\.__internal__|keras\.src|\._jit_compile|\._clone\b|f_locals"
)
# Looks at what TensorFlow has loaded before it may be imported.
MAY_USE_PRIVATE = {"ops/library.py"}


def modules() -> list[Path]:
    """Return the Python files of the package that are in the repository."""
    return [path for path in sorted(PACKAGE.rglob("*.py"))]


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def lines_of(path: Path) -> int:
    return path.read_text(encoding="utf-8").count("\n")


def level_of(path: Path) -> int:
    parts = path.relative_to(PACKAGE).parts
    if len(parts) > 1:
        return LEVELS[parts[0]]
    if parts[0] == "_version.py":
        return 0
    return LEVELS["entry" if parts[0] == "__main__.py" else "public"]


@cache
def imports() -> dict[Path, set[Path]]:
    """Return which module imports which, at any place in its text."""
    by_name = {name_of(path): path for path in modules()}

    def named(tree: ast.AST) -> Iterator[str]:
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module is not None:
                for alias in node.names:
                    module = f"{node.module}.{alias.name}"
                    yield module if module in by_name else node.module

    found = {}
    for path in modules():
        names = set(named(ast.parse(path.read_text(encoding="utf-8"))))
        found[path] = {by_name[name] for name in names if name in by_name and name != "tfswap"}
    return found


def test_imports_point_down() -> None:
    upward = [
        f"{importer.relative_to(ROOT)} imports {imported.relative_to(ROOT)}"
        for importer, found in imports().items()
        for imported in found
        if level_of(imported) > level_of(importer)
    ]
    assert not upward


def test_no_import_cycle() -> None:
    """Remove modules that import nothing that is left, until none can be removed."""
    left = {path: set(found) - {path} for path, found in imports().items()}
    while True:
        free = [path for path, found in left.items() if not found & left.keys()]
        if not free:
            break
        for path in free:
            del left[path]
    assert not sorted(name_of(path) for path in left)


def test_private_interfaces_are_used_in_hooks_only() -> None:
    users = [
        path.relative_to(PACKAGE).as_posix()
        for path in modules()
        if PRIVATE.search(path.read_text(encoding="utf-8"))
    ]
    assert not [
        user for user in users if not user.startswith("hooks/") and user not in MAY_USE_PRIVATE
    ]


def test_files_are_short() -> None:
    assert not {
        path.relative_to(ROOT).as_posix(): lines_of(path)
        for folder in ("release", "tfswap", "tests", "benchmarks", "examples", "docs")
        for path in (ROOT / folder).rglob("*.py")
        if lines_of(path) > MAX_LINES
    }


def test_training_is_small() -> None:
    files = list((PACKAGE / "training").rglob("*.py"))
    assert len(files) <= MAX_TRAINING_FILES
    assert sum(map(lines_of, files)) <= MAX_TRAINING_LINES


def test_few_modules_are_public() -> None:
    assert len(list(PACKAGE.glob("*.py"))) <= MAX_PUBLIC_MODULES


@pytest.mark.parametrize("package", sorted(PACKAGE.glob("*/__init__.py")), ids=str)
def test_each_package_has_a_level(package: Path) -> None:
    assert package.parent.name in {*LEVELS, "grappler"}
