"""RememberedPlans: plans of earlier trainings that a training begins with.

::

    begin:       plan files that fit ─▶ their paths, in the plan's text ─▶ the pass executes them
    first step:  its graph ran under such a plan ─▶ its profile is read, the plan is measured
                 its profile alone is on disk    ─▶ a plan is made of that
"""

from __future__ import annotations

import dataclasses
import os
from typing import Any

from tfswap.devices.swap_options import AUTO_SECTIONS
from tfswap.machine.devices import FIRST_GPU
from tfswap.machine.machine import cores, processor
from tfswap.ops import library
from tfswap.plan.cache import PlanMemory, RememberedPlan, context_of, parse_folder
from tfswap.plan.schema import FunctionPlan, SwapPlan
from tfswap.step.graph import StepGraph
from tfswap.step.profile import Profile, kept_activations
from tfswap.training.context import TrainingContext
from tfswap.training.installed_plan import InstalledPlan
from tfswap.training.lossy import check_plan

# A profile also has ops that are not nodes of the graph (in loops, for example). Files with more
# ops than this would only take time to plan.
_MAX_OPS_A_NODE = 64
# Options that plans depend on.
_OF_PLANS = ("policy", "codec", "slab", "workspace_limit")


class RememberedPlans:
    """The plan cache of one training.

    Args:
        context: The training.
        plan: Offers the plans to the pass.
    """

    def __init__(self, context: TrainingContext, plan: InstalledPlan) -> None:
        self._context = context
        self._options = context.options
        self._devices = context.devices
        self._plan = plan
        self._folder = parse_folder(context.options.plan_cache)
        self._offered: dict[str, RememberedPlan] = {}
        self._kept: FunctionPlan | None = None

    def begin(self) -> None:
        """Offer the pass the plans that fit the budget and the link, from the next push on."""
        memory = self._memory()
        if memory is None:
            return
        found = memory.plans(self._devices.budget_bytes, self._devices.link.machine())
        for fingerprint, plan in found.items():
            try:
                check_plan(SwapPlan((plan.function,)), lossy=False)
            except ValueError:
                memory.forget(fingerprint)
                continue
            self._offered[fingerprint] = plan
        self._offer()

    def plan(self, fingerprint: str) -> RememberedPlan | None:
        """Return the plan that the pass is offered for a graph."""
        return self._offered.get(fingerprint)

    def profile(self, fingerprint: str, graph: StepGraph) -> Profile | None:
        """Return the profile of a graph's step, if there is a valid one on disk."""
        memory = self._memory()
        profile = None if memory is None else memory.profile(fingerprint)
        if memory is None or profile is None:
            return None
        try:
            ops = len(profile.timeline.op_names)
            if ops > _MAX_OPS_A_NODE * len(graph.nodes):
                raise ValueError(f"the profile has {ops} ops, the graph {len(graph.nodes)} nodes")
            activations = kept_activations(profile.timeline.absences, graph)
        except (ValueError, KeyError, IndexError, OverflowError):
            self.forget(fingerprint)
            return None
        return dataclasses.replace(profile, activations=activations)

    def decline(self, fingerprint: str) -> None:
        """Stop offering a graph's plan, from the next push on."""
        if self._offered.pop(fingerprint, None) is not None:
            self._offer()

    def forget(self, fingerprint: str) -> None:
        """Stop offering a graph's plan, and delete it and its profile."""
        self.decline(fingerprint)
        memory = self._memory()
        if memory is not None:
            memory.forget(fingerprint)

    def budget_changed(self) -> None:
        """Stop offering plans that the budget no longer suffices for, from the next push on."""
        for fingerprint, plan in list(self._offered.items()):
            if not self._devices.covers(plan.budget_bytes):
                self.decline(fingerprint)

    def keep(self, profile: Profile, function: FunctionPlan, budget_bytes: int) -> None:
        """Remember a plan whose measured peak was as predicted.

        Args:
            profile: The profile that it was made of.
            function: The plan.
            budget_bytes: The budget that it was made for.
        """
        memory = self._memory()
        if memory is None or not function.moves:
            return
        known = self._offered.get(function.fingerprint)
        if known is not None and function == known.function:
            _mark_used(known)
            return
        if function == self._kept:
            return
        self._kept = function
        self.decline(function.fingerprint)  # its file is about to be replaced
        try:
            memory.keep(profile, function, budget_bytes, self._devices.link.machine())
        except (OSError, ValueError) as error:
            self._context.log.note(f"this plan is not remembered: {error}")

    def _offer(self) -> None:
        self._plan.remembered = {
            fingerprint: str(plan.path) for fingerprint, plan in self._offered.items()
        }

    def _memory(self) -> PlanMemory | None:
        """Return the cache, None if this training does not use it.

        It does not where the pass chooses sections, rates of lossy codecs fall or several devices
        run one graph.
        """
        options = self._options
        if self._folder is None or options.plan is not None or options.lossy:
            return None
        if len(self._devices.numbers) > 1 or options.sections == AUTO_SECTIONS:
            return None
        return PlanMemory(self._folder.absolute(), self._cache_context(), options.plan_cache_limit)

    def _cache_context(self) -> str:
        from tensorflow import config

        from tfswap._version import __version__

        options = {name: getattr(self._options, name) for name in _OF_PLANS}
        threads = config.threading
        return context_of(
            {
                **options,
                "stream_weights": self._devices.weights_may_leave,
                "file": self._options.spill_dir is not None,
                "tfswap": __version__,
                "tensorflow": library.tensorflow_version(),
                "device": self._device_name(),
                "cores": cores(),
                "inter_op": threads.get_inter_op_parallelism_threads(),
                "intra_op": threads.get_intra_op_parallelism_threads(),
            }
        )

    def _device_name(self) -> str:
        if self._devices.on_cpu:
            return processor()
        import tensorflow as tf

        gpus = tf.config.list_physical_devices("GPU")
        number = self._devices.device - FIRST_GPU
        if not 0 <= number < len(gpus):
            return "GPU"
        details: dict[str, Any] = tf.config.experimental.get_device_details(gpus[number])
        return str(details.get("device_name", "GPU"))


def _mark_used(plan: RememberedPlan) -> None:
    """Keep a file longer than those that are not used."""
    try:
        os.utime(plan.path)
    except FileNotFoundError:
        pass  # another process has deleted it
