"""Run one case in this process: a training with a fault, and its outcome."""

from __future__ import annotations

import functools
import gc
import re
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.faults import happenings, subjects
from benchmarks.faults.cases import KINDS, LAZY, PLANNED, SUBJECTS, Case
from benchmarks.faults.residue import Held, left_behind
from benchmarks.faults.subjects import Subject

CORRECT, CLEAR_ERROR, WRONG, CRASH, HANG = "correct", "clear error", "wrong", "crash", "hang"
OUTCOMES = (CORRECT, CLEAR_ERROR, WRONG, CRASH, HANG)

_SHORT = r"tfswap: (the memory budget of|the device has no memory left)|Far memory is full"
_CHANGED = r"came back from far memory changed|cannot be decoded"
# Allowed errors by kind; no error is correct where there is none.
_SAID = {
    "copy-out-fails": rf"swapping out .* failed: injected fault|{_SHORT}",
    "copy-in-fails": r"swapping in .* failed: injected fault",
    "copy-throws": rf"swapping in .* failed: the host has no memory for it|{_SHORT}",
    "bit-flip": _CHANGED,
    "allocation-fails": _SHORT,
    "host-full": _SHORT,
    "disk-full": _SHORT,
    "write-error": _SHORT,
    "write-full": _SHORT,
    "read-error": r"swapping in .* failed: reading .* failed: Input/output error",
    "end-of-file": r"swapping in .* failed: reading .* it is shorter than when it was written",
    "file-bit-flip": r"swapping in .* failed: the .* are not the ones that were written",
    # An op that waits for memory of swap-outs finds none when these are cancelled.
    "cancel": rf"(?i)cancel|{_SHORT}",
    "callback-raises": r"^a callback has failed$",
    "data-raises": r"the data have ended",
    "interrupt": r"^$",
    "nested-fit": rf"another training is under way in this thread|{_SHORT}",
    "fit-in-thread": rf"another training is under way in thread|{_SHORT}",
}
_MAX_CHARACTERS = 1000
_WITH_ANOTHER = ("nested-fit", "fit-in-thread")
_STEPS_AFTER = 2
_VALIDATION = "validation"
_took_s: dict[tuple[str, str], float] = {}
_losses: dict[tuple[Any, ...], list[str]] = {}
_held_first: dict[str, Held] = {}  # in this process, since it built its models


@functools.cache
def subject(name: str) -> Subject:
    """Return a model of this process; garbage collection does not scan it again."""
    made = subjects.subject(name)
    gc.collect()
    gc.freeze()
    _held_first.clear()
    return made


def run(case: Case, folder: Path) -> dict[str, Any]:
    """Train with the fault, look for what is left, and train again.

    Args:
        case: A case of a kind that ends no process.
        folder: On a disk, for the file.

    Returns:
        outcome (of `OUTCOMES`), struck (how often the core's fault did; -1: it is none of those),
        said (the error's text) and why (it is wrong).
    """
    one = subject(case.subject)
    if case.kind in _WITH_ANOTHER:
        _other(case)
    if case.kind == "loader-processes":
        _started_loaders()
    expected = _expected(case, one)
    swap = one.swap(case.start, case.options, folder)
    before = Held.now(folder)
    first = _held_first.setdefault("", before)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        error, problem = _happen(case, one, swap, folder)
    struck = happenings.struck(case) if KINDS[case.kind].in_core else -1
    happenings.no_faults()
    said = f"{type(error).__name__}: {error}" if error is not None else ""
    outcome, why = _judged(case, one, expected, error, problem)
    error = None
    one.forget()
    del swap
    left = left_behind(before, folder, first)
    if left:
        outcome, why = WRONG, f"left behind: {left}"
    problem = _trains_on(case, one, folder)
    if problem:
        outcome, why = WRONG, f"{why}; then {problem}".strip("; ")
    return {"outcome": outcome, "struck": struck, "said": said[:_MAX_CHARACTERS], "why": why}


@functools.cache
def _started_loaders() -> None:
    """Start Keras's loaders: their leftovers then count as present from the start."""
    one = subject(SUBJECTS[0])
    one.train([], 2, _loader(one, 2), shuffle=False)


def _loader(one: Subject, steps: int) -> happenings.Batches:
    x, y = (each[: steps * one.batch] for each in one.data)
    return happenings.Batches(x, y, one.batch, steps)


def _expected(case: Case, one: Subject) -> list[str]:
    """Return losses without tfswap; with other data or callbacks, those of Keras with them."""
    steps = case.steps
    train: Callable[[], Any] | None = None
    if case.kind == "loader-processes":
        # Keras does not know the sizes of batches that do not come from arrays.
        train = lambda: one.train([], steps, _loader(one, steps), shuffle=False)  # noqa: E731
    elif case.kind == "data-raises":
        train = lambda: _train_until_data_raise(case, one, [])  # noqa: E731
    elif case.kind == "nested-fit" and case.detail == _VALIDATION:
        # It resets the mean that is logged as the loss.
        act = happenings.AtStep(case.step, lambda: _validate(one))
        train = lambda: one.train([act], steps)  # noqa: E731
    if train is None:
        return one.losses
    key = (case.subject, case.kind, steps, case.step)
    if key not in _losses:
        _caught(train)
        _losses[key] = one.last.losses
    return _losses[key]


def _train_until_data_raise(case: Case, one: Subject, callbacks: list[Any]) -> None:
    data = happenings.raising(one.data, one.batch, case.step)
    one.train(callbacks, case.steps, data, steps_per_epoch=case.steps)


def _judged(
    case: Case, one: Subject, expected: list[str], error: BaseException | None, problem: str
) -> tuple[str, str]:
    losses = one.last.losses
    if losses != expected[: len(losses)]:
        return WRONG, f"losses differ from step {_first_difference(losses, expected)} on"
    if problem:
        return WRONG, problem
    if error is None:
        if len(losses) < case.steps:
            return WRONG, f"{len(losses)} steps of {case.steps} without an error"
        return CORRECT, ""
    said = _SAID.get(case.kind)
    if isinstance(error, KeyboardInterrupt) and case.kind != "interrupt":
        return WRONG, "KeyboardInterrupt"
    # With its type: if a step is cancelled while it reads data, the text does not mention it.
    text = f"{type(error).__name__}: {error}"
    if said is None or not any(re.search(said, each) for each in (str(error), text)):
        return WRONG, f"another error than this fault's: {text}"[:2000]
    return CLEAR_ERROR, ""


def _first_difference(some: list[str], others: list[str]) -> int:
    return next(i for i, (a, b) in enumerate(zip(some, others, strict=False)) if a != b)


def _trains_on(case: Case, one: Subject, folder: Path) -> str:
    """Train in the same process under the same options; return what is wrong, or ""."""
    steps = min(_STEPS_AFTER, case.steps)
    start = PLANNED if case.start == PLANNED else LAZY
    try:
        losses = one.train([one.swap(start, case.options, folder)], steps)
    except Exception as error:
        return f"training on has failed: {type(error).__name__}: {error}"[:2000]
    return "" if losses == one.losses[:steps] else "training on has other losses"


def _caught(train: Callable[[], Any]) -> BaseException | None:
    try:
        train()
    except Exception as error:
        return error
    except KeyboardInterrupt as error:
        return error
    return None


def _happen(case: Case, one: Subject, swap: Any, folder: Path) -> tuple[BaseException | None, str]:
    """Train with the fault; return the training's error, and what else went wrong."""
    steps = case.steps
    if KINDS[case.kind].in_core:
        return _caught(lambda: one.train([happenings.core_fault(case), swap], steps)), ""
    if case.kind == "callback-raises":
        raises = happenings.Raises(case.detail, case.step)
        fit: dict[str, Any] = {}
        if "test" in case.detail:
            fit["validation_data"] = _validation(one)
        # Before or after it.
        callbacks = [raises, swap] if case.part < 0.5 else [swap, raises]
        return _caught(lambda: one.train(callbacks, steps, **fit)), ""
    if case.kind == "data-raises":
        return _caught(lambda: _train_until_data_raise(case, one, [swap])), ""
    if case.kind == "interrupt":
        return _interrupted(case, one, swap), ""
    if case.kind == "fork":
        return _fork(case, one, swap)
    if case.kind == "loader-processes":
        return _caught(lambda: one.train([swap], steps, _loader(one, steps), shuffle=False)), ""
    if case.kind == "nested-fit":
        return _nested(case, one, swap, folder)
    assert case.kind == "fit-in-thread"
    return _in_thread(case, one, swap, folder)


def _validation(one: Subject) -> tuple[Any, Any]:
    x, y = one.data
    return x[: one.batch], y[: one.batch]


def _validate(one: Subject) -> None:
    one.model.evaluate(*_validation(one), batch_size=one.batch, verbose=0)


def _other(case: Case) -> Subject:
    return subject(SUBJECTS[(SUBJECTS.index(case.subject) + 1) % len(SUBJECTS)])


def _interrupted(case: Case, one: Subject, swap: Any) -> BaseException | None:
    """Interrupt after a part of the time of an uninterrupted training."""
    key = (case.subject, case.start)
    begun_s = time.perf_counter()
    try:
        with happenings.interrupted(case.part * _took_s.get(key, 0.1 * case.steps)):
            error = _caught(lambda: one.train([swap], case.steps))
    except KeyboardInterrupt as late:  # it had just ended
        error = late
    if error is None:
        _took_s[key] = time.perf_counter() - begun_s
    return error


def _fork(case: Case, one: Subject, swap: Any) -> tuple[BaseException | None, str]:
    if case.detail == "between steps":
        act = happenings.AtStep(case.step, happenings.fork_and_wait)
        return _caught(lambda: one.train([swap, act], case.steps)), ""
    thread = happenings.InThread(happenings.fork_and_wait, 0.02 * case.part)
    act = happenings.AtStep(case.step, thread.start)
    error = _caught(lambda: one.train([swap, act], case.steps))
    thread.join()
    return error, "" if thread.error is None else str(thread.error)


def _nested(case: Case, one: Subject, swap: Any, folder: Path) -> tuple[BaseException | None, str]:
    other = _other(case)
    problems = []

    def train_other(swapped: bool) -> None:
        callbacks = [other.swap(LAZY, (), folder)] if swapped else []
        if other.train(callbacks, 2) != other.losses[:2]:
            problems.append("the training inside has other losses")

    def act() -> None:
        if case.detail == _VALIDATION:
            _validate(one)
        elif case.detail == "swapped, error kept":
            error = _caught(lambda: train_other(True))
            if error is None or "another training is under way" not in str(error):
                problems.append(f"the training inside: {error}")
        else:
            train_other(case.detail == "swapped")

    error = _caught(lambda: one.train([swap, happenings.AtStep(case.step, act)], case.steps))
    return error, "; ".join(problems)


def _in_thread(
    case: Case, one: Subject, swap: Any, folder: Path
) -> tuple[BaseException | None, str]:
    other = _other(case)
    second = other.swap(LAZY, (), folder)
    thread = happenings.InThread(lambda: other.train([second], 3))
    act = happenings.AtStep(case.step, thread.start)
    error = _caught(lambda: one.train([swap, act], case.steps))
    thread.join()
    if thread.error is not None:
        said = str(thread.error)
        return error, "" if re.search(_SAID[case.kind], said) else f"in the thread: {said}"
    right = thread.answer in (None, other.losses[:3])
    return error, "" if right else "the training in the thread has other losses"
