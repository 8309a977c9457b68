"""The programs benchmark: its scripts, budgets and data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.programs import datasets
from benchmarks.programs.__main__ import (
    GRANULE_BYTES,
    budget_for,
    compared,
    environment,
    parse,
    parts_from,
    scripts_in,
)
from benchmarks.programs.process import has_tests_alone, reason
from benchmarks.programs.record import FIT, NO_TRAINING, OP_BY_OP

MIB = 1 << 20


def window(name: str, peak_mib: int, resident_mib: int) -> dict[str, Any]:
    return {"name": name, "peak_bytes": peak_mib * MIB, "resident_bytes": resident_mib * MIB}


def test_a_budget_is_a_part_of_what_steps_need_beyond_resident_memory() -> None:
    assert budget_for([window(FIT, 100, 20)], 0.5) == 60 * MIB
    assert budget_for([window(FIT, 100, 20)], 1.0) == 100 * MIB


def test_a_budget_suffices_for_each_training() -> None:
    assert budget_for([window(FIT, 100, 20), window("step", 90, 80)], 0.5) == 85 * MIB


@pytest.mark.parametrize("name", [OP_BY_OP, NO_TRAINING])
def test_no_budget_is_below_the_unswappable_memory(name: str) -> None:
    assert budget_for([window(FIT, 100, 20), window(name, 70, 1)], 0.5) == 77 * MIB


def test_budgets_are_rounded_up_to_whole_granules() -> None:
    found = budget_for([{"name": FIT, "peak_bytes": 1000, "resident_bytes": 0}], 0.5)
    assert found == GRANULE_BYTES


def test_parts_rise_to_the_peak_and_beyond() -> None:
    assert list(parts_from(0.6)) == [0.6, 0.8, 0.9, 1.0, 1.2, 1.5]


def test_scripts_of_a_checkout_are_in_its_program_folders(tmp_path: Path) -> None:
    for name in ("examples/vision/net.py", "guides/fit.py", "keras/src/model.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "examples" / "__init__.py").touch()
    assert [path.stem for path in scripts_in(tmp_path)] == ["net", "fit"]
    assert [path.stem for path in scripts_in(tmp_path, ["f*"])] == ["fit"]


def test_all_scripts_of_another_folder_run(tmp_path: Path) -> None:
    (tmp_path / "one.py").touch()
    assert scripts_in(tmp_path) == [tmp_path / "one.py"]


def test_a_program_inherits_no_tfswap_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TFSWAP_LOSSY", "1")
    assert "TFSWAP_LOSSY" not in environment(2, None)
    assert "TFSWAP_BUDGET" not in environment(2, None)
    assert environment(2, 12345)["TFSWAP_BUDGET"] == "12345"
    assert environment(2, None)["KERAS_MAX_EPOCHS"] == "2"


def test_a_folder_must_be_given(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse([])
    assert "--scripts must be a folder" in capsys.readouterr().err


def test_tests_without_a_main_are_run_as_tests() -> None:
    assert has_tests_alone("class A(TestCase):\n    def test_fit(self):\n        pass\n")
    assert not has_tests_alone("def test_fit(): ...\nif __name__ == '__main__': test_fit()")
    assert not has_tests_alone("model.fit(x, y)")
    assert not has_tests_alone("class Net(Model):\n    def test_step(self, data): ...\n")


def test_the_reason_for_an_exceeded_budget_is_the_allocators_message() -> None:
    text = "OOM when allocating\nby allocator: tfswap: the memory budget of 3 MiB is exceeded: x"
    assert reason(RuntimeError(text)) == (
        "RuntimeError: tfswap: the memory budget of 3 MiB is exceeded: x"
    )
    assert reason(ValueError("two\n  lines")) == "ValueError: two lines"


def answer(numbers: list[str], weights: list[str], peak_mib: int) -> dict[str, Any]:
    windows = [{"name": FIT, "steps": 3, "peak_bytes": peak_mib * MIB, "capped": True}]
    return {
        "numbers": numbers,
        "weights": weights,
        "windows": windows,
        "train_s": 2.0,
        "bytes_out": 5,
        "said": [],
    }


def test_runs_are_compared_number_by_number() -> None:
    first = answer(["a", "b"], ["w"], 9)
    line = compared([first], answer(["a", "b"], ["w"], 5), True, 6 * MIB)
    assert line["losses_equal"] and line["weights_equal"] and line["within_budget"]
    line = compared([first], answer(["a", "c"], ["v"], 7), True, 6 * MIB)
    assert (line["losses_equal"], line["weights_equal"]) == (False, False)
    assert not line["within_budget"]


def test_bits_are_not_compared_when_unswapped_runs_differ() -> None:
    line = compared([answer(["a"], [], 9)], answer(["b"], [], 5), False, 6 * MIB)
    assert line["losses_equal"] is line["weights_equal"] is None


SHAPES = {
    "mnist": ((60_000, 28, 28), (60_000,), (10_000, 28, 28)),
    "fashion_mnist": ((60_000, 28, 28), (60_000,), (10_000, 28, 28)),
    "cifar10": ((50_000, 32, 32, 3), (50_000, 1), (10_000, 32, 32, 3)),
    "cifar100": ((50_000, 32, 32, 3), (50_000, 1), (10_000, 32, 32, 3)),
    "imdb": ((25_000,), (25_000,), (25_000,)),
    "reuters": ((8982,), (8982,), (2246,)),
    "boston_housing": ((404, 13), (404,), (102, 13)),
    "california_housing": ((16_512, 8), (16_512,), (4128, 8)),
}


@pytest.mark.parametrize("name", datasets.LOADERS)
def test_data_have_the_shapes_of_the_originals(name: str) -> None:
    (x, y), (x_test, y_test) = datasets.LOADERS[name]()
    assert (x.shape, y.shape, x_test.shape) == SHAPES[name]
    assert len(x_test) == len(y_test)
    if x.dtype == np.uint8:
        assert x.max() > 200
        assert len(np.unique(y)) == (100 if name == "cifar100" else 10)


def test_words_are_from_the_vocabulary_and_the_same_in_each_run() -> None:
    (x, _), _ = datasets.LOADERS["imdb"](num_words=500)
    assert max(map(max, x[:1000])) < 500
    (again, _), _ = datasets.LOADERS["imdb"](num_words=500)
    assert x[7] == again[7]
