"""FirstPlans: plans of graphs that have not run yet in a training, remembered or foretold.

::

    pass meets a graph without a plan ─▶ remembered on disk? ─▶ that plan, or one of its profile
                                              │ no
                                              ▼
                                         op cost model ─▶ a timeline ─▶ a plan for the first steps
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tfswap.cost_model.model_timeline import met_profile
from tfswap.cost_model.op_costs import step_costs
from tfswap.devices.managed_devices import ManagedDevices
from tfswap.devices.swap_options import AUTO_SECTIONS, SwapOptions
from tfswap.machine.devices import FIRST_GPU
from tfswap.machine.machine import Device, cores, host_device, processor
from tfswap.machine.presets import load_machines
from tfswap.ops import library
from tfswap.ops.loaded_library import Library
from tfswap.plan.cache import PlanMemory, context_of, parse_folder
from tfswap.plan.schema import FunctionPlan, SwapPlan
from tfswap.planning.planners.assignment import FarMemoryTooSmall
from tfswap.planning.planners.decision import BudgetTooSmall
from tfswap.report.training_log import TrainingLog
from tfswap.step.graph import StepGraph
from tfswap.step.profile import Profile, kept_activations
from tfswap.training import plan_desk
from tfswap.training.pass_session import PassSession
from tfswap.training.plan_desk import Question
from tfswap.training.step_planner import StepPlanner

# Of the ops of a step that is to be foretold, so many may make something of unknown size.
_MOST_UNKNOWN = 0.05
# Kept of what is trained: of its graphs together, and of one under several budgets.
_MOST_ANSWERS, _MOST_BUDGETS = 16, 2
# What runs beside a graph's nodes (in loops, or elsewhere) is in its profile too. A file that says
# more would only take time to plan with.
_MOST_OPS_A_NODE = 64
# Of options that plans hang on.
_OF_PLANS = ("policy", "codec", "slab", "stream_weights", "workspace_limit")


@dataclasses.dataclass(frozen=True)
class Known:
    """What a graph was answered before it ran.

    Attributes:
        function: Its plan.
        profile: Of its step, as it was recorded in an earlier training; None: it was foretold.
        graph: The graph.
        was_measured: Whether the plan was: it was not made just now.
    """

    function: FunctionPlan
    profile: Profile | None
    graph: StepGraph
    was_measured: bool = False


class FirstPlans:
    """Answers the pass for one training.

    Args:
        lib: The library.
        options: Of the training.
        devices: Of the training.
        session: Whose graphs ask.
        new_planner: Makes a planner of a step.
        voice: Says things.
    """

    def __init__(
        self,
        lib: Library,
        options: SwapOptions,
        devices: ManagedDevices,
        session: PassSession,
        new_planner: Callable[[], StepPlanner],
        voice: TrainingLog,
    ) -> None:
        self._library = lib
        self._options = options
        self._devices = devices
        self._session = session
        self._new_planner = new_planner
        self._voice = voice
        folder = parse_folder(options.plan_cache)
        self._folder: Path | None = folder
        self._lock = threading.Lock()
        self._declined: set[str] = set()
        self._kept: FunctionPlan | None = None
        self._answered_bytes = 0  # the largest budget of what is in force

    @property
    def _are_wanted(self) -> bool:
        """Not where the pass chooses sections, rates fall or several devices have one graph."""
        options = self._options
        given = options.plan is not None
        several = len(self._devices.numbers) > 1
        return not (given or options.lossy or several or options.sections == AUTO_SECTIONS)

    def begin(self) -> None:
        """Before the first push: graphs without a plan ask for one from then on."""
        if self._are_wanted:
            desk = plan_desk.of_process(self._library)
            self._session.ask(desk, self._answer, self._speed())

    def expect_batch(self, examples: int) -> None:
        """Says how many examples batches have, where graphs leave it open."""
        self._session.expect_batch(examples)

    def end(self) -> None:
        """They ask no more; harmless when called again."""
        self._session.ask_no_more()

    def known(self, fingerprint: str) -> Known | None:
        """What a graph was answered for the budget that there is."""
        with self._lock:
            known: Known | None = self._session.answered.get(self._key(fingerprint))
        return known

    def look_at_budget(self) -> bool:
        """Has graphs ask again if they were answered for a larger budget than there is by now.

        Returns:
            Whether they do, after the next push.
        """
        with self._lock:
            if self._devices.suffice_for(self._answered_bytes):
                return False
            self._answered_bytes = 0
        self._session.ask_again()
        return True

    def decline(self, fingerprint: str) -> None:
        """A graph is to go by lazy swaps where the plan that is pushed has no entry for it."""
        with self._lock:
            self._declined.add(fingerprint)
        self._answer_anew(fingerprint)

    def forget(self, fingerprint: str) -> None:
        """Likewise, and a later training is not to find what there was."""
        self.decline(fingerprint)
        memory = self._memory()
        if memory is not None:
            memory.forget(fingerprint)

    def _key(self, fingerprint: str) -> tuple[str, int]:
        return fingerprint, self._devices.budget_bytes

    def _answer_anew(self, fingerprint: str) -> None:
        with self._lock:
            answered = self._session.answered
            for key in [key for key in answered if key[0] == fingerprint]:
                del answered[key]
        self._session.ask_again()

    def keep(self, profile: Profile, function: FunctionPlan, budget_bytes: int) -> None:
        """Remembers a plan that was measured to be as foretold.

        Args:
            profile: Of its step.
            function: The plan.
            budget_bytes: That it was made for.
        """
        memory = self._memory()
        if memory is None or not self._are_wanted or not (function.swaps or function.recomputes):
            return
        known = self.known(function.fingerprint)
        if function == self._kept or (known is not None and function == known.function):
            return
        self._kept = function
        self._answer_anew(function.fingerprint)
        try:
            memory.keep(profile, function, budget_bytes, self._devices.link.machine())
        except (OSError, ValueError) as error:
            self._voice.note(f"this plan is not remembered: {error}")

    def _memory(self) -> PlanMemory | None:
        if self._folder is None:
            return None
        return PlanMemory(self._folder, self._context(), self._options.plan_cache_limit)

    def _context(self) -> str:
        from tensorflow import config

        from tfswap._version import __version__

        options = {name: getattr(self._options, name) for name in _OF_PLANS}
        threads = config.threading
        return context_of(
            {
                **options,
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
        if not self._devices.on_cpu:
            return str(_gpu_details(self._devices.device).get("device_name", "GPU"))
        return processor()

    def _device(self) -> Device | None:
        """What the planned device reaches; None: nobody knows."""
        if self._devices.on_cpu:
            return host_device()
        details = _gpu_details(self._devices.device)
        return gpu_like(details.get("device_name", ""), details.get("compute_capability"))

    def _speed(self) -> tuple[float, float, float]:
        device = self._device()
        if device is None:
            return (0.0, 0.0, 0.0)
        products_per_s = device.product_ops_per_s * device.efficiency
        return (device.ops_per_s, products_per_s, device.bytes_per_s)

    # In a thread of the desk's.

    def _answer(self, question: Question) -> SwapPlan | None:
        key = self._key(question.fingerprint)
        with self._lock:
            known: Known | None = self._session.answered.get(key)
            if question.fingerprint in self._declined:
                return None
        if known is None:
            try:
                known = self._remembered(question) or self._foretold(question)
            except Exception as error:  # lazy swaps do without: no reason to end a training
                self._voice.note(
                    f"there is no plan for the first step ({type(error).__name__}: {error}): it "
                    "goes by lazy swaps"
                )
        if known is None:
            return None
        key = self._key(question.fingerprint)  # a broker may have given more meanwhile
        with self._lock:
            answered = self._session.answered
            answered[key] = known
            of_graph = [each for each in answered if each[0] == question.fingerprint]
            for oldest in (*of_graph[:-_MOST_BUDGETS], *list(answered)[:-_MOST_ANSWERS]):
                answered.pop(oldest, None)
            self._answered_bytes = max(self._answered_bytes, key[1])
        return SwapPlan(functions=(dataclasses.replace(known.function, layouts=()),))

    def _remembered(self, question: Question) -> Known | None:
        memory = self._memory()
        if memory is None:
            return None
        budget_bytes = self._devices.budget_bytes
        found = memory.find(question.fingerprint, budget_bytes, self._devices.link.machine())
        if found is None:
            return None
        graph = StepGraph.parse(question.description)
        try:
            ops = len(found.profile.timeline.op_names)
            if ops > _MOST_OPS_A_NODE * len(graph.nodes):
                raise ValueError(f"the profile has {ops} ops, the graph {len(graph.nodes)} nodes")
            activations = kept_activations(found.profile.timeline.absences, graph)
            profile = dataclasses.replace(found.profile, activations=activations)
            function = self._new_planner().take_up(profile, graph, found.function)
        except (BudgetTooSmall, FarMemoryTooSmall):
            return None
        except (ValueError, KeyError, IndexError, OverflowError):
            memory.forget(question.fingerprint)  # it is of another graph after all
            return None
        if not (function.swaps or function.recomputes):
            return None  # it fits; should it not, lazy swaps see to that
        return Known(function, profile, graph, was_measured=found.function is not None)

    def _foretold(self, question: Question) -> Known | None:
        device = self._device()
        if not question.costs or device is None:
            return None
        try:
            costs = step_costs(question.costs, question.description, _MOST_UNKNOWN)
        except ValueError:
            return None  # loops, sizes that hang on values
        profile = met_profile(
            costs,
            question.fingerprint,
            self._devices.load_bytes(),
            device,
            self._session.min_bytes,
        )
        if self._devices.shared is not None:
            self._devices.shared.expect(profile.timeline)
        try:
            function = self._new_planner().foretell(profile, costs.graph)
        except FarMemoryTooSmall:
            return None
        return None if function is None else Known(function, None, costs.graph)


def gpu_like(name: str, capability: tuple[int, int] | None) -> Device | None:
    """The fastest known GPU of that name, or of that architecture; None if there is none.

    Args:
        name: "NVIDIA H100 80GB HBM3", say.
        capability: Of CUDA: (9, 0).
    """
    by_name = {key: each.device for key, each in load_machines().items() if each.device}
    words = set(name.lower().replace("-", " ").split())
    for key, device in by_name.items():
        if set(key.split("-")) <= words:
            return device
    generations = {"p100": 6, "v100": 7, "a100": 8, "h100": 9}
    for key, generation in generations.items():
        if capability is not None and capability[0] == generation:
            return by_name.get(key)
    return None


def _gpu_details(device: int) -> dict[str, Any]:
    import tensorflow as tf

    gpus = tf.config.list_physical_devices("GPU")
    number = device - FIRST_GPU
    if not 0 <= number < len(gpus):
        return {}
    return dict(tf.config.experimental.get_device_details(gpus[number]))
