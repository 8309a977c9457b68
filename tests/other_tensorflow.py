"""Another TensorFlow than this environment's, and tfswap built against it, in one folder."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

TREE = Path(__file__).resolve().parents[1]


class OtherTensorFlow:
    """Install that TensorFlow; other packages are this interpreter's.

    Args:
        folder: Folder for all of it: that TensorFlow (600 MB), a copy of the sources and its build.
        requirement: The requirement for pip.
    """

    def __init__(self, folder: Path, requirement: str) -> None:
        self._site, self._tree = folder / "site", folder / "tree"
        self._requirement = requirement

    def build(self) -> int:
        """Update everything; return the status of a failed command, or 0.

        Raises:
            subprocess.CalledProcessError: That TensorFlow cannot be installed.
        """
        self._install()
        self._copy_sources()
        build = (sys.executable, "setup.py", "--quiet", "build_ext", "--inplace")
        return self.run(*build, TFSWAP_BUILD_UNTESTED="1")

    def run(self, *command: str | Path, **environment: str) -> int:
        """Run a command in the copy, with that TensorFlow; return its status."""
        paths = os.pathsep.join(map(str, (self._tree, self._site)))
        variables = {**os.environ, "PYTHONPATH": paths, **environment}
        command_line = [str(part) for part in command]
        return subprocess.run(command_line, cwd=self._tree, env=variables).returncode

    def _install(self) -> None:
        complete = self._site / ".complete"
        if complete.exists() and complete.read_text() == self._requirement:
            return
        shutil.rmtree(self._site, ignore_errors=True)
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
        subprocess.run([*pip, "--target", str(self._site), self._requirement], check=True)
        complete.write_text(self._requirement)

    def _copy_sources(self) -> None:
        """Copy files; unchanged ones keep their time, so that they are not compiled again."""
        self._tree.mkdir(parents=True, exist_ok=True)
        for name in ("setup.py", "CMakeLists.txt", "pyproject.toml", "README.md", "mkdocs.yml"):
            shutil.copy2(TREE / name, self._tree / name)
        for name in ("cmake", "tfswap", "tests", "benchmarks", "docs", "examples"):
            built = shutil.ignore_patterns("*.so", "native", "__pycache__")
            shutil.copytree(TREE / name, self._tree / name, ignore=built, dirs_exist_ok=True)
            for old in list((self._tree / name).rglob("*")):
                there = TREE / old.relative_to(self._tree)
                if old.suffix in (".cc", ".cu", ".h", ".py") and not there.exists():
                    old.unlink()
