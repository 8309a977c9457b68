"""InstalledPlan: the plan of one training, in the session's config and with its addresses."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import weakref
from collections.abc import Iterable, Mapping
from typing import Any

from tfswap.hooks.plan_session import PlanSession, forget_optimised
from tfswap.ops import library
from tfswap.plan.renaming import renamed
from tfswap.plan.schema import FunctionPlan, SwapPlan
from tfswap.plan.slots import slots_to_text
from tfswap.step.graph import StepGraph
from tfswap.training.context import TrainingContext

# The texts of different models differ, so that records of one are not taken for another's.
_labels: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
_label_count = itertools.count()
# Hashes of the texts that were pushed since TensorFlow last forgot what it had optimised under
# them, each with the serial of the pass's last record before; and the functions that it optimised.
_texts: weakref.WeakKeyDictionary[Any, dict[str, int]] = weakref.WeakKeyDictionary()
_functions: weakref.WeakKeyDictionary[Any, set[str]] = weakref.WeakKeyDictionary()
# Number of texts whose optimised graphs may be used again: by a later training of the same model,
# and by this one.
_MAX_TEXTS, _MAX_TEXTS_MEANWHILE = 4, 8


class InstalledPlan:
    """The plan that the pass, the codecs and the allocator execute.

    TensorFlow keeps what it has optimised: under a text that it knows, from an earlier training of
    the same model, the pass does not run again and its earlier records are valid. Under many texts
    that is many graphs, which are then removed from TensorFlow.

    Args:
        context: The training.
        key: The model or function that is trained; only referenced weakly.

    Attributes:
        plan: The plan. Fields that were only noted are active from the next `push` on.
        remembered: Paths of plan files, by the fingerprint of the graph that the pass executes them
            for if the pushed plan has no entry for it; read by the next push.
        leaves_fitting: Whether graphs that clearly fit the budget may be left as they are.
        examples: The most examples of a batch whose size is not known before the step; 0: unknown.
    """

    def __init__(self, context: TrainingContext, key: Any) -> None:
        self._context = context
        self._key = weakref.ref(key)
        self._label = _labels.setdefault(key, f"model {next(_label_count)}")
        self._serial = self._begun_serial = self._last_serial()  # later records are valid
        self._session = PlanSession()
        self.plan = SwapPlan()
        self.remembered: dict[str, str] = {}
        self.leaves_fitting = True
        self.examples = 0

    # The plan

    def begin(self, given: SwapPlan, sections: int, chooses: bool) -> None:
        """Install a given plan, or on-demand swaps.

        Args:
            given: The given plan; without functions, none was given.
            sections: Number of sections of the batch, if no plan was given.
            chooses: Whether the pass chooses it for graphs without an entry.
        """
        plan = SwapPlan(
            functions=given.functions,
            budget_bytes=self._context.devices.budget_bytes,
            policy=self._context.options.policy,
            unmatched="bootstrap",
            tensorflow=library.tensorflow_version() or "",
            batch=given.batch,
            chooses=chooses,
            stream_weights=self._context.devices.weights_may_leave,
        )
        self.push(plan.in_sections(given.sections if given.functions else sections))
        devices = self._context.devices
        free_bytes = devices.fitting_bytes - devices.load_bytes()
        if any(r["outcome"] == "left" and r["most_bytes"] > free_bytes for r in self.records()):
            self.push_with_new_label()  # it fit in an earlier training, when less was in use
        self.install_layouts()

    @property
    def leaves_unprofiled(self) -> bool:
        """Whether graphs that clearly fit are left before they are profiled."""
        return self.leaves_fitting and self._context.options.save_profile is None

    @property
    def may_lose_order(self) -> bool:
        """Whether graphs that were measured under the pass's order edges may lose them.

        Where weights are streamed, all reads of variables, and what is computed from these alone,
        would then begin with the step.
        """
        return not self.plan.stream_weights

    def note(self, **changes: Any) -> None:
        """Change fields of the plan; graphs are not optimised again for that."""
        self.plan = dataclasses.replace(self.plan, **changes)

    def push(self, plan: SwapPlan) -> None:
        """Install a plan."""
        self.plan = plan
        self._context.lossy.adopt(plan)
        self._forget_unless(_MAX_TEXTS_MEANWHILE)
        text = self._session.push(
            plan,
            describe=True,
            label=self._label,
            remembered=dict(sorted(self.remembered.items())),
            leaves_fitting=self.leaves_unprofiled,
            examples=self.examples,
        )
        key = hashlib.sha256(text.encode()).hexdigest()
        trained = self._key()
        pushed = {} if trained is None else _texts.setdefault(trained, {})
        self._serial = min(self._serial, pushed.setdefault(key, self._last_serial()))

    def push_function(self, function: FunctionPlan) -> None:
        """Install the plan of one graph."""
        self.push(self.plan.with_function(function))
        self._context.devices.prepare_far_memory(function)

    def push_with_new_label(self) -> None:
        """Install the plan under a new text, so that the pass sees its graphs again."""
        self._label = f"model {next(_label_count)}"
        key = self._key()
        if key is not None:
            _labels[key] = self._label
        self.push(self.plan)

    def split(self, sections: int, examples: int) -> None:
        """Install on-demand swaps on another number of sections of the batch."""
        plan = dataclasses.replace(self.plan, functions=(), chooses=False, batch=examples)
        self.push(plan.in_sections(sections))

    def rename(self, records: Iterable[Mapping[str, Any]]) -> bool:
        """Install the plan for a graph that has other node names, if there is one.

        A function has other names when it is loaded from a SavedModel.

        Args:
            records: The pass's records of the graphs.
        """
        for record in records:
            for function in self.plan.functions:
                if not function.portable or function.portable != record["portable"]:
                    continue
                graph = StepGraph.parse(self._context.library.describe(record["fingerprint"]))
                found = renamed(function, record["fingerprint"], graph.nodes)
                if found is not None:
                    self.push_function(found)
                    self.install_layouts()
                    return True
        return False

    def function(self, fingerprint: str) -> FunctionPlan | None:
        """Return the plan of a graph, if there is one."""
        return self.plan.function(fingerprint)

    def save(self) -> None:
        """Write the plan to the file that the options name."""
        if self._context.options.save_plan is not None:
            self.plan.save(self._context.options.save_plan)

    # Addresses

    def has_layout(self, fingerprint: str) -> bool:
        """Return whether addresses of a graph are planned."""
        function = self.plan.function(fingerprint)
        return function is not None and bool(function.layouts)

    def install_layouts(self) -> None:
        """Make the device's allocator use the planned addresses."""
        for function in self.plan.functions:
            if not any(function.layouts) or self._context.options.slab is False:
                continue
            try:
                self._context.library.install_layout(
                    self._context.devices.device,
                    function.fingerprint,
                    slots_to_text(function.layouts),
                )
            except ValueError as error:
                self._context.log.warn(f"addresses are not planned: {error}")

    def forget_layouts(self, fingerprint: str = "") -> None:
        """Remove planned addresses without a push.

        Args:
            fingerprint: Fingerprint of one graph; "" removes those of all graphs.
        """
        functions = []
        for function in self.plan.functions:
            if function.layouts and fingerprint in ("", function.fingerprint):
                device = self._context.devices.device
                self._context.library.remove_layout(device, function.fingerprint)
                function = dataclasses.replace(function, layouts=())
            functions.append(function)
        self.note(functions=tuple(functions))

    # The session

    @property
    def label(self) -> str:
        """The label under which the pass records the training's graphs."""
        return self._label

    def records(self) -> list[dict[str, Any]]:
        """Return the pass's records of this training's graphs, oldest first."""
        records = self._context.library.pass_records()
        return [r for r in records if r["serial"] > self._serial and r["label"] == self._label]

    def is_new(self, record: Mapping[str, Any]) -> bool:
        """Return whether a record was made in this training, not in an earlier one."""
        return bool(record["serial"] > self._begun_serial)

    def enter(self) -> bool:
        """Install the plan if it is not installed; return whether the user's options changed."""
        return self._session.enter()

    def leave(self) -> None:
        """Take the plan out of the session until `enter` or `push`."""
        self._session.leave()

    def is_installed(self) -> bool:
        """Return whether the session still holds the plan."""
        return self._session.is_installed()

    def withdraw(self) -> None:
        """Take the plan out of the session."""
        self._session.withdraw()
        self._forget_unless(_MAX_TEXTS)

    def _forget_unless(self, max_texts: int) -> None:
        """Make TensorFlow forget its optimised graphs if there were more texts than these."""
        key = self._key()
        if key is None:
            return
        functions = _functions.setdefault(key, set())
        functions |= {record["function"] for record in self.records()}
        if len(_texts.get(key, ())) <= max_texts:
            return
        for function in functions:
            forget_optimised(function)
        functions.clear()
        del _texts[key]

    def _last_serial(self) -> int:
        records = self._context.library.pass_records()
        return max((record["serial"] for record in records), default=0)
