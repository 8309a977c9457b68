from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

from tfswap.devices.sampling import RatioSamples
from tfswap.ops.loaded_library import Library


@dataclass
class Sample:
    label: str
    different_words: int
    ratios: dict[str, float]


class FakeLibrary:
    def __init__(self, *answers: list[Sample]) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[str, ...]] = []

    def sample_codecs(self, codecs: Any) -> None:
        self.asked.append(tuple(codecs))

    def codec_samples(self) -> list[Sample]:
        return self.answers.pop(0)


def samples(lib: FakeLibrary, *codecs: str) -> RatioSamples:
    return RatioSamples(cast(Library, lib), codecs)


def test_tensors_are_identified_by_their_swap_outs() -> None:
    lib = FakeLibrary(
        [
            Sample("tfswap/out/scope/x_0", 2, {"zvc": 0.25}),
            Sample("tfswap/out/odd_name_2", 2, {"zvc": 0.75}),
        ]
    )
    ratios = samples(lib, "zvc")
    ratios.start()
    ratios.stop()
    assert lib.asked == [("zvc",), ()]
    assert ratios.of("scope/x:0") == {"zvc": 0.25}
    assert ratios.of("odd:name:2") == {"zvc": 0.75}
    assert ratios.of("scope/x:1") == {}


def test_ratios_of_tensors_without_new_samples_stay() -> None:
    lib = FakeLibrary(
        [Sample(f"tfswap/out/{name}_0", 2, {"zvc": 0.25}) for name in "xy"],
        [Sample("tfswap/out/x_0", 2, {"zvc": 0.5})],
    )
    ratios = samples(lib, "zvc")
    for _ in range(2):
        ratios.start()
        ratios.stop()
    assert (ratios.of("x:0"), ratios.of("y:0")) == ({"zvc": 0.5}, {"zvc": 0.25})


def test_dense_tensors_are_incompressible_and_no_masks() -> None:
    found = {
        "dense": (17, {"zvc": 0.99, "rle": 0.99}),
        "sparse": (17, {"zvc": 0.99, "rle": 0.6}),
        "mask": (16, {"zvc": 1.0, "rle": 1.0}),
        "not encoded": (17, {}),
    }
    tensors = [Sample(f"tfswap/out/{name}_0", *each) for name, each in found.items()]
    ratios = samples(FakeLibrary(tensors), "zvc", "rle")
    ratios.start()
    ratios.stop()
    assert [ratios.is_dense(f"{name}:0") for name in (*found, "not met")] == [True] + 4 * [False]


def test_without_codecs_nothing_is_sampled() -> None:
    lib = FakeLibrary()
    ratios = samples(lib)
    ratios.start()
    ratios.stop()
    assert not lib.asked and ratios.of("x:0") == {}
