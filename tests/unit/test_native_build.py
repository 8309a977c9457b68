"""Error messages of the build, and what it compiles."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests import cpp_build
from tfswap.ops import library

TREE = Path(__file__).resolve().parents[2]
CMAKE = shutil.which("cmake") or shutil.which("cmake", path=str(Path(sys.executable).parent))


def package(folder: Path, version: str) -> Path:
    """Return the folder of a package with the record of a TensorFlow."""
    (folder / f"tensorflow-{version}.dist-info").mkdir(parents=True)
    (folder / "tensorflow").mkdir()
    return folder / "tensorflow"


def configured(
    folder: Path, values: dict[str, object], changes: dict[str, str] | None = None
) -> str:
    """Run the build's checks; return what they print, in one line."""
    if CMAKE is None:
        pytest.skip("cmake is not installed")
    given = {"TFSWAP_PYTHON_INCLUDE": sysconfig.get_paths()["include"], **values}
    command = [CMAKE, "-G", "Ninja", "-S", str(TREE), "-B", str(folder / "build")]
    command += [f"-D{name}={value}" for name, value in given.items()]
    environment = {k: v for k, v in os.environ.items() if k != "CXX"} | (changes or {})
    ended = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert ended.returncode != 0
    return re.sub(r"\s+", " ", ended.stderr)


def test_without_a_compiler_the_error_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    said = configured(tmp_path, {}, {"PATH": str(tmp_path / "bin"), "CXX": "g++-99 -m64"})
    assert "tfswap cannot be built: the C++ compiler (g++-99) was not found. Install one:" in said
    assert "Debian, Ubuntu apt-get install g++ Fedora, RHEL dnf install gcc-c++" in said
    assert "CXX=/path/to/g++ pip install ." in said


def test_no_tensorflow(tmp_path: Path) -> None:
    said = configured(tmp_path, {"TFSWAP_TENSORFLOW": ""})
    assert "no TensorFlow was found" in said
    assert 'pip install "tensorflow-cpu>=2.20,<2.22"' in said
    assert "--no-build-isolation" in said


@pytest.mark.parametrize("version", ["2.19.1", "2.22.0rc1", "3.0"])
def test_an_untested_tensorflow(tmp_path: Path, version: str) -> None:
    said = configured(tmp_path, {"TFSWAP_TENSORFLOW": package(tmp_path, version)})
    assert f"TensorFlow {version} is installed, and tfswap is tested with 2.20, 2.21" in said
    assert "TFSWAP_BUILD_UNTESTED=1 pip install ." in said


def test_no_headers_of_python(tmp_path: Path) -> None:
    said = configured(tmp_path, {"TFSWAP_PYTHON_INCLUDE": tmp_path})
    assert f"Python's headers are missing ({tmp_path}/Python.h)" in said
    assert "apt-get install python3-dev" in said


def test_a_missing_tool(tmp_path: Path) -> None:
    pytest.importorskip("setuptools")
    code = "import setup, sys; sys.executable = '/none/python'; setup.tool('ninja')"
    ended = subprocess.run(
        [sys.executable, "-c", code],
        cwd=TREE,
        env={"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 1 and "Traceback" not in ended.stderr
    assert "ninja is missing" in ended.stderr and "pip install setuptools pybind11" in ended.stderr


def test_pips_own_paths_are_omitted(tmp_path: Path) -> None:
    pytest.importorskip("setuptools")
    overlay = tmp_path / "pip-build-env-abc" / "site"
    (overlay / "tensorflow").mkdir(parents=True)
    (overlay / "tensorflow" / "__init__.py").touch()
    ended = subprocess.run(
        [sys.executable, "-c", "import setup; print(setup.installed()[0])"],
        cwd=TREE,
        env={**os.environ, "PYTHONPATH": f"{overlay}:{os.environ.get('PYTHONPATH', '')}"},
        capture_output=True,
        text=True,
    )
    assert Path(ended.stdout.strip()) == cpp_build.tensorflow_folder()


def test_every_cc_file_is_in_a_library() -> None:
    text = (TREE / "CMakeLists.txt").read_text()
    folders = " ".join(re.findall(r"^sources\(\w+ (.*)\)$", text, re.MULTILINE)).split()
    assert sorted(set(cpp_build.sources(*folders))) == sorted(cpp_build.CC.rglob("*.cc"))


def test_the_flags_are_tensorflows() -> None:
    import tensorflow as tf

    text = (TREE / "CMakeLists.txt").read_text()
    for flag in tf.sysconfig.get_compile_flags():
        if flag.startswith("-D"):
            assert flag[2:] in text and flag in cpp_build.ABI
        else:
            assert flag.startswith("-I") or flag == "--std=c++17"


def test_the_libraries_are_chosen_by_the_release(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library, "NATIVE", tmp_path)
    monkeypatch.setattr(library, "tensorflow_version", lambda: "2.20.1")
    with pytest.raises(library.LibraryError, match="was not built. Run `pip install .`"):
        library.folder()
    for release in ("2.20", "2.21"):
        (tmp_path / release).mkdir()
        (tmp_path / release / "build.json").write_text("{}")
    with pytest.raises(library.LibraryError, match="built for another version of Python"):
        library.folder()
    library._runtime(tmp_path / "2.20").touch()
    assert library.folder() == tmp_path / "2.20"
    monkeypatch.setattr(library, "tensorflow_version", lambda: "2.22.0rc1")
    with pytest.raises(library.LibraryError, match=r"for TensorFlow 2.20.x, 2.21.x, and 2.22.0rc1"):
        library.folder()
    monkeypatch.setattr(library, "tensorflow_version", lambda: None)
    with pytest.raises(library.LibraryError, match="needs TensorFlow, and none is installed"):
        library.folder()
