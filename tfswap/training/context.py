"""TrainingContext: what all parts of one training use."""

from __future__ import annotations

from dataclasses import dataclass

from tfswap.devices.managed_devices import ManagedDevices
from tfswap.devices.sampling import RatioSamples
from tfswap.devices.swap_options import SwapOptions
from tfswap.ops.loaded_library import Library
from tfswap.report.run_report import RunReport
from tfswap.report.training_log import TrainingLog
from tfswap.training.lossy import LossyRun


@dataclass(frozen=True)
class TrainingContext:
    """What all parts of one training use.

    Attributes:
        library: tfswap's library.
        options: The options of the training.
        devices: The devices that it runs on.
        ratios: Compression ratios of its tensors.
        lossy: The rate of lossy codecs.
        log: Prints and keeps messages.
        report: Fills in the report.
    """

    library: Library
    options: SwapOptions
    devices: ManagedDevices
    ratios: RatioSamples
    lossy: LossyRun
    log: TrainingLog
    report: RunReport
