"""The speeds that copies have, told from counts."""

from __future__ import annotations

import pytest

from tfswap.devices.link_watch import LinkWatch, Speeds

MIB = 1 << 20
COUNTS = (
    *(
        f"{count}{way}{unit}"
        for way in ("out", "in")
        for count, unit in (("bytes_", ""), ("busy_", "_ns"))
    ),
    *(
        f"far_{tier}_{count}{way}{unit}"
        for tier in ("file", "compressed")
        for way in ("out", "in")
        for count, unit in (("bytes_", ""), ("busy_", "_ns"))
    ),
    "far_compressed_kept_bytes_out",
)


class Copies:
    """Counts of a device, as its copies go on."""

    def __init__(self) -> None:
        self.stats = dict.fromkeys(COUNTS, 0)

    def move(self, bytes_: int, bytes_per_s: float, name: str = "", ways=("out", "in")) -> None:
        for way in ways:
            busy_ns = round(bytes_ * 1e9 / bytes_per_s)
            for prefix in ("", f"far_{name}_") if name else ("",):
                self.stats[f"{prefix}bytes_{way}"] += bytes_
                self.stats[f"{prefix}busy_{way}_ns"] += busy_ns


def new_watch(copies: Copies, is_known: bool = True) -> LinkWatch:
    return LinkWatch(Speeds(1e9, 1e9), copies.stats, is_known)


@pytest.mark.parametrize("now, factor", [(0.5e9, 0.5), (2e9, 2.0)])
def test_another_speed_is_told_when_it_was_seen_twice(now: float, factor: float) -> None:
    copies = Copies()
    watch = new_watch(copies)
    copies.move(64 * MIB, now)
    assert watch.look(copies.stats) == "" and watch.is_off
    copies.move(64 * MIB, now)
    assert f"copies out go at {now / 1e9:.3g} GB/s where 1 were" in watch.look(copies.stats)
    assert watch.factors == pytest.approx((factor, factor))
    for _ in range(3):
        copies.move(64 * MIB, now)
        assert watch.look(copies.stats) == "" and not watch.is_off


def test_a_speed_that_is_about_the_same_is_nothing() -> None:
    copies = Copies()
    watch = new_watch(copies)
    for _ in range(4):
        copies.move(64 * MIB, 0.8e9)
        assert watch.look(copies.stats) == "" and not watch.is_off


def test_one_disturbed_look_is_nothing() -> None:
    copies = Copies()
    watch = new_watch(copies)
    for speed in (0.3e9, 1e9, 0.3e9, 1e9):
        copies.move(64 * MIB, speed)
        assert watch.look(copies.stats) == ""


def test_few_bytes_say_nothing_and_are_kept_for_the_next_look() -> None:
    copies = Copies()
    watch = new_watch(copies)
    for _ in range(3):
        copies.move(8 * MIB, 0.5e9)
        assert watch.look(copies.stats) == ""
    copies.move(8 * MIB, 0.5e9)
    assert watch.look(copies.stats) != ""


def test_files_and_codecs_are_not_the_link() -> None:
    copies = Copies()
    watch = new_watch(copies)
    for _ in range(2):
        copies.move(64 * MIB, 1e9)
        copies.move(64 * MIB, 0.1e9, "file")
        copies.move(32 * MIB, 0.1e9, "compressed")  # and a quarter of it over the link
        copies.stats["far_compressed_kept_bytes_out"] += 8 * MIB
        for way in ("out", "in"):
            copies.stats[f"busy_{way}_ns"] += round(8 * MIB)
        assert watch.look(copies.stats) == "" and not watch.is_off


def test_where_nothing_is_known_the_first_look_is_what_is_expected() -> None:
    copies = Copies()
    watch = new_watch(copies, is_known=False)
    for _ in range(3):
        copies.move(1 << 30, 0.4e9)
        assert watch.look(copies.stats) == "" and not watch.is_off
    for _ in range(2):
        copies.move(1 << 30, 0.2e9)
        said = watch.look(copies.stats)
    assert "0.2 GB/s where 0.4 were" in said
    assert watch.factors == pytest.approx((0.5, 0.5))


def test_only_the_way_that_changed_goes_by_another_speed() -> None:
    copies = Copies()
    watch = new_watch(copies)
    for _ in range(2):
        copies.move(64 * MIB, 0.5e9, ways=("in",))
        copies.move(64 * MIB, 1e9, ways=("out",))
        said = watch.look(copies.stats)
    assert said.startswith("copies back")
    assert watch.factors == pytest.approx((1.0, 0.5))


def test_counts_that_were_reset_are_taken_as_they_are() -> None:
    copies = Copies()
    copies.move(64 * MIB, 1e9)
    watch = new_watch(copies)
    fresh = Copies()
    fresh.move(32 * MIB, 0.1e9)
    assert watch.look(fresh.stats) == ""
    fresh.move(64 * MIB, 1e9)
    assert watch.look(fresh.stats) == "" and not watch.is_off
