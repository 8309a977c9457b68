"""Where tfswap cannot run, importing it and its commands say why in one line."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tfswap import activation

ELSEWHERE = """
import sys
sys.platform = sys.argv.pop(1)
{}
"""
COMMAND = """
sys.argv[0] = sys.argv.pop()
from tfswap.__main__ import main
sys.exit(main())
"""

WSL2 = "tfswap needs Linux with TensorFlow: on Windows, install both in WSL2 (`wsl --install`)."
LINUX = "tfswap needs Linux with TensorFlow: use a Linux machine or a Linux container."
PLATFORMS = pytest.mark.parametrize(
    ("platform", "said"), [("win32", WSL2), ("cygwin", WSL2), ("darwin", LINUX)]
)


def run(program: str, *arguments: str) -> tuple[int, list[str]]:
    """Run a program on another platform; return its exit status and what it prints to stderr."""
    command = [sys.executable, "-c", ELSEWHERE.format(program), *arguments]
    process = subprocess.run(command, capture_output=True, text=True)
    return process.returncode, process.stderr.splitlines()


@PLATFORMS
def test_importing_it_on_another_platform(platform: str, said: str) -> None:
    status, printed = run("import tfswap", platform)
    assert status == 1 and printed[-1] == f"ImportError: {said}"
    frames = [line.strip() for line in printed if line.startswith("  File")]
    assert len(frames) == 2 and "tfswap/__init__.py" in frames[1]


@PLATFORMS
@pytest.mark.parametrize("name", ["tfswap", "tfswap.exe"])
def test_the_command_on_another_platform(tmp_path, name: str, platform: str, said: str) -> None:
    (tmp_path / name).touch()
    assert run(COMMAND, platform, "doctor", str(tmp_path / name)) == (1, [said])


def test_sources_that_are_not_built(monkeypatch: pytest.MonkeyPatch) -> None:
    assert activation.why_not_here() == ""
    monkeypatch.setattr(activation, "find_spec", lambda name: None)
    assert "run `make build` in its source tree" in activation.why_not_here()
