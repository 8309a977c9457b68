"""A plan in the session, and what the pass said of the graphs that it met under it."""

from __future__ import annotations

import hashlib
import itertools
import weakref
from typing import Any

from tfswap.hooks.plan_session import PlanSession, forget_optimised
from tfswap.ops.loaded_library import Library
from tfswap.plan.schema import SwapPlan

# Texts of different models differ, so that what the pass said of one is not taken for another's.
_labels: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
_label_count = itertools.count()
# What was pushed since TensorFlow was last told to forget what it had made under it, with the
# pass's last record when that was first; and of which functions it has made something.
_texts: weakref.WeakKeyDictionary[Any, dict[str, int]] = weakref.WeakKeyDictionary()
_functions: weakref.WeakKeyDictionary[Any, set[str]] = weakref.WeakKeyDictionary()
# So many texts may be of use again when a training has ended, which another one like it may be
# under, and while it goes on.
_MOST_TEXTS, _MOST_TEXTS_MEANWHILE = 4, 8


class PassSession:
    """The session of one training.

    TensorFlow keeps what it has optimised: under a text that it knows, from an earlier training of
    the same, the pass does not run again, and what it said then holds. Under many texts, that is
    many graphs, which it is told to forget.

    Args:
        lib: The library.
        key: What is trained, a model or a function; only referenced weakly.

    Attributes:
        min_bytes: Smaller tensors are not swapped.
        remembered: Paths of plan files, by the fingerprint of the graph that the pass executes them
            for if the pushed plan has no entry for it; read by the next push.
    """

    def __init__(self, lib: Library, key: Any) -> None:
        self._library = lib
        self._key = weakref.ref(key)
        self._label = _labels.setdefault(key, f"model {next(_label_count)}")
        self._serial = self._begun_serial = self._last_serial()  # records behind it hold
        self._session = PlanSession()
        self.min_bytes = SwapPlan().min_bytes
        self.remembered: dict[str, str] = {}

    def push(self, plan: SwapPlan) -> None:
        """Puts the plan in force."""
        self.min_bytes = plan.min_bytes
        self._forget_unless(_MOST_TEXTS_MEANWHILE)
        text = self._session.push(
            plan, describe=True, label=self._label, remembered=self.remembered
        )
        key = hashlib.sha256(text.encode()).hexdigest()
        trained = self._key()
        pushed = {} if trained is None else _texts.setdefault(trained, {})
        self._serial = min(self._serial, pushed.setdefault(key, self._last_serial()))

    def push_anew(self, plan: SwapPlan) -> None:
        """Likewise, under a text that nobody knows: the pass sees its graphs again."""
        self._label = f"model {next(_label_count)}"
        key = self._key()
        if key is not None:
            _labels[key] = self._label
        self.push(plan)

    @property
    def label(self) -> str:
        """The model's: the pass says what it did under it."""
        return self._label

    def records(self) -> list[dict[str, Any]]:
        """What the pass said of this training's graphs, oldest first."""
        records = self._library.pass_records()
        return [r for r in records if r["serial"] > self._serial and r["label"] == self._label]

    def is_new(self, record: dict[str, Any]) -> bool:
        """Whether the pass said so in this training, not in an earlier one of this model."""
        return bool(record["serial"] > self._begun_serial)

    def enter(self) -> bool:
        """Puts the plan in force if it is not; says whether the options under it had changed."""
        return self._session.enter()

    def leave(self) -> None:
        """Takes the plan out of the session until `enter` or `push`."""
        self._session.leave()

    def in_force(self) -> bool:
        """Whether the session still holds the plan."""
        return self._session.in_force()

    def withdraw(self) -> None:
        """Takes the plan out of the session."""
        self._session.withdraw()
        self._forget_unless(_MOST_TEXTS)

    def _forget_unless(self, most_texts: int) -> None:
        """Has TensorFlow forget what it has optimised, if that was under more texts than these."""
        key = self._key()
        if key is None:
            return
        functions = _functions.setdefault(key, set())
        functions |= {record["function"] for record in self.records()}
        if len(_texts.get(key, ())) <= most_texts:
            return
        for function in functions:
            forget_optimised(function)
        functions.clear()
        del _texts[key]

    def _last_serial(self) -> int:
        return max((r["serial"] for r in self._library.pass_records()), default=0)
