"""The process of one program, which runs unchanged, seeded and observed from outside."""

from __future__ import annotations

import contextlib
import io
import os
import re
import runpy
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

_SEED = 42
_ERROR_CHARACTERS = 700
# The origin of Keras 3; programs of that time import it by this name.
_FORMER_NAME = "keras_core"


def run(case: dict[str, Any]) -> dict[str, Any]:
    """Run the program of a case.

    Args:
        case: script, a path; with_tfswap, whether tfswap is imported, with options from the
            environment; batches, the limit per epoch.

    Returns:
        error (None if it ended well), numbers, weights, windows, largest_bytes (see `Recorder`),
        seconds, train_s, bytes_out and bytes_in (swapped, in all), said (by tfswap).
    """
    script = Path(case["script"]).resolve()
    swap: Any = None
    if case["with_tfswap"]:
        import tfswap as swap  # before TensorFlow's first operation
    import keras
    import tensorflow as tf

    from benchmarks.programs import datasets
    from benchmarks.programs.limits import BatchLimit
    from benchmarks.programs.record import Recorder

    sys.modules.setdefault(_FORMER_NAME, keras)
    datasets.install()
    tf.config.experimental.enable_op_determinism()
    keras.utils.set_random_seed(_SEED)
    memory = (lambda: {}) if swap is None else swap.memory_stats
    reset = (lambda: None) if swap is None else swap.reset_memory_stats
    recorder = Recorder(memory, reset)
    recorder.install()
    BatchLimit(case["batches"]).install()
    said: list[str] = []
    begun_s = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder, _heard(said):
        os.chdir(folder)
        error = _end_of(script)
        seconds = time.perf_counter() - begun_s
        os.chdir(script.parent)
    recorder.finish()
    assert swap is not None or "tfswap" not in sys.modules
    return {
        "error": error,
        "numbers": recorder.numbers,
        "weights": recorder.weights,
        "windows": recorder.windows,
        "largest_bytes": recorder.largest_bytes,
        "seconds": round(seconds, 2),
        "train_s": round(recorder.train_s, 3),
        **recorder.moved_bytes,
        "said": said,
    }


def _end_of(script: Path) -> str | None:
    """Run a script as `python` would, or its tests; return None, or the error that ended it."""
    sys.argv = [str(script)]
    sys.path.insert(0, str(script.parent))
    try:
        if has_tests_alone(script.read_text()):
            import pytest

            status = pytest.main(["-q", "-x", "-p", "no:cacheprovider", str(script)])
            return None if status == 0 else f"pytest ended with status {int(status)}"
        runpy.run_path(str(script), run_name="__main__")
    except SystemExit as ended:
        return None if not ended.code else f"it exits with {ended.code}"
    except BaseException as error:  # any error is the program's
        return reason(error)
    return None


def has_tests_alone(text: str) -> bool:
    """Return whether a script only defines tests."""
    tests = re.search(r"^(def test_|class \w+\(.*TestCase\):)", text, re.MULTILINE)
    return tests is not None and "__main__" not in text


def reason(error: BaseException) -> str:
    """Return a short error text: for an exceeded budget, the allocator's message."""
    text = str(error)
    refusal = re.search(r"tfswap: the memory budget of .*", text)
    said = refusal[0] if refusal else " ".join(text.split())
    return f"{type(error).__name__}: {said[:_ERROR_CHARACTERS]}"


@contextlib.contextmanager
def _heard(said: list[str]) -> Any:
    """Keep the output and warnings of tfswap."""
    printed = io.StringIO()

    def show(message: Any, *rest: Any, **named: Any) -> None:
        print(message, file=printed)

    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        with warnings.catch_warnings():
            warnings.showwarning = show
            yield
    said += [line for line in printed.getvalue().splitlines() if line.startswith("tfswap")]
