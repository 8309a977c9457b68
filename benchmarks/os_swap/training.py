"""Run one training, in a process that `benchmarks.os_swap` starts; print a JSON object.

python -m benchmarks.os_swap.training plain|tfswap MODEL BATCH IMAGE STEPS FOLDER
"""

from __future__ import annotations

import json
import resource
import sys
import time
from typing import Any

# Before the timed ones: tracing, and under tfswap the steps before its steady state, whose first
# step touches memory for the first time.
_WARM_STEPS = {"plain": 3, "tfswap": 2}
_MAX_STEPS = 80


def main(mode: str, model: str, batch: str, image: str, steps: str, folder: str) -> None:
    """Train, and print the durations of the last steps."""
    swap: Any = None
    if mode == "tfswap":
        import tfswap

        swap = tfswap.AutoSwap(budget="auto", spill_dir=folder, verbose=1)
    import keras

    from benchmarks.models import workload

    work = workload(model, int(batch), int(image))

    warm = _WARM_STEPS[mode]

    class Clock(keras.callbacks.Callback):
        """Runs after AutoSwap, and so sees the state after the step."""

        step_s: list[float] = []
        steps_before = 0

        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            self._begin_s = time.perf_counter()

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if swap is not None and tfswap.status()["trainings"][0]["phase"] != "steady":
                self.steps_before += 1
                return
            self.step_s.append(time.perf_counter() - self._begin_s)
            self.model.stop_training = len(self.step_s) == warm + int(steps)

    clock = Clock()
    work.model.fit(
        work.x,
        work.y,
        batch_size=int(batch),
        epochs=_MAX_STEPS,
        shuffle=False,
        verbose=0,
        callbacks=[clock] if swap is None else [swap, clock],
    )
    result: dict[str, Any] = {"step_s": [round(s, 4) for s in clock.step_s[warm:]]}
    if swap is not None:
        stats = tfswap.memory_stats()
        report = swap.report
        result |= {
            "budget_bytes": report.budget_bytes,
            "measured_peak_bytes": report.measured_peak_bytes,
            "unswapped_peak_bytes": report.unswapped_peak_bytes,
            "bytes_out_per_step": report.bytes_out_per_step,
            "predicted_step_s": report.predicted_step_s,
            "file_bytes": stats["far_file_peak_bytes"],
            "host_peak_bytes": report.host_peak_bytes,
            "steps_before": clock.steps_before,
        }
    result["peak_rss_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps(result))


if __name__ == "__main__":
    main(*sys.argv[1:])
