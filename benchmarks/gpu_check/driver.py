"""NVIDIA's driver without TensorFlow: versions, and plain copies of pinned memory."""

from __future__ import annotations

import ctypes
from typing import Any

from benchmarks.gpu_check.context import Missing

_PORTABLE = 1  # CU_MEMHOSTALLOC_PORTABLE
_NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING
_PCIE_GENERATION, _PCIE_WIDTH = (
    "nvmlDeviceGetMaxPcieLinkGeneration",
    "nvmlDeviceGetMaxPcieLinkWidth",
)


class DriverError(RuntimeError):
    """The driver is missing, or refused a call."""


def the_driver() -> Driver:
    """Return the driver.

    Raises:
        Missing: There is none, or it sees no GPU.
    """
    try:
        return Driver()
    except DriverError as error:
        raise Missing(f"{error}. Install the driver, or run this where there is one.") from None


class Driver:
    """The functions of ``libcuda.so.1`` that a plain copy needs, in device 0's context."""

    def __init__(self) -> None:
        try:
            self._cuda = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            raise DriverError(f"There is no NVIDIA driver here: {error}") from None
        self.call("cuInit", 0)
        count = ctypes.c_int()
        self.call("cuDeviceGetCount", ctypes.byref(count))
        if count.value == 0:
            raise DriverError("The NVIDIA driver sees no GPU")

    def call(self, name: str, *arguments: Any) -> None:
        """Call one of the driver's functions.

        Raises:
            DriverError: It did not succeed.
        """
        result = self.result(name, *arguments)
        if result != 0:
            text = ctypes.c_char_p()
            self._cuda.cuGetErrorString(result, ctypes.byref(text))
            said = (text.value or b"no text").decode(errors="replace")
            raise DriverError(f"{name} failed: {said} (CUDA error {result})")

    def result(self, name: str, *arguments: Any) -> int:
        """Call one of the driver's functions and return its result; 0 is success."""
        return int(getattr(self._cuda, name)(*arguments))

    def module(self, image: bytes) -> ctypes.c_void_p:
        """Load kernels: PTX, or the machine code of this GPU."""
        module = ctypes.c_void_p()
        self.call("cuModuleLoadData", ctypes.byref(module), ctypes.c_char_p(image))
        return module

    def launch(self, module: ctypes.c_void_p, name: str, stream: Any, arguments: list[Any]) -> None:
        """Launch a kernel with one block of 1024 threads."""
        function = ctypes.c_void_p()
        self.call("cuModuleGetFunction", ctypes.byref(function), module, name.encode())
        pointers = (ctypes.c_void_p * len(arguments))(*(ctypes.addressof(a) for a in arguments))
        self.call("cuLaunchKernel", function, 1, 1, 1, 1024, 1, 1, 0, stream, pointers, None)

    def cuda_version(self) -> str:
        """Return the newest CUDA version that the driver supports."""
        version = ctypes.c_int()
        self.call("cuDriverGetVersion", ctypes.byref(version))
        return f"{version.value // 1000}.{version.value % 1000 // 10}"

    def name(self) -> str:
        """Return the name of device 0."""
        name = ctypes.create_string_buffer(128)
        self.call("cuDeviceGetName", name, 128, 0)
        return name.value.decode(errors="replace")

    def enter_context(self) -> None:
        """Enter device 0's primary context, which TensorFlow also uses, in this thread."""
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self.call("cuDeviceGet", ctypes.byref(device), 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.call("cuCtxSetCurrent", context)

    def used_bytes(self) -> int:
        """Return the GPU memory in use by all processes, in the current context's device."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return total.value - free.value

    def device_memory(self, size_bytes: int) -> ctypes.c_void_p:
        """Allocate memory of the GPU."""
        block = ctypes.c_void_p()
        self.call("cuMemAlloc_v2", ctypes.byref(block), ctypes.c_size_t(size_bytes))
        return block

    def pinned_memory(self, size_bytes: int) -> ctypes.c_void_p:
        """Allocate pinned memory of the host."""
        block = ctypes.c_void_p()
        self.call("cuMemHostAlloc", ctypes.byref(block), ctypes.c_size_t(size_bytes), _PORTABLE)
        return block

    def stream(self) -> ctypes.c_void_p:
        """Create a stream."""
        stream = ctypes.c_void_p()
        self.call("cuStreamCreate", ctypes.byref(stream), _NON_BLOCKING)
        return stream

    def event(self, flags: int = 0) -> ctypes.c_void_p:
        """Create an event; it has a time unless `flags` is 2."""
        event = ctypes.c_void_p()
        self.call("cuEventCreate", ctypes.byref(event), flags)
        return event

    def seconds_between(self, begin: ctypes.c_void_p, end: ctypes.c_void_p) -> float:
        """Return the time between two recorded events; wait for the second one."""
        self.call("cuEventSynchronize", end)
        milliseconds = ctypes.c_float()
        self.call("cuEventElapsedTime", ctypes.byref(milliseconds), begin, end)
        return max(milliseconds.value / 1e3, 1e-9)


def management() -> dict[str, Any]:
    """Return the driver's release and the GPU's link, from NVIDIA's management library."""
    found: dict[str, Any] = {"driver": None, "pcie_generation": None, "pcie_lanes": None}
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
        if nvml.nvmlInit_v2() != 0:
            return found
        text = ctypes.create_string_buffer(96)
        if nvml.nvmlSystemGetDriverVersion(text, 96) == 0:
            found["driver"] = text.value.decode() or None
        gpu = ctypes.c_void_p()
        if nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(gpu)) != 0 or not gpu.value:
            return found
        number = ctypes.c_uint()
        for key, name in (("pcie_generation", _PCIE_GENERATION), ("pcie_lanes", _PCIE_WIDTH)):
            if getattr(nvml, name)(gpu, ctypes.byref(number)) == 0:
                found[key] = number.value or None
    except (OSError, AttributeError):
        pass
    return found
