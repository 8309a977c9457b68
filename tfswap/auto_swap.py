"""AutoSwap: training under a memory budget, as a Keras callback."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import Any

import keras

from tfswap.jobs.share import Share
from tfswap.plan.cache import LIMIT_BYTES
from tfswap.plan.schema import SwapPlan
from tfswap.planning.planners.portfolio import PLANNING_TIME_S
from tfswap.report.summary import Report
from tfswap.training.keras_fit import KerasFit
from tfswap.training.swap_options import SwapOptions, parse_options
from tfswap.training.swap_run import SwapRun


class AutoSwap(keras.callbacks.Callback):
    """Trains inside a hard budget of device memory, with the same numbers.

    The first steps run under lazy swaps made from the graph alone, so the budget holds from the
    first step on. Then one step is profiled, a plan is made and pushed into the session (the
    training function is not traced again), its peak and step time are checked against the
    prediction, and the plan is corrected at most three times. If the model fits the budget
    as it is, nothing is moved. Last, addresses are planned, and a step's allocations become
    look-ups. At the end of `fit`, also after an exception, everything is as it was before.

    An allocation that would exceed the budget waits for copies in flight; if nothing can free
    enough memory, the step fails with `tf.errors.ResourceExhaustedError`, which names the op, the
    largest holders and the smallest budget that could work.

    Args:
        budget: Cap on the device's memory: bytes (an int, or a text such as "900MiB" or "6GB"), a
            fraction of the device's memory (0.5 or "50%"; on a CPU of this process's cgroup limit
            or the machine's memory), or "auto" for 90 % of what is available now. Where there are
            several devices, each has it for itself; or one by name: {"GPU:0": "6GiB", "GPU:1":
            0.5}. Defaults to "auto".
        policy: Name of a planner (`tfswap.planning.planners.POLICIES`), or "auto" for the best of
            those that plan within `planning_time_s`, improved by search. Defaults to "auto".
        plan: A `SwapPlan`, or the path of a saved one, to use instead of profiling. A graph that
            it does not fit is profiled as if there were none. Defaults to None.
        save_plan: Path to write the final plan to. Defaults to None.
        save_profile: Path to write the profiled step to, for `tfswap simulate` and `tfswap plan`.
            Defaults to None.
        planning_time_s: How long the "auto" policy may search for a plan, in seconds; more is never
            worse. Defaults to 1.
        host_limit: Cap on far memory in host memory (as it is, and encoded), in the same forms as
            `budget`. Defaults to "auto".
        spill_dir: Folder on a disk for a file that holds what host memory has no room for. It has
            no name there, is readable by nobody else, does not go through the page cache, and is
            gone when training ends, however it ends. A GPU's copies go there through pinned memory,
            4 to 16 MiB of `host_limit`. None for no file. Defaults to None.
        spill_limit: Cap on that file, as an int or text of bytes. None for all of the disk.
        codec: What far memory may be encoded by: "auto" encodes a tensor where that shortens the
            step in the simulator, "cswap" where the inequality of CSWAP says so, a name of
            `tfswap.codecs.available()` (on a GPU one of `tfswap.ops.gpu_codecs.NAMES`, with nvCOMP
            also "lz4" and "ans") everything that it makes smaller, None nothing. All of them are
            lossless; the first two look again when epochs begin. Defaults to "auto".
        lossy: Whether far memory may also keep some tensors with part of their bits, so that losses
            differ from those of exact training: float32 activations that no lossless codec makes
            much smaller and that only the backward part reads again; never weights, gradients,
            integers or masks. The part, one for all, falls from the largest that pays in the first
            epoch of `fit` to the one at which no op waits in the last (CSWAP+). Which tensors: with
            `codec` "auto", where that shortens the step in the simulator; with "cswap" or a
            lossless name, where the inequality of CSWAP says so; with a lossy name (of
            `tfswap.codecs.LOSSY`), all, and nothing else is encoded. A given plan keeps its rates.
            Without a GPU only. Defaults to False.
        link_bandwidth: Speed of an emulated link between device and host in bytes per second (or
            "12GB/s"): copies take as long as they would there. None for the machine's own speed.
        workspace_limit: Largest workspace for an op on a GPU that can do without one, as an int or
            text of bytes: 0 leaves convolutions to the algorithms that need none, which are slower
            and round otherwise (vDNN's "m", for memory). None leaves the choice to TensorFlow (its
            "p", for performance). Defaults to None.
        slab: Whether addresses are planned too: what a step allocates is recorded and packed into
            one slab of memory, which then stays, and the step's ops keep the recorded order where
            that needs it. Defaults to True.
        stream_weights: Whether values of variables (weights, an optimizer's state) may leave too:
            in training from their last use in a step to the first one in the next, as the plan
            says, and when nothing else can make room. They come back before an op looks at them, in
            a step or outside of it. What a step changes is copied out again in each step. Defaults
            to False.
        sections: Of the batch: ops that compute each example by itself work on so many equal parts
            of it, one after the other (tvDNN: Park et al., PPoPP 2018), so that no op has all of
            its inputs and outputs there at once. Sums over the batch are rounded otherwise. A
            batch that is no multiple of it has its images cut along their rows; an epoch's smaller
            last one is cut into sections no larger. "auto": as many as the largest op needs to have
            room within the budget, more where a step would wait for swaps. None or 1: the whole
            batch. Defaults to None.
        log_dir: Folder for TensorBoard: time, peak and traffic of each step, under ``tfswap/``, and
            a picture of the plan (with matplotlib). Defaults to None.
        broker: Socket of a broker (`tfswap broker`) that divides the device among processes: a
            path, or True for the default one. It says what this training may hold, from the first
            step on, and may say otherwise between steps; `budget` is then the most that is of use,
            and "auto" all of the device. If the broker ends, training goes on with what it has.
            None for a device of one's own. Defaults to None.
        share: What to ask the broker for: a `tfswap.Share`, or a text such as
            "weight=2,minimum=1GiB"; only with `broker`. None: a weight of 1, no minimum. Defaults
            to None.
        plan_cache: Folder in which plans are remembered, with the profiled steps that they are of,
            by graph, shapes, machine and options: a training that finds its own there goes by it
            from the first step on, and is not profiled. "auto": the one that the environment's
            `TFSWAP_PLAN_CACHE` names (if that is empty, none), else ``tfswap/plans`` in the user's
            cache folder. None: none. Defaults to "auto".
        plan_cache_limit: Cap on all that is in that folder, as an int or text of bytes: what was
            not used longest goes. Defaults to 256 MiB.
        verify: Whether to checksum each buffer when it leaves and when it returns. Slower.
        verbose: 0 for silence, 1 for progress and a summary of at most six lines, "auto" for 1.

    Raises:
        ValueError: An argument is none of what is allowed; `lossy`, and no lossy codec can be used
            here; when training begins, a plan that keeps tensors lossily without `lossy`.
        RuntimeError: When training begins, if another one is under way in this process.
        tfswap.LibraryError: When training begins, if the device is not tfswap's, or if there can be
            no file in `spill_dir`.
        tfswap.BrokerError: When training begins, if there is no broker, it refuses the job, or has
            no share for it within `share.wait_s`.

    Example:
    >>> import tfswap, keras, numpy as np
    >>> model = keras.Sequential([keras.layers.Dense(4)])
    >>> model.compile("sgd", "mse")
    >>> history = model.fit(np.ones((8, 4)), np.ones((8, 4)), verbose=0,
    ...                     callbacks=[tfswap.AutoSwap(budget="200MiB", verbose=0)])
    """

    def __init__(
        self,
        budget: int | float | str | Mapping[str, int | float | str] = "auto",
        policy: str = "auto",
        plan: SwapPlan | str | os.PathLike[str] | None = None,
        save_plan: str | os.PathLike[str] | None = None,
        host_limit: int | float | str = "auto",
        link_bandwidth: int | float | str | None = None,
        verify: bool = False,
        verbose: int | str = "auto",
        *,
        save_profile: str | os.PathLike[str] | None = None,
        planning_time_s: float = PLANNING_TIME_S,
        slab: bool = True,
        workspace_limit: int | str | None = None,
        spill_dir: str | os.PathLike[str] | None = None,
        spill_limit: int | str | None = None,
        codec: str | None = "auto",
        lossy: bool = False,
        stream_weights: bool = False,
        sections: int | str | None = None,
        log_dir: str | os.PathLike[str] | None = None,
        broker: bool | str | os.PathLike[str] | None = None,
        share: Share | str | None = None,
        plan_cache: str | os.PathLike[str] | None = "auto",
        plan_cache_limit: int | str = LIMIT_BYTES,
    ) -> None:
        super().__init__()
        self.options = parse_options(
            budget=budget,
            policy=policy,
            plan=plan,
            save_plan=save_plan,
            host_limit=host_limit,
            link_bandwidth=link_bandwidth,
            verify=verify,
            verbose=verbose,
            save_profile=save_profile,
            planning_time_s=planning_time_s,
            slab=slab,
            workspace_limit=workspace_limit,
            spill_dir=spill_dir,
            spill_limit=spill_limit,
            codec=codec,
            lossy=lossy,
            stream_weights=stream_weights,
            sections=sections,
            log_dir=log_dir,
            broker=broker,
            share=share,
            plan_cache=plan_cache,
            plan_cache_limit=plan_cache_limit,
        )
        self._fit: KerasFit | None = None

    @classmethod
    def of(cls, options: SwapOptions) -> AutoSwap:
        """A callback with options that have been checked."""
        callback = cls(verbose=options.verbose)
        callback.options = options
        return callback

    @property
    def report(self) -> Report:
        """What was measured and foretold in the current or last `fit`.

        Keys: `outcome` ("swapped", "fits", "bootstrap", "no effect"), `budget_bytes`,
        `unswapped_peak_bytes`, `predicted_peak_bytes`, `measured_peak_bytes` (highest of all
        steps), `unswapped_step_s`, `predicted_step_s`, `predicted_wait_s` (of it, for copies),
        `least_wait_s` (no plan waits less), `least_budgets` (a `LeastBudgets`: without swaps, with
        them and with sections, each with the op that sets it), `step_s`, `bytes_out_per_step`,
        `bytes_in_per_step`, `swapped_buffers`, `recomputed_buffers` (made again instead),
        `recompute_s` (what that takes, foretold), `sections` (of the batch), `host_peak_bytes`,
        `tiers` (a `TierUse` each), `lossy` (a `LossyUse`: how many tensors are kept lossily, by
        which rate, and how far off they were; None if none is), `share` (a `ShareUse`: what a
        broker gives; None without one), `corrections`, `plan`,
        `addresses` (an `AddressMap` for each layout), `out_of_memory` (what the error said) and
        `notes` (everything that was said). What is not known is None. `summary()` is a text;
        `to_html(path)` writes a page, `to_png(path)` a picture, `to_perfetto(path)` a trace for
        ui.perfetto.dev.
        """
        report = Report() if self._fit is None else self._fit.report
        return dataclasses.replace(report, notes=list(report.notes))

    def on_train_begin(self, logs: Any = None) -> None:
        self._fit = KerasFit(self.options, self.model, (self.params or {}).get("epochs"))
        self._fit.begin()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if self._run is not None:
            self._run.epoch_begins(epoch)

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if self._run is not None:
            self._run.step_begins()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if self._run is not None:
            self._run.step_ended()

    def on_test_batch_begin(self, batch: int, logs: Any = None) -> None:
        if self._run is not None:
            self._run.test_begins()

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        if self._run is not None:
            self._run.test_ended()

    def on_train_end(self, logs: Any = None) -> None:
        if self._fit is not None:
            self._fit.finish()

    @property
    def _run(self) -> SwapRun | None:
        return None if self._fit is None else self._fit.run
