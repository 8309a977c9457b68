"""Run users' scripts unchanged."""

from __future__ import annotations

import argparse
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser, help_text: str) -> None:
    """Declare a script and its arguments, which come last."""
    parser.add_argument("script", type=Path, help=help_text)
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="the script's arguments")


def check(script: Path) -> None:
    """Raise ValueError if the script does not exist."""
    if not script.is_file():
        raise ValueError(f"the script {script} does not exist")


def run_script(script: Path, arguments: Sequence[str]) -> None:
    """Run a script as `python` does, and propagate its exceptions."""
    argv, path = sys.argv, list(sys.path)
    sys.argv = [str(script), *arguments]
    sys.path.insert(0, str(script.resolve().parent))
    try:
        runpy.run_path(str(script), run_name="__main__")
    finally:
        sys.argv, sys.path[:] = argv, path
