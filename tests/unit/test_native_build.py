"""Error messages of the build, and when it compiles again."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from native_build import compilation, libraries, toolchain

TREE = Path(__file__).resolve().parents[2]


def test_without_a_compiler_the_error_says_what_to_install(tmp_path: Path) -> None:
    pytest.importorskip("setuptools")
    environment = {k: v for k, v in os.environ.items() if k not in ("CXX", "PATH")}
    process = subprocess.run(
        [sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"],
        cwd=TREE,
        env={**environment, "PATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert process.returncode == 1
    assert "Traceback" not in process.stderr
    words = process.stderr[process.stderr.index("tfswap cannot be built") :]
    assert words.startswith("tfswap cannot be built: the C++ compiler (g++) was not found.")
    assert "Debian, Ubuntu   apt-get install g++\n" in words
    assert "Fedora, RHEL     dnf install gcc-c++\n" in words
    assert words.endswith("CXX=/path/to/g++ pip install .\n\n")


def test_a_missing_compiler_named_by_cxx(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "g++-99 -m64")
    with pytest.raises(SystemExit, match=r"compiler named by CXX \(g\+\+-99\) was not found"):
        toolchain.find_compiler()


def test_a_compiler_that_is_too_old() -> None:
    with pytest.raises(SystemExit, match=r"g\+\+ is version 10.2.1, and g\+\+ 12 or newer"):
        toolchain.check_compiler_version("g++", "g++ (Debian 10.2.1-6) 10.2.1", "10.2.1")
    toolchain.check_compiler_version("g++", "g++ 12.1.0", "12.1.0")
    toolchain.check_compiler_version("clang++", "clang version 11.0", "11.0.0")


def test_a_compiler_that_does_not_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken = tmp_path / "g++"
    broken.write_text("#!/bin/sh\nexit 3\n")
    broken.chmod(0o755)
    monkeypatch.setenv("CXX", str(broken))
    with pytest.raises(SystemExit, match="does not run: .* exit status 3"):
        toolchain.find_compiler()


def test_no_tensorflow() -> None:
    with pytest.raises(SystemExit) as caught:
        toolchain.check_tensorflow_version(None)
    assert "no TensorFlow was found for" in str(caught.value)
    assert 'pip install "tensorflow-cpu>=2.20,<2.22"' in str(caught.value)
    assert "--no-build-isolation" in str(caught.value)


@pytest.mark.parametrize("version", ["2.19.1", "2.22.0rc1", "3.0"])
def test_an_unsupported_tensorflow(version: str) -> None:
    with pytest.raises(SystemExit, match=f"TensorFlow {version} is installed, and .* 2.2"):
        toolchain.check_tensorflow_version(version)


def test_supported_tensorflow() -> None:
    for release in toolchain.SUPPORTED_TENSORFLOW:
        for version in (f"{release}.0", f"{release}.1", f"{release}.0rc1"):
            toolchain.check_tensorflow_version(version)


def test_the_loader_and_the_build_support_the_same_versions() -> None:
    from tfswap.ops.library import SUPPORTED_TENSORFLOW

    assert toolchain.SUPPORTED_TENSORFLOW == SUPPORTED_TENSORFLOW


def test_pips_own_paths_are_omitted() -> None:
    overlay = "/tmp/pip-build-env-abc/overlay/bin"
    cleaned = toolchain.target_environment(
        {"PATH": f"{overlay}:/usr/bin", "PYTHONPATH": "/tmp/pip-build-env-abc/site", "A": "1"}
    )
    assert cleaned["PATH"] == "/usr/bin"
    assert "PYTHONPATH" not in cleaned
    assert cleaned["A"] == "1"
    assert toolchain.target_environment({"PYTHONPATH": "/mine"})["PYTHONPATH"] == "/mine"


def test_dependency_files() -> None:
    rule = "build/a.o: cc/a.cc \\\n cc/with\\ blank.h \\\n  cc/b.h \\\n gone/shared_headers.h.gch\n"
    assert compilation.dependency_files(rule) == [
        Path("cc/a.cc"),
        Path("cc/with blank.h"),
        Path("cc/b.h"),
    ]


def test_headers_are_read_once_for_all_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = toolchain.find_compiler()
    if not compiler.precompiles:
        pytest.skip("not by this compiler")
    assert not toolchain.Compiler(("ccache", "g++"), compiler.version).precompiles
    assert not toolchain.Compiler(("clang++",), "clang version 14").precompiles
    monkeypatch.setattr(compilation, "SHARED_HEADERS", "inline int there() { return 1; }\n")
    flags = compilation.read_shared_headers(compiler, ("-O2", "-Wall"), tmp_path)
    assert flags == ("-include", str(tmp_path / "shared_headers.h"))
    assert (tmp_path / "shared_headers.h.gch").exists()
    (tmp_path / "a.cc").write_text("int main() { return there(); }\n")
    command = [*compiler.command, "-O2", "-Wall", *flags, "-Winvalid-pch", "-Werror"]
    subprocess.run([*command, "-c", "a.cc"], cwd=tmp_path, check=True)
    monkeypatch.setattr(compilation, "SHARED_HEADERS", "#include <that_is_not_there.h>\n")
    assert compilation.read_shared_headers(compiler, ("-O2",), tmp_path) == ()


def test_an_object_is_current_until_a_file_or_the_command_changes(tmp_path: Path) -> None:
    source, header, target = tmp_path / "a.cc", tmp_path / "a.h", tmp_path / "a.o"
    step = compilation.CompileStep(source, target, ("cc",), "command, version 1")
    assert not compilation.is_current(step)
    source.touch()
    header.touch()
    target.touch()
    target.with_suffix(".d").write_text(f"{target}: {source} {header}\n")
    target.with_suffix(".stamp").write_text(step.stamp)
    made_ns = target.stat().st_mtime_ns
    for file in (source, header):
        os.utime(file, ns=(made_ns - 1, made_ns - 1))
    assert compilation.is_current(step)

    os.utime(header, ns=(made_ns + 1, made_ns + 1))
    assert not compilation.is_current(step)
    os.utime(header, ns=(made_ns - 1, made_ns - 1))
    assert compilation.is_current(step)
    header.unlink()
    assert not compilation.is_current(step)
    header.touch()
    os.utime(header, ns=(made_ns - 1, made_ns - 1))
    other = compilation.CompileStep(source, target, ("cc",), "command, version 2")
    assert not compilation.is_current(other)


def test_every_cc_file_is_in_a_library() -> None:
    known = compilation.sources(
        "core",
        "packing",
        "codecs",
        "bindings",
        "allocator",
        "device",
        "kernels",
        "grappler",
        "far",
        "gpu",
    )
    assert sorted(known) == sorted(toolchain.CC.rglob("*.cc"))


def test_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TFSWAP_BUILD_JOBS", "3")
    assert compilation.build_jobs() == 3
    monkeypatch.delenv("TFSWAP_BUILD_JOBS")
    assert 1 <= compilation.build_jobs() <= len(os.sched_getaffinity(0))


def test_without_nvcc_only_codecs_are_left_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("NVCC", raising=False)
    monkeypatch.setattr(toolchain.shutil, "which", lambda name: None)
    assert toolchain.find_nvcc() is None
    assert libraries.build_kernels(None, toolchain.Compiler(("g++",), "")) == {}
    said = capsys.readouterr().out
    assert said.startswith("GPU codecs are left out: nvcc was not found.")
    assert "NVCC=/path/to/nvcc" in said and said.count("\n") == 1


def test_a_missing_nvcc_named_by_nvcc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NVCC", "/no/such/nvcc")
    with pytest.raises(SystemExit, match=r"CUDA compiler named by NVCC \(/no/such/nvcc\) does not"):
        toolchain.find_nvcc()


def test_a_failing_nvcc_omits_codecs(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    nvcc = tmp_path / "nvcc"
    nvcc.write_text(
        "#!/bin/sh\ntest $1 = --version && echo 11.0 && exit\necho too old >&2; exit 1\n"
    )
    nvcc.chmod(0o755)
    monkeypatch.setenv("NVCC", str(nvcc))
    monkeypatch.setattr(compilation, "OBJECTS", tmp_path / "objects")
    found = toolchain.find_nvcc()
    assert found.version == "11.0"
    assert libraries.build_kernels(found, toolchain.Compiler(("g++",), "")) == {}
    said = capfd.readouterr()
    assert f"GPU codecs are left out: {nvcc} failed; what it said is above." in said.out
    assert "too old" in said.err


def test_ptx_is_marked_for_older_drivers() -> None:
    made = "//\n// release 13.0\n\n.version 9.0\n.target sm_80\n"
    assert libraries.lowered(made) == "//\n// release 13.0\n\n.version 7.0\n.target sm_80\n"
