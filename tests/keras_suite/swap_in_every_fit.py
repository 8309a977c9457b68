"""A pytest plugin: add `tfswap.AutoSwap` to every `fit`, within the budget of the environment.

Under the budget "tight", everything that can move does, however small: plans are made for the least
budget that their step can run in, and while a `fit` runs, evictable tensors are evicted every other
millisecond. (The tests' models are so small that no budget would have that effect.)
"""

from __future__ import annotations

import contextlib
import inspect
import os
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any
from unittest import mock

BUDGET = os.environ.get("KERAS_TESTS_BUDGET")
TIGHT = "tight"
_PLENTY_BYTES = 4 << 30
_PULSE_S = 0.001
_fits: list[int] = []  # the tensors that each `fit` swapped out


def _install(budget: str) -> None:
    from keras.src.backend.tensorflow.trainer import TensorFlowTrainer

    import tfswap

    inner = TensorFlowTrainer.fit
    around = _evictions if budget == TIGHT else contextlib.nullcontext
    amount = _PLENTY_BYTES if budget == TIGHT else budget
    if budget == TIGHT:
        _move_everything()

    def fit(self: Any, *args: Any, callbacks: Any = None, **settings: Any) -> Any:
        swap = tfswap.AutoSwap(amount, verbose=0)
        if hasattr(callbacks, "append") and not isinstance(callbacks, list):
            callbacks.append(swap)  # a CallbackList
        elif isinstance(callbacks, list | tuple):
            callbacks = [*callbacks, swap]
        else:
            callbacks = [swap] if callbacks is None else [callbacks, swap]
        before = tfswap.memory_stats()["copies_out"]
        try:
            with around():
                return inner(self, *args, callbacks=callbacks, **settings)
        finally:
            after = tfswap.memory_stats()["copies_out"]
            _fits.append(after - before if after >= before else after)

    TensorFlowTrainer.fit = fit


@contextlib.contextmanager
def _evictions() -> Iterator[None]:
    """Evict what is evictable every other millisecond; allocations wait meanwhile."""
    from tfswap.ops import library

    lib = library.load()
    ended = threading.Event()

    def pulse() -> None:
        while not ended.wait(_PULSE_S):
            if lib.memory_stats(0)["budget_bytes"] == 0:
                continue  # no training is under way
            lib.set_budget(0, 1)
            lib.make_room(0)
            time.sleep(_PULSE_S)
            lib.set_budget(0, _PLENTY_BYTES)

    thread = threading.Thread(target=pulse)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        lib.set_budget(0, None)


def _move_everything() -> None:
    """Leave no graph as it is, and plan for the least budget, without a minimum size."""
    import tfswap.plan.schema as schema
    from tfswap.devices import managed_devices
    from tfswap.training.installed_plan import InstalledPlan
    from tfswap.training.step_planner import StepPlanner

    schema._MIN_BYTES = schema._MIN_BYTES_IN_SECTIONS = 0
    managed_devices.CLEARLY_FITS = 0
    planners = [m for name, m in sys.modules.items() if name.startswith("tfswap.planning.")]
    for module in planners:
        if hasattr(module, "MIN_SWAP_BYTES"):
            module.MIN_SWAP_BYTES = 0
        for function in vars(module).values():
            if not inspect.isfunction(function) or not function.__kwdefaults__:
                continue
            if "min_bytes" in function.__kwdefaults__:
                function.__kwdefaults__["min_bytes"] = 0

    begin, plan = InstalledPlan.begin, StepPlanner.plan

    def begin_with_swaps(self: InstalledPlan, *args: Any) -> None:
        self.leaves_fitting = False
        begin(self, *args)

    def plan_least(self: StepPlanner) -> Any:
        least = mock.PropertyMock(return_value=int(1.05 * self.least_budgets().swapped.bytes))
        with mock.patch.object(managed_devices.ManagedDevices, "budget_bytes", least):
            return plan(self)

    InstalledPlan.begin, StepPlanner.plan = begin_with_swaps, plan_least


def pytest_sessionfinish() -> None:
    """Append the number of fits, and of tensors that they swapped out, to a file."""
    if _fits:
        with open(os.environ["KERAS_TESTS_COUNTS"], "a", encoding="utf-8") as counts:
            counts.write(f"{len(_fits)} {sum(_fits)}\n")


if BUDGET:
    _install(BUDGET)
