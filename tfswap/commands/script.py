"""Scripts of users, run unchanged."""

from __future__ import annotations

import argparse
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser, help_text: str) -> None:
    """Declares a script and its own arguments, which come last."""
    parser.add_argument("script", type=Path, help=help_text)
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="the script's own")


def check(script: Path) -> None:
    """Raises ValueError if there is no such script."""
    if not script.is_file():
        raise ValueError(f"there is no script {script}")


def run_script(script: Path, arguments: Sequence[str]) -> None:
    """Runs a script as `python` would; raises whatever it raises."""
    before, path = sys.argv, list(sys.path)
    sys.argv = [str(script), *arguments]
    sys.path.insert(0, str(script.resolve().parent))
    try:
        runpy.run_path(str(script), run_name="__main__")
    finally:
        sys.argv, sys.path[:] = before, path
