"""Cases: a small training, its options, and a fault at some time; drawn at random."""

from __future__ import annotations

import random
from dataclasses import dataclass

SUBJECTS = ("convolutions", "dense", "lstm")

# Where a training starts: the plan that it begins with.
LAZY, PLANNED, WHOLE = "lazy", "planned", "whole"
STARTS = (LAZY, PLANNED, WHOLE)
STEPS = {LAZY: 3, PLANNED: 4, WHOLE: 14}

HOOKS = (
    *("on_train_begin", "on_epoch_begin", "on_train_batch_begin", "on_train_batch_end"),
    *("on_epoch_end", "on_test_begin", "on_test_batch_begin", "on_test_batch_end", "on_test_end"),
    "on_train_end",
)


@dataclass(frozen=True)
class Kind:
    """A kind of fault.

    Attributes:
        name: Its name.
        weight: Its relative frequency.
        needs: Options without which it has no effect.
        most: The maximum number of occasions before it takes effect.
        first: Whether it has an effect only in the first step.
        times: Possible numbers of its repetitions; 0: always.
        in_core: Whether ``cc/core/util/faults.h`` knows it.
        details: Possible details of a case.
    """

    name: str
    weight: float = 1.0
    needs: tuple[str, ...] = ()
    most: int = 8
    first: bool = False
    times: tuple[int, ...] = (0, 1, 1, 3)
    in_core: bool = True
    details: tuple[str, ...] = ("",)


KINDS = {
    kind.name: kind
    for kind in (
        Kind("copy-out-fails"),
        Kind("copy-in-fails"),
        Kind("copy-throws"),
        Kind("slow-copy"),
        Kind("bit-flip", needs=("verify",)),
        Kind("allocation-fails", 1.5, most=300, times=(1, 1, 3, 30)),
        Kind("host-full"),
        Kind("disk-full", needs=("file",), most=0, first=True, times=(0,)),
        Kind("write-error", needs=("file",)),
        Kind("write-full", 0.5, needs=("file",)),
        Kind("short-write", 0.5, needs=("file",)),
        Kind("read-error", needs=("file",)),
        Kind("short-read", 0.5, needs=("file",)),
        Kind("end-of-file", 0.5, needs=("file",)),
        Kind("file-bit-flip", needs=("file",)),
        Kind("slow-disk", 0.5, needs=("file",)),
        Kind("thread-dies", times=(1, 3, 10)),
        Kind("cancel", 2.5, most=1500),
        Kind("callback-raises", 2, in_core=False, details=HOOKS),
        Kind("data-raises", 0.7, in_core=False),
        Kind("interrupt", 2.5, in_core=False),
        Kind("fork", in_core=False, details=("between steps", "in a step")),
        Kind("loader-processes", 0.3, in_core=False),
        Kind(
            "nested-fit",
            in_core=False,
            details=("swapped", "swapped, error kept", "unswapped", "validation"),
        ),
        Kind("fit-in-thread", 0.6, in_core=False),
        Kind("kill-9", 0.5, in_core=False, details=("alone", "brokered", "the broker")),
    )
}


@dataclass(frozen=True)
class Case:
    """A training with a fault.

    Attributes:
        number: Its number in the run.
        kind: One of `KINDS`.
        detail: A detail of the kind.
        subject: One of `SUBJECTS`.
        start: One of `STARTS`.
        options: Options of the swaps: file, codec, stream, verify, slab.
        step: The step in which the fault begins, from 0.
        after: The number of occasions before it takes effect.
        times: How often it takes effect; 0: always from then on.
        part: A part of a step's time, or the place of a bit; 0..1.
    """

    number: int
    kind: str
    detail: str
    subject: str
    start: str
    options: tuple[str, ...]
    step: int
    after: int
    times: int
    part: float

    @property
    def steps(self) -> int:
        """The number of steps of the training."""
        return STEPS[self.start]

    @property
    def fault(self) -> str:
        """Return the fault as the core's setting."""
        kind = KINDS[self.kind]
        text = f"{self.kind} after={self.after}" + (f" times={self.times}" if self.times else "")
        if self.kind in ("slow-copy", "slow-disk"):
            text += " ms=5"
        if "flip" in kind.name:
            text += f" bit={int(self.part * 8e8)}"
        return text


def drawn(seed: int, count: int, kinds: tuple[str, ...] = ()) -> list[Case]:
    """Draw cases, the same ones for a seed; of the named kinds only, if any."""
    dice = random.Random(seed)
    among = [kind for kind in KINDS.values() if not kinds or kind.name in kinds]
    weights = [kind.weight for kind in among]
    return [_drawn(dice, number, dice.choices(among, weights)[0]) for number in range(count)]


def _drawn(dice: random.Random, number: int, kind: Kind) -> Case:
    start = dice.choices(STARTS, (4, 8, 1))[0]
    options = set(kind.needs)
    options |= {
        name for name in ("file", "codec", "verify", "stream", "slab") if dice.random() < 0.4
    }
    after = int((kind.most + 1) ** dice.random()) - 1
    return Case(
        number,
        kind.name,
        dice.choice(kind.details),
        dice.choices(SUBJECTS, (5, 4, 1))[0],
        start,
        tuple(sorted(options)),
        step=0 if kind.first else dice.randrange(STEPS[start] - 1),
        after=after,
        times=dice.choice(kind.times),
        part=dice.random(),
    )
