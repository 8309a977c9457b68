"""Install the wheels of ``dist/`` beside each TensorFlow, and use them.

    python release/installations.py [--python 3.12] [--tensorflow 2.21] [--cuda]

For each wheel and each supported TensorFlow release (its CPU build; with --cuda, the one with GPU
devices), in a virtual environment without a compiler: install, `tfswap doctor`, a
training under a budget and a saved model (`first_use.py`), uninstall. Prints one row each. The exit
status is 1 if one fails.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

TREE = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TREE))

from release.prerequisites import supported_tensorflow  # noqa: E402
from release.wheels import DIST, interpreters  # noqa: E402


class Failed(Exception):
    """A step failed; the text has the end of its output."""


def run(environment: dict[str, str], *command: str | Path) -> str:
    """Run a command; return what it printed.

    Raises:
        Failed: Its exit status is not 0.
    """
    ended = subprocess.run(
        [str(part) for part in command], env=environment, cwd="/", capture_output=True, text=True
    )
    if ended.returncode:
        text = " ".join(map(str, command[-3:]))
        raise Failed(f"{text}:\n{(ended.stdout + ended.stderr)[-3000:]}")
    return ended.stdout


def files_below(folder: Path) -> set[str]:
    return {str(path) for path in folder.rglob("*") if "tfswap" in str(path.relative_to(folder))}


def installation(python: str, wheel: Path, requirement: str) -> str:
    """Install, use and uninstall; return what was seen.

    Raises:
        Failed: A step failed.
    """
    with tempfile.TemporaryDirectory() as name:
        # The cache of plans and measured speeds (~/.cache/tfswap) stays, as users expect.
        folder, home = Path(name) / "venv", Path(name) / "home"
        binaries = folder / "bin"
        # Nothing but this environment: no compiler.
        clean = {"PATH": str(binaries), "HOME": str(home), "TF_CPP_MIN_LOG_LEVEL": "3"}
        pip = (binaries / "python", "-m", "pip")
        home.mkdir()
        run(dict(os.environ), python, "-m", "venv", folder)
        run({**os.environ, **clean}, *pip, "install", "--quiet", wheel, requirement)
        doctor = run(clean, binaries / "tfswap", "doctor").splitlines()
        used = run(clean, binaries / "python", TREE / "release" / "first_use.py").splitlines()
        run({**os.environ, **clean}, *pip, "uninstall", "--quiet", "--yes", "tfswap")
        left = files_below(folder)
        if left:
            raise Failed(f"uninstalling leaves {sorted(left)[:3]}")
        return f"{doctor[0]}; {used[-1]}; uninstalled"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python release/installations.py", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--python", help="only this one, such as 3.12")
    parser.add_argument("--tensorflow", help="only this release, such as 2.21")
    parser.add_argument("--cuda", action="store_true", help="the builds with GPU devices")
    options = parser.parse_args()
    package, tried, failed = "tensorflow" if options.cuda else "tensorflow-cpu", 0, False
    for version, python in interpreters():
        wheels = sorted(DIST.glob(f"tfswap-*-cp{version.replace('.', '')}-*.whl"))
        if not wheels or options.python not in (None, version):
            continue
        for release in supported_tensorflow():
            if options.tensorflow not in (None, release):
                continue
            tried += 1
            cell = f"Python {version}, {package} {release}"
            try:
                seen = installation(python, wheels[-1], f"{package}=={release}.*")
            except Failed as error:
                failed, seen = True, f"FAILED: {error}"
            print(f"{cell}: {seen}", flush=True)
    if not tried:
        print(f"nothing was tried: {DIST} has no wheel for it, or its Python was not found")
    return int(failed or not tried)


if __name__ == "__main__":
    sys.exit(main())
