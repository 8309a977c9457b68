"""AutoSwap: train under a memory budget, as a Keras callback."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import Any

import keras

from tfswap.devices.swap_options import SwapOptions, parse_options
from tfswap.jobs.share import Share
from tfswap.plan.cache import LIMIT_BYTES
from tfswap.plan.schema import SwapPlan
from tfswap.planning.planners.portfolio import PLANNING_TIME_S
from tfswap.report.summary import Report
from tfswap.training.keras_fit import KerasFit
from tfswap.training.run import TrainingRun


class AutoSwap(keras.callbacks.Callback):
    """Train within a hard device memory budget, with the same numerical results.

    AutoSwap swaps tensors between device memory and far memory: host memory, compressed host
    memory and a file. It profiles one step, plans its swaps, installs the plan without retracing
    the training function, compares the measured peak and step time with the prediction, and
    corrects the plan at most three times. Earlier steps swap on demand (demand paging), so the
    budget holds from the first step. A model that fits the budget is not swapped. `fit` restores
    all settings when it ends, also after an exception.

    An allocation that would exceed the budget waits for running copies. If they cannot free
    enough memory, the step fails with `tf.errors.ResourceExhaustedError`; its message names the
    op, the largest holders and the least budget with room for it.

    Only one training at a time can use the devices of a process. To train several functions
    under one budget, use `tfswap.Session`; to share a device among processes, use `broker`.

    Args:
        budget: Maximum device memory in use: bytes (an int, or a string such as "900MiB" or
            "6GB"), a fraction of the device's memory (0.5 or "50%"), or "auto" for 90% of what is
            available now. For a CPU, the device's memory is the cgroup limit or else the
            machine's memory. The budget applies to each device separately; a dict sets one per
            device: {"GPU:0": "6GiB", "GPU:1": 0.5}. Defaults to "auto".
        policy: Name of a planner (`tfswap.planning.planners.POLICIES`), or "auto" for the best of
            those that finish within `planning_time_s`, improved by local search. Defaults to
            "auto".
        plan: A `SwapPlan`, or the path of a saved one, to use instead of profiling. A graph that
            the plan does not match is profiled. Defaults to None.
        save_plan: Path to write the final plan to. Defaults to None.
        host_limit: Maximum host memory used as far memory, raw and encoded, in the same forms as
            `budget`. Defaults to "auto".
        link_bandwidth: Speed of an emulated link between device and host: bytes per second, or a
            string such as "12GB/s". Copies take as long as on that link. None uses the measured
            speed. Defaults to None.
        verify: Whether to checksum each buffer when it is swapped out and in. Slows training
            down. Defaults to False.
        verbose: 0 prints nothing, 1 prints progress and a summary of at most six lines, "auto"
            means 1. Defaults to "auto".
        save_profile: Path to write the profiled step to, for `tfswap simulate` and `tfswap plan`.
            Defaults to None.
        planning_time_s: Time limit of the "auto" policy's search, in seconds. Defaults to 1.
        slab: Whether to plan addresses too: the buffers of a recorded step are packed into one
            slab, and ops keep the recorded order where that needs it. Defaults to None: on a GPU,
            where the slab is one block. A CPU returns idle pages, wherever they are; there, False
            does without a slab.
        xla: What to do with a model that is compiled with ``jit_compile=True``. "auto" trains
            under XLA as long as it gets the memory that it needs, and then op by op with swaps,
            from the same batch on; on a GPU, with sections, a plan or `save_profile`, with
            ``steps_per_execution`` above 1 and for several replicas, it turns XLA off at once.
            "never" always does that. Defaults to "auto".
        workspace_limit: Largest workspace of a GPU op that also runs without one: bytes, as an
            int or string. 0 restricts convolutions to algorithms without workspace, which are
            slower and round differently (policy "m" of vDNN: Rhu et al., MICRO 2016). None leaves
            the choice to TensorFlow (vDNN's "p"). Defaults to None.
        spill_dir: Folder for a file that extends host memory, or None for no file. The file is
            unnamed and private, bypasses the page cache and is deleted when training ends,
            however it ends. GPU copies pass through 4 to 16 MiB of pinned memory, counted in
            `host_limit`. Defaults to None.
        spill_limit: Maximum size of that file: bytes, as an int or string. None allows the whole
            disk. Defaults to None.
        codec: Lossless codec for far memory. "auto" encodes a tensor where the simulator predicts
            a shorter step, "cswap" where the inequality of CSWAP (Chen et al., CLUSTER 2021)
            holds; both reconsider at the start of each epoch. A name from
            `tfswap.machine.codecs.available()` (on a GPU, from `tfswap.ops.gpu_codecs.NAMES`, and
            with nvCOMP "lz4" or "ans") encodes every tensor that it shrinks; None encodes
            nothing. Defaults to "auto".
        lossy: Whether lossy codecs may encode float32 activations that no lossless codec shrinks
            much and that only the backward pass reads again. Losses then differ from exact
            training. The fraction of bits that is kept falls from epoch to epoch (CSWAP+: Chen
            et al., TPDS 2022). `codec` selects the tensors: "auto" by simulation, "cswap" or a
            lossless name by CSWAP's inequality, a name from `tfswap.machine.codecs.LOSSY` all. A
            given plan keeps its rates. CPU devices only. Defaults to False.
        stream_weights: Whether variables (weights, optimizer state) may be swapped too: from
            their last use in a step to their first use in the next, and when nothing else can
            free memory. They are swapped in before any read, also outside of steps. "auto": if
            they would leave too little room for the rest of a step. Defaults to "auto".
        sections: Number of equal sections of the batch on which ops that treat examples
            independently run one after the other (tvDNN: Park et al., PPoPP 2018), so that no op
            needs its whole batch in memory. Sums over the batch round differently. If the number
            does not divide the batch, images are split along their rows. "auto" uses as many as
            the largest op needs to fit the budget, and more if a step would wait for swaps. None
            or 1 keeps the batch whole. Defaults to None.
        log_dir: Folder for TensorBoard logs: time, peak and traffic of each step under
            ``tfswap/``, and (with matplotlib) a picture of the plan. Defaults to None.
        broker: Socket of a broker (`tfswap broker`) that divides the device among processes: a
            path, or True for the default path. The broker sets this training's budget and may
            change it between steps; `budget` is then an upper limit, and "auto" the whole
            device. If the broker ends, training continues with its current share. None uses no
            broker. Defaults to None.
        share: What to request from the broker: a `tfswap.Share`, or a string such as
            "weight=2,minimum=1GiB". None requests weight 1 and no minimum. Defaults to None.
        plan_cache: Folder that caches plans and profiles by graph, shapes, machine and options. A
            training that finds its plan there uses it from the first step and is not profiled.
            "auto" uses the environment variable `TFSWAP_PLAN_CACHE` (empty: no cache), or else
            ``tfswap/plans`` in the user's cache folder. None uses no cache. Defaults to "auto".
        plan_cache_limit: Maximum size of that folder: bytes, as an int or string. The entries
            least recently used are removed. Defaults to 256 MiB.

    Raises:
        ValueError: An argument is invalid, or `lossy` is set and no lossy codec is usable here;
            when training begins, if the plan is lossy and `lossy` is not set.
        RuntimeError: When training begins, if another one is under way in this process.
        tfswap.LibraryError: When training begins, if the device is not tfswap's, or the file in
            `spill_dir` cannot be created.
        tfswap.BrokerError: When training begins, if there is no broker, it refuses this job, or
            it grants no share within `share.wait_s`.

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
        slab: bool | None = None,
        xla: str = "auto",
        workspace_limit: int | str | None = None,
        spill_dir: str | os.PathLike[str] | None = None,
        spill_limit: int | str | None = None,
        codec: str | None = "auto",
        lossy: bool = False,
        stream_weights: bool | str = "auto",
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
            xla=xla,
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
        """Return a callback with options that are already validated."""
        callback = cls(verbose=options.verbose)
        callback.options = options
        return callback

    @property
    def report(self) -> Report:
        """Measurements and predictions of the current or last `fit`.

        A mapping; unknown values are None. Keys:

        * `outcome`: "swapped", "fits", "bootstrap" or "no effect"; `notes`: all messages; `plan`.
        * `budget_bytes`, `unswapped_peak_bytes`, `predicted_peak_bytes`, `measured_peak_bytes`
          (the highest of all steps), `host_peak_bytes`.
        * `unswapped_step_s` (measured if the model fits; otherwise an estimate, within some 15 %:
          `step_s` less what swaps cost in the simulation, or a step under on-demand swaps less
          their waits if that is less), `predicted_step_s`, `step_s`; `predicted_wait_s`
          (the part of `predicted_step_s` spent waiting for copies) and `least_wait_s` (its lower
          bound for any plan).
        * `least_budgets`: a `LeastBudgets` (without swaps, with swaps and with sections, each with
          the op that sets it, and the floor, which no swaps go below); None for a model that
          clearly fits, unless `save_profile` is given.
        * `compiled`: whether XLA compiled the steps, which then moved nothing; `elements_leave`:
          whether what loops keep may leave on demand, also without a plan.
        * `bytes_out_per_step`, `bytes_in_per_step`, `swapped_buffers`; `recomputed_buffers` and
          `recompute_s` (predicted); `sections` of the batch; `corrections` of the plan.
        * `file_bytes_in_per_step`: bytes that the plan reads from the file, and `file_in_s`, what
          that takes at the disk's measured speed: no step under this plan is shorter.
        * `tiers`: a `TierUse` each; `lossy`: a `LossyUse`, or None if no tensor is lossy; `share`:
          a `ShareUse`, or None without a broker.
        * `addresses`: an `AddressMap` for each layout; `out_of_memory`: the error's message.

        `summary()` returns a text; `to_html(path)` writes a page, `to_png(path)` a picture,
        `to_perfetto(path)` a trace for ui.perfetto.dev. As the last expression of a notebook's
        cell, the report shows its summary and the chart of the step.
        """
        report = Report() if self._fit is None else self._fit.report
        return dataclasses.replace(report, notes=list(report.notes))

    def _repr_html_(self) -> str:
        """Return the report for notebooks; before a training, what to do."""
        if self._fit is None:
            return "<pre>tfswap: no training yet. Start one: model.fit(..., callbacks=[swap])</pre>"
        return self.report._repr_html_()

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
    def _run(self) -> TrainingRun | None:
        return None if self._fit is None else self._fit.run
