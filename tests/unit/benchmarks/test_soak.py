"""The trainings that the soak test draws, and its evaluation."""

from __future__ import annotations

import itertools

from benchmarks.soak import BATCHES, drawn, summary

MODELS = [("convolutions", 16, 0.7), ("dense", 2048, 0.92)]


def line(number: int, resident_bytes: int, threads: int = 20, equal: bool = True) -> dict:
    return {
        "mode": "tfswap",
        "training": number,
        "step": 20 * (number + 1),
        "minutes": 0.1 * number,
        "outcome": "swapped",
        "losses_equal": equal,
        "resident_bytes": resident_bytes,
        "threads": threads,
        "handles": 30,
        "load_bytes": 1000,
    }


def test_a_seed_draws_the_same_trainings_of_all_models() -> None:
    first, second = (list(itertools.islice(drawn(3, MODELS), 40)) for _ in range(2))
    assert first == second != list(itertools.islice(drawn(4, MODELS), 40))
    assert {each.model for each in first} == {"convolutions", "dense"}
    assert all(each.part >= dict((n, p) for n, _, p in MODELS)[each.model] for each in first)
    assert {each.batch for each in first if each.model == "dense"} == {
        int(2048 * part) for part in BATCHES
    }
    assert any(each.validates for each in first)


def test_growth_is_distinguished_from_a_first_allocation() -> None:
    lines = [line(number, 100 if number < 10 else 1000) for number in range(60)]
    assert summary(lines)["growth"] == 0
    grown = [line(number, 1000 + number, threads=20 + number // 10) for number in range(200)]
    found = summary(grown)
    assert 0.11 < found["growth"] < 0.12 and found["threads_gained"] == 12
    assert found["steps"] == 4000 and found["wrong"] == 0
    # A variation between two trainings of the same models is not growth.
    waves = [line(number, 1000 + 100 * (number % 6)) for number in range(200)]
    assert summary(waves)["growth"] == 0


def test_different_losses_are_counted() -> None:
    assert summary([line(0, 1), line(1, 1, equal=False)])["wrong"] == 1
