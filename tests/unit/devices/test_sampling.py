from __future__ import annotations

from typing import Any, cast

from tfswap.devices.sampling import RatioSamples, parse_distinct_words, parse_samples
from tfswap.ops.loaded_library import Library


class FakeLibrary:
    def __init__(self, *answers: str) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[str, ...]] = []

    def sample_codecs(self, codecs: Any) -> None:
        self.asked.append(tuple(codecs))

    def codec_samples(self) -> str:
        return self.answers.pop(0)


def samples(lib: FakeLibrary, *codecs: str) -> RatioSamples:
    return RatioSamples(cast(Library, lib), codecs)


def test_lines_are_nodes_with_a_pair_for_each_codec() -> None:
    text = "tfswap/out/a_0\t4096\t17\t50\t100\t75\t100\ntfswap/out/b_1\t9\t0\t0\t0\t0\t0\n"
    assert parse_samples(text, ("zvc", "rle")) == {
        "tfswap/out/a_0": {"zvc": 0.5, "rle": 0.75},
        "tfswap/out/b_1": {},
    }
    assert parse_distinct_words(text) == {"tfswap/out/a_0": 17, "tfswap/out/b_1": 0}


def test_tensors_are_found_by_the_names_of_their_swap_outs() -> None:
    lib = FakeLibrary("tfswap/out/scope/x_0\t8\t2\t1\t4\ntfswap/out/odd_name_2\t8\t2\t3\t4\n")
    ratios = samples(lib, "zvc")
    ratios.start()
    ratios.stop()
    assert lib.asked == [("zvc",), ()]
    assert ratios.of("scope/x:0") == {"zvc": 0.25}
    assert ratios.of("odd:name:2") == {"zvc": 0.75}
    assert ratios.of("scope/x:1") == {}


def test_what_passed_before_and_not_again_stays() -> None:
    lib = FakeLibrary(
        "tfswap/out/x_0\t8\t2\t1\t4\ntfswap/out/y_0\t8\t2\t1\t4\n",
        "tfswap/out/x_0\t8\t2\t2\t4\n",
    )
    ratios = samples(lib, "zvc")
    for _ in range(2):
        ratios.start()
        ratios.stop()
    assert (ratios.of("x:0"), ratios.of("y:0")) == ({"zvc": 0.5}, {"zvc": 0.25})


def test_dense_is_what_no_codec_makes_smaller_and_no_mask() -> None:
    lines = {
        "dense": "17\t99\t98\t99\t99",
        "sparse": "17\t99\t99\t60\t99",
        "mask": "16\t9\t9\t9\t9",
    }
    text = "".join(f"tfswap/out/{name}_0\t99\t{line}\n" for name, line in lines.items())
    ratios = samples(FakeLibrary(text), "zvc", "rle")
    ratios.start()
    ratios.stop()
    assert [ratios.is_dense(f"{name}:0") for name in (*lines, "not met")] == [True] + 3 * [False]


def test_without_codecs_nothing_is_asked_for() -> None:
    lib = FakeLibrary()
    ratios = samples(lib)
    ratios.start()
    ratios.stop()
    assert not lib.asked and ratios.of("x:0") == {}
