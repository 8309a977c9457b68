"""Check that commands that need no TensorFlow start without it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tfswap.__main__ import _COMMANDS

PROGRAM = """
import atexit, sys
atexit.register(lambda: print("imported", *sys.modules))
sys.argv[0] = sys.argv.pop()
from tfswap.__main__ import main
sys.exit(main())
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The path of a file with the name of the command's script."""
    path = tmp_path_factory.mktemp("bin") / "tfswap"
    path.touch()
    return str(path)


def imported(script: str, *arguments: str) -> set[str]:
    """Return the modules that a command imports."""
    command = [sys.executable, "-c", PROGRAM, *arguments, script]
    process = subprocess.run(command, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    return set(process.stdout.rpartition("imported")[2].split())


@pytest.mark.parametrize("command", _COMMANDS)
def test_help_needs_no_tensorflow(script: str, command: str) -> None:
    found = imported(script, command, "--help")
    assert f"tfswap.commands.{command}" in found
    assert not found & {"tensorflow", "keras"}


def test_simulations_need_no_tensorflow(script: str) -> None:
    found = imported(script, "simulate", "--list-machines")
    assert "tfswap.machine.presets" in found and "tensorflow" not in found


def test_modules_run_as_the_command_need_no_tensorflow() -> None:
    command = [sys.executable, "-X", "importtime", "-m", "tfswap", "simulate", "--list-machines"]
    process = subprocess.run(command, capture_output=True, text=True)
    assert process.returncode == 0 and "| tensorflow" not in process.stderr.replace("  ", "")


@pytest.mark.parametrize("argv", [["-c"], [], ["-m"], ["tfswap"]])
def test_other_programs_load_the_library_at_once(argv: list[str]) -> None:
    program = f"import sys; sys.argv[:] = {argv}; import tfswap; print('tensorflow' in sys.modules)"
    process = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert process.stdout.split() == ["True"], process.stderr
