"""The stages, their order, and how long each may take."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
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
        needs_tfswap: It runs only if the stage "machine" found all that tfswap needs.
    """

    name: str
    run: Callable[[Context], None]
    share: float
    quiet: bool = False
    trains: bool = True
    needs_tfswap: bool = True


def all_stages() -> list[Stage]:
    """Return all stages, in their order."""

    def without_tfswap(name: str, share: float) -> Stage:
        return Stage(name, _runs(name), share, quiet=True, trains=False, needs_tfswap=False)

    def budget_sweep(model: str, dtype: str, share: float) -> Stage:
        return Stage(f"sweep:{model}:{dtype}", _runs("sweep", model, dtype), share)

    return [
        without_tfswap("link", 25),
        without_tfswap("ordering", 20),
        without_tfswap("pytorch", 60),
        without_tfswap("stock_tensorflow", 30),
        Stage(MACHINE, _runs("machine"), 12, trains=False),
        Stage("tests", _runs("gpu_tests"), 50, trains=False),
        Stage("verified", _runs("verified"), 20),
        Stage("copies", _runs("copies"), 15, quiet=True),
        Stage("codecs", _runs("codecs"), 20, quiet=True),
        Stage("nothing_to_swap", _runs("nothing_to_swap"), 30, quiet=True),
        budget_sweep("ResNet50", "float32", 45),
        Stage("vgg16_12gb", _runs("vgg16"), 35),
        Stage("resnet50_max_batch", _runs("largest_batch", "ResNet50"), 90),
        Stage("bert_max_batch", _runs("largest_batch", "BERT-base"), 80),
        budget_sweep("Transformer", "mixed_float16", 20),
        budget_sweep("VGG16", "float32", 20),
        budget_sweep("ResNet50", "mixed_float16", 20),
        budget_sweep("Transformer", "float32", 20),
        budget_sweep("DenseNet121", "float32", 25),
        budget_sweep("VGG16", "mixed_float16", 15),
        budget_sweep("DenseNet121", "mixed_float16", 20),
    ]


COMMANDS = (
    ("link", "driver, memory, CUDA's libraries, the link; without TensorFlow"),
    ("ordering", "the hazard tracker on real streams; without TensorFlow"),
    ("pytorch", "PyTorch's ways to save memory, if it is installed"),
    ("stock_tensorflow", "TensorFlow as it is: a failure here is none of tfswap's"),
    ("tests,verified", "tests, and a training in which all returned tensors are compared"),
    ("copies,codecs,nothing_to_swap,sweep", "copies, codecs, step times under budgets"),
    ("vgg16_12gb,resnet50_max_batch,bert_max_batch", "published cases: largest batches"),
)
"""The check in parts, each useful alone: stages, and what they are about."""


def _runs(module: str, *arguments: str) -> Callable[[Context], None]:
    """Return what imports the module in the stage's own process, and runs it."""

    def run(context: Context) -> None:
        import_module(f"benchmarks.gpu_check.{module}").run(*arguments, context)

    return run


def chosen(names: Sequence[str]) -> list[Stage]:
    """Return the stages of these names, and "machine" if one needs it; "sweep" means all sweeps.

    No names: all stages.

    Raises:
        ValueError: There is no such stage.
    """
    stages = all_stages()
    for name in names:
        if not any(_is_meant(name, stage) for stage in stages):
            known = ", ".join(stage.name for stage in stages)
            raise ValueError(f"unknown stage {name!r}: there are {known}")
    if not names:
        return stages
    meant = [stage for stage in stages if any(_is_meant(name, stage) for name in names)]
    needs_machine = any(stage.needs_tfswap for stage in meant)
    return [s for s in stages if s in meant or (needs_machine and s.name == MACHINE)]


def _is_meant(name: str, stage: Stage) -> bool:
    return stage.name == name or stage.name.startswith(f"{name}:")
