"""The output of the codec benchmark."""

from __future__ import annotations

import json
import math

import pytest

from benchmarks import codecs as benchmark
from tfswap.machine import codecs

KEYS = ["codec", "data", "dtype", "threads", "ratio", "out_gb_s", "in_gb_s", "memcpy_gb_s"]


def lines_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[dict[str, object]]:
    assert benchmark.main(["--quick", "--mib", "0.5", "--steps", "1", *arguments]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    for line in lines:
        assert list(line) == KEYS
        for key in KEYS[5:]:
            assert math.isfinite(line[key]) and line[key] > 0
    return lines


def test_a_line_for_each_codec_dtype_and_thread_count(capsys: pytest.CaptureFixture[str]) -> None:
    lines = lines_of(capsys, "--data", "zeros50")
    found = [(line["codec"], line["dtype"], line["threads"]) for line in lines]
    expected = [
        (codec, dtype, threads)
        for dtype, size in (("float32", 4), ("bfloat16", 2))
        for codec in codecs.available(size)
        for threads in (1, 2)
    ]
    assert found == expected
    zvc = [line["ratio"] for line in lines if line["codec"] == "zvc"]
    assert zvc == pytest.approx([17 / 32, 17 / 32, 9 / 16, 9 / 16], abs=0.01)


@pytest.mark.parametrize(
    "name", ["MobileNetV2", pytest.param("Transformer", marks=pytest.mark.slow)]
)
def test_outputs_of_models(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, _, layers = benchmark.MODELS[name]
    monkeypatch.setitem(benchmark.MODELS, name, (2, 32, layers))
    options = ["--codec", "zvc", "--dtype", "float16", "--threads", "1"]
    (line,) = lines_of(capsys, "--data", name, *options)
    assert list(line.values())[:4] == ["zvc", name, "float16", 1]
    ratio = line["ratio"]
    assert isinstance(ratio, float)
    # ReLUs leave zeros, normalization and gelu do not.
    assert ratio < 0.9 if name == "MobileNetV2" else ratio > 0.9
