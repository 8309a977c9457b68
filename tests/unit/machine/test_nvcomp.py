"""Finding nvCOMP, and the errors without it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tfswap.machine import codecs, nvcomp


@pytest.fixture(autouse=True)
def _no_cached_result(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvcomp, "find_nvcomp", nvcomp.find_nvcomp.__wrapped__)


@pytest.mark.parametrize(
    "name", ["libnvcomp/lib64/libnvcomp.so.6", "libnvcomp/lib64/libnvcomp.so.5"]
)
def test_the_library_of_a_wheel_is_found(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "nvidia" / name
    path.parent.mkdir(parents=True)
    path.touch()
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.delitem(sys.modules, "nvidia", raising=False)
    assert nvcomp.find_nvcomp() == str(path)


def test_the_workspace_is_a_fraction_of_the_budget() -> None:
    assert nvcomp.workspace_bytes(1 << 40) == nvcomp.WORKSPACE_BYTES
    assert nvcomp.workspace_bytes(320 << 20) == 10 << 20
    assert nvcomp.workspace_bytes(8 << 20) == 1 << 20


def test_gpu_codecs_need_nvcomp(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvcomp, "find_nvcomp", lambda: None)
    with pytest.raises(ValueError, match="on a CPU: no CPU encodes by ans; on a GPU: nvCOMP is"):
        codecs.check("ans")
    monkeypatch.setattr(codecs, "load_blosc", lambda: "blosc2 is not installed")
    with pytest.raises(ValueError, match="on a CPU: blosc2 is not .* pip install nvidia-nvcomp"):
        codecs.check("lz4")
    monkeypatch.setattr(nvcomp, "find_nvcomp", lambda: "libnvcomp.so.6")
    assert codecs.check("ans") == "ans" and codecs.check("lz4") == "lz4"
    with pytest.raises(ValueError, match="allowed are .* 'lz4', 'zstd', 'ans' and None"):
        codecs.check("zip")
