"""DeviceCodecs: the codecs that may encode tensors in far memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tfswap.devices.swap_options import SwapOptions
from tfswap.machine.codecs import LOSSY, NEED_BLOSC, find_blosc, usable_lossy_codecs, why_not_on_cpu
from tfswap.machine.devices import FIRST_GPU
from tfswap.machine.gpu_codec_speed import install_cached_launches
from tfswap.machine.nvcomp import INSTALL as INSTALL_NVCOMP
from tfswap.machine.nvcomp import NAMES as NVCOMP_CODECS
from tfswap.machine.nvcomp import find_nvcomp, workspace_bytes
from tfswap.ops.gpu_codecs import NAMES as GPU_CODECS
from tfswap.ops.loaded_library import Library, LibraryError
from tfswap.planning.planners.assignment import AUTO, CSWAP

# Codecs that "auto" considers; the others are slower than any link.
_CONSIDERED = ("zvc", "rle", "csr")


class DeviceCodecs:
    """Load the codecs that the options name and the devices support.

    Args:
        lib: The library.
        options: Options of the training.
        numbers: Numbers of the devices, which are all CPUs or all GPUs.
        warn: Prints and keeps a warning.
    """

    def __init__(
        self,
        lib: Library,
        options: SwapOptions,
        numbers: Sequence[int],
        warn: Callable[[str], None],
    ) -> None:
        self._library, self._options, self._numbers = lib, options, numbers
        self._warn = warn
        self._on_cpu = numbers[0] < FIRST_GPU
        self._in_use: list[str] = []  # codecs of nvCOMP

    def load_cpu(self) -> None:
        """Load the CPUs' codecs; warn if the codec of the options cannot be used."""
        codec = self._options.codec
        if self._on_cpu and any(name in NEED_BLOSC for name in self.all):
            self._library.load_blosc(str(find_blosc()))
        if self._on_cpu and codec in NVCOMP_CODECS and not self.lossless:
            self._warn_of_codec(codec, why_not_on_cpu(codec))

    def load_gpu(self) -> None:
        """Load the GPUs' codecs, including those that a given plan uses."""
        codec, plan = self._options.codec, self._options.plan
        named = {swap.codec for each in plan.functions for swap in each.swaps} if plan else set()
        problem = self._library.codec_problem(self._numbers[0])
        for name in NVCOMP_CODECS:
            if name == codec or name in named:
                fault = problem or self._use_nvcomp(name)
                if fault:
                    self._warn_of_codec(name, fault)
        for device in self._numbers:
            install_cached_launches(self._library, device, self.lossless)
        if self._options.lossy:
            self._warn("lossy=True has no effect on a GPU: all of its codecs are lossless")
        if codec not in (None, AUTO, CSWAP, *NVCOMP_CODECS, *LOSSY) and not self.lossless:
            names = ", ".join((*GPU_CODECS, *NVCOMP_CODECS))
            self._warn_of_codec(codec, problem or f"a GPU encodes by {names}")

    def _warn_of_codec(self, codec: str, problem: str) -> None:
        self._warn(f"codec={codec!r} has no effect: {problem.removeprefix('tfswap: ')}")

    def _use_nvcomp(self, codec: str) -> str:
        """Allocate a workspace for a codec on each GPU; return "" or why it cannot be used."""
        path = find_nvcomp()
        if path is None:
            return INSTALL_NVCOMP
        for device in self._numbers:
            bytes_ = workspace_bytes(self._library.memory_stats(device)["budget_bytes"])
            problem = self._library.use_codec(device, codec, path, bytes_)
            if problem:
                return problem
        self._in_use.append(codec)
        return ""

    def check(self, wait: bool = False) -> None:
        """Check that all tensors that were swapped in could be decoded.

        Args:
            wait: Whether to wait until the GPUs have finished their work.

        Raises:
            LibraryError: A tensor could not be decoded, so its values are lost.
        """
        for device in self._numbers if self._in_use else ():
            problem = self._library.take_codec_fault(device, wait)
            if problem:
                raise LibraryError(problem)

    def release(self) -> None:
        """Release the codecs. Further calls have no effect."""
        for device in self._numbers:
            self._library.release_codecs(device)

    @property
    def all(self) -> tuple[str, ...]:
        """Lossless and lossy codecs."""
        return (*self.lossless, *self.lossy)

    @property
    def lossless(self) -> tuple[str, ...]:
        """Lossless codecs that the options allow."""
        codec = self._options.codec
        if codec is None or codec in LOSSY:
            return ()
        wanted = _CONSIDERED if codec in (AUTO, CSWAP) else (codec,)
        if self._on_cpu:
            return tuple(name for name in wanted if not why_not_on_cpu(name))
        if self._library.codec_problem(self._numbers[0]):
            return ()
        return tuple(name for name in wanted if name in GPU_CODECS or name in self._in_use)

    @property
    def lossy(self) -> tuple[str, ...]:
        """Lossy codecs that the options allow."""
        return (
            usable_lossy_codecs(self._options.codec) if self._options.lossy and self._on_cpu else ()
        )

    @property
    def sampled(self) -> tuple[str, ...]:
        """Codecs whose ratios are sampled, to find dense tensors too."""
        return self.lossless or (_CONSIDERED[:1] if self.lossy else ())
