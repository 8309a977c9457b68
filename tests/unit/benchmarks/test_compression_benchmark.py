"""How the compression benchmark turns trainings into lines and a summary."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks import compression, compression_accuracy
from benchmarks.compression import Cell, Prepared
from benchmarks.compression_case import Case

LOSSES = ["0x1.0p0", "0x1.8p0", "0x1.cp0"]


def trained(seconds: float, **changes: Any) -> dict[str, Any]:
    answer = {
        "losses": LOSSES,
        "seconds": [seconds, 9 * seconds, seconds],
        "peak_bytes": 490,
        "unswapped_peak_bytes": 1000,
        "predicted_step_s": 1.25,
        "predicted_wait_s": 0.125,
        "outcome": "swapped",
        "notes": [],
        "swapped_tensors": 7,
        "compressed_tensors": 0,
        "encoded_bytes": 0,
        "kept_bytes": 0,
    }
    return {**answer, **changes}


def encoded(seconds: float, **changes: Any) -> dict[str, Any]:
    return trained(
        seconds, **{"compressed_tensors": 5, "encoded_bytes": 80, "kept_bytes": 44, **changes}
    )


UNSWAPPED = [trained(1.0, outcome="fits"), trained(1.0, outcome="fits", losses=LOSSES[:2])]


def cell(**changes: Any) -> Cell:
    fields: dict[str, Any] = {
        "model": "M",
        "activation": "relu",
        "link_gb_s": 2.0,
        "unswapped_peak_bytes": 1000,
        "budget_bytes": 500,
        "unswapped": UNSWAPPED,
        "swapped": {"none": [trained(1.8)], "auto": [encoded(1.2), encoded(1.2, peak_bytes=499)]},
    }
    return Cell(**{**fields, **changes})


def test_a_line_has_all_keys_in_their_order() -> None:
    none, auto = compression.lines(cell())
    assert auto == {
        "model": "M",
        "activation": "relu",
        "link_gb_s": 2.0,
        "mode": "auto",
        "budget_bytes": 500,
        "measured_peak_bytes": 499,
        "unswapped_step_s": 1.0,
        "step_s": 1.2,
        "predicted_step_s": 1.25,
        "predicted_wait_s": 0.125,
        "exposed_s": 0.2,
        "exposed_reduction": 0.75,
        "compressed_tensors": 5,
        "swapped_tensors": 7,
        "ratio": 0.55,
        "losses_equal": True,
    }
    assert list(none) == list(auto) == list(compression.KEYS)
    assert (none["exposed_reduction"], none["ratio"]) == (0.0, None)


def test_a_reduction_needs_a_positive_reference_and_is_never_above_one() -> None:
    assert compression.reduction(1.0, 1.5, 0.9) == 1.0
    assert compression.reduction(1.0, 1.5, 1.75) == -0.5
    assert compression.reduction(1.0, 1.019, 1.0) is None
    assert compression.reduction(1.0, None, 1.2) is None
    (line,) = compression.lines(cell(swapped={"auto": [encoded(1.2)]}))
    assert (line["exposed_s"], line["exposed_reduction"]) == (0.2, None)


def test_one_bit_of_one_loss_counts() -> None:
    other = [*LOSSES[:2], "0x1.c000000000001p0"]
    swapped = {"auto": [encoded(1.2), encoded(1.2, losses=other)]}
    (line,) = compression.lines(cell(swapped=swapped))
    assert line["losses_equal"] is False
    (line,) = compression.lines(
        cell(swapped=swapped, unswapped=[*UNSWAPPED, trained(1.0, losses=other)])
    )
    assert line["losses_equal"] is None


def test_a_raised_budget_is_marked() -> None:
    line = next(compression.lines(cell(budget_bytes=730)))
    assert list(line) == [*compression.KEYS, "note"]
    assert line["note"] == "budget raised from 50% to 73% of the unswapped peak"


def test_a_failed_training_keeps_its_keys_and_has_a_reason() -> None:
    (line,) = compression.lines(cell(swapped={"auto": [{"failed": "op X needs 9 MiB"}]}))
    assert list(line) == [*compression.KEYS, "error"]
    assert line["error"] == "op X needs 9 MiB"
    assert {line[key] for key in compression.KEYS[5:] if key != "unswapped_step_s"} == {None}


def test_a_training_without_a_plan_has_a_reason() -> None:
    answer = trained(1.5, outcome="bootstrap", notes=["no plan fits"])
    (line,) = compression.lines(cell(swapped={"cswap": [answer]}))
    assert line["error"] == "the outcome was 'bootstrap': no plan fits"
    assert line["step_s"] == 1.5


def test_without_unswapped_trainings_there_is_no_comparison() -> None:
    line = list(compression.lines(cell(unswapped=[{"failed": "no memory"}])))[1]
    assert line["error"] == "no memory"
    assert line["step_s"] == 1.2
    unknown = ("unswapped_step_s", "exposed_s", "exposed_reduction", "losses_equal")
    assert {line[key] for key in unknown} == {None}


def test_the_summary_includes_the_published_numbers() -> None:
    found = [
        *compression.lines(cell()),
        *compression.lines(cell(swapped={"none": [trained(1.8)], "auto": [encoded(1.6)]})),
        *compression.lines(cell(swapped={"none": [trained(1.0)], "auto": [encoded(1.0)]})),
        *compression.lines(cell(activation="leaky_relu", swapped={"none": [trained(1.8)]})),
    ]
    assert list(compression.summary(found)) == [
        {
            "activation": "relu",
            "cells": {"auto": 2},
            "mean_reduction": {"auto": 0.5},
            "max_reduction": {"auto": 0.75},
            "published_max_reduction": 0.509,
            "published_is_lossless": True,
        },
        {
            "activation": "leaky_relu",
            "cells": {},
            "mean_reduction": {},
            "max_reduction": {},
            "published_max_reduction": 0.461,
            "published_is_lossless": False,
        },
    ]


def test_quick_is_one_small_model_over_one_link() -> None:
    options = compression.parse(["--quick"])
    assert (options.models, options.links, options.activations) == (["Plain20"], [0.25], ["relu"])
    assert (options.batch, options.repeats, options.modes) == (64, 1, list(compression.CODECS))
    assert compression.parse(["--quick", "--models", "VGG16"]).batch is None


def test_unknown_names_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        compression.parse(["--modes", "auto,gzip"])
    assert "unknown: gzip; allowed are none, all, cswap, auto, lossy" in capsys.readouterr().err


class Trained:
    """Record the trained cases; answer like a model that needs a budget."""

    def __init__(self, least_bytes: int = 0) -> None:
        self._least_bytes = least_bytes
        self.done: list[tuple[str | None, float | None, int | None]] = []

    def __call__(self, case: Case) -> dict[str, Any]:
        self.done.append((case.mode, case.link_gb_s, case.budget_bytes))
        if case.budget_bytes is not None and case.budget_bytes < self._least_bytes:
            return {"failed": "no memory"}
        return trained(1.0)


PREPARED = Prepared(Case("Plain20", "relu", 8, 32, 2, 5), 1000, 100)


def test_trainings_alternate_with_unswapped_ones_that_links_share() -> None:
    options = compression.parse(["--links", "0.5,2", "--modes", "none,auto", "--repeats", "2"])
    train = Trained()
    found = list(compression.cells(options, PREPARED, train))
    turns = [("none", 500), ("auto", 500)] * 2
    assert train.done == [
        (None, None, None),
        *((mode, 0.5, budget_bytes) for mode, budget_bytes in turns),
        (None, None, None),
        *((mode, 2.0, budget_bytes) for mode, budget_bytes in turns),
        (None, None, None),
    ]
    assert [len(cell.unswapped) for cell in found] == [2, 2]
    assert [len(answers) for cell in found for answers in cell.swapped.values()] == [2] * 4


@pytest.mark.parametrize(
    ("repeats_itself", "said", "unswapped"), [(True, False, 5), (False, None, 3)]
)
def test_different_losses_count_when_many_unswapped_trainings_agree(
    repeats_itself: bool, said: bool | None, unswapped: int
) -> None:
    def train(case: Case) -> dict[str, Any]:
        done.append(case.mode)
        if case.mode is not None:
            return trained(1.8, losses=["0x1.1p0"])
        third = done.count(None) == 3 and not repeats_itself
        return trained(1.0, outcome="fits", losses=["0x1.2p0"] if third else LOSSES)

    done: list[str | None] = []
    options = compression.parse(["--links", "0.5", "--modes", "none", "--repeats", "1"])
    (cell,) = compression.cells(options, PREPARED, train)
    (line,) = compression.lines(cell)
    assert (line["losses_equal"], len(cell.unswapped)) == (said, unswapped)


def test_the_budget_is_raised_until_the_first_mode_trains_and_stays_raised() -> None:
    options = compression.parse(["--links", "0.5,2", "--modes", "none,auto", "--repeats", "1"])
    train = Trained(least_bytes=580)
    found = list(compression.cells(options, PREPARED, train))
    assert [cell.budget_bytes for cell in found] == [583, 583]
    swapped = [(mode, budget_bytes) for mode, _, budget_bytes in train.done if mode]
    assert swapped == [
        ("none", 500),
        ("none", 540),
        ("none", 583),
        ("auto", 583),
        ("none", 583),
        ("auto", 583),
    ]


def test_a_failing_mode_does_not_affect_others() -> None:
    options = compression.parse(["--links", "2", "--modes", "none,all", "--repeats", "1"])

    def train(case: Case) -> dict[str, Any]:
        return {"failed": "crashed"} if case.mode == "all" else trained(1.0)

    none, encoded_all = compression.lines(next(compression.cells(options, PREPARED, train)))
    assert "error" not in none and encoded_all["error"] == "crashed"


@pytest.mark.parametrize("activation", compression.ACTIVATIONS)
def test_only_dense_activations_use_lossy_codecs(activation: str) -> None:
    options = compression.parse(["--quick"])
    prepared = Prepared(Case("M", activation, 1, 8, 1, 1), 1000, 100)
    (cell,) = compression.cells(options, prepared, lambda case: trained(1.0))
    assert ("lossy" in cell.swapped) == (activation == "leaky_relu")
    assert all(len(answers) == 1 for answers in cell.swapped.values())


def test_an_accuracy_line_has_all_keys() -> None:
    training = compression_accuracy.Training("leaky_relu", 0.05, 8, lossy=True)
    exact = compression_accuracy.Outcome(0.25, 0.9)
    lossy = compression_accuracy.Outcome(0.5, 0.8, 60, 20, 0.01)
    found = compression_accuracy.line(training, exact, lossy)
    assert list(found) == compression_accuracy.KEYS
    assert list(found.values()) == ["Plain20", "leaky_relu", 8, 60, 20, 0.25, 0.5, 0.9, 0.8, 0.01]
