"""The stages, their order, and how long each may take."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarks.gpu_check.context import Context

MACHINE = "machine"


@dataclass(frozen=True)
class Stage:
    """One stage; the most important ones come first.

    Attributes:
        name: Its name; a part after a colon distinguishes similar stages.
        run: Runs it.
        share: Its part of the time, in seconds of a run of eight minutes.
        quiet: Nothing else may run at the same time.
        trains: Import Keras before its time begins.
    """

    name: str
    run: Callable[[Context], None]
    share: float
    quiet: bool = False
    trains: bool = True


def all_stages() -> list[Stage]:
    """Return all stages, in their order."""
    from benchmarks.gpu_check import (
        codecs,
        copies,
        gpu_tests,
        largest_batch,
        machine,
        nothing_to_swap,
        sweep,
        vgg16,
    )

    def budget_sweep(model: str, dtype: str, share: float) -> Stage:
        return Stage(f"sweep:{model}:{dtype}", partial(sweep.run, model, dtype), share)

    return [
        Stage(MACHINE, machine.run, 12, trains=False),
        Stage("tests", gpu_tests.run, 50, trains=False),
        Stage("copies", copies.run, 15, quiet=True),
        Stage("codecs", codecs.run, 20, quiet=True),
        Stage("nothing_to_swap", nothing_to_swap.run, 30, quiet=True),
        budget_sweep("ResNet50", "float32", 45),
        Stage("vgg16_12gb", vgg16.run, 35),
        Stage("resnet50_max_batch", partial(largest_batch.run, largest_batch.RESNET50), 90),
        Stage("bert_max_batch", partial(largest_batch.run, largest_batch.BERT), 80),
        budget_sweep("Transformer", "mixed_float16", 20),
        budget_sweep("VGG16", "float32", 20),
        budget_sweep("ResNet50", "mixed_float16", 20),
        budget_sweep("Transformer", "float32", 20),
        budget_sweep("DenseNet121", "float32", 25),
        budget_sweep("VGG16", "mixed_float16", 15),
        budget_sweep("DenseNet121", "mixed_float16", 20),
    ]


def chosen(names: Sequence[str]) -> list[Stage]:
    """Return the machine stage and those of these names; "sweep" means all sweeps. No names: all.

    Raises:
        ValueError: There is no such stage.
    """
    stages = all_stages()
    for name in names:
        if not any(_is_meant(name, stage) for stage in stages):
            known = ", ".join(stage.name for stage in stages)
            raise ValueError(f"unknown stage {name!r}: there are {known}")
    return [
        stage
        for stage in stages
        if not names or stage.name == MACHINE or any(_is_meant(name, stage) for name in names)
    ]


def _is_meant(name: str, stage: Stage) -> bool:
    return stage.name == name or stage.name.startswith(f"{name}:")
