"""A GPU's codecs one by one, on plain addresses: for benchmarks and tests."""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from tfswap.ops import library
from tfswap.ops.loaded_library import LibraryError
from tfswap.ops.signatures import take_text

NAMES = ("zvc", "rle", "csr")
"""Kernels of tfswap's."""
ELEMENT_BYTES = (4, 2)

_ADDRESS, _BYTES, _TEXT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_char_p
_LAUNCH = [ctypes.c_void_p, ctypes.c_int, ctypes.c_int]
_SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "make": (ctypes.c_void_p, [_ADDRESS, _TEXT, ctypes.POINTER(ctypes.c_void_p)]),
    "destroy": (None, [ctypes.c_void_p]),
    "use_nvcomp": (
        ctypes.c_void_p,
        [ctypes.c_void_p, _TEXT, _TEXT, _ADDRESS, _BYTES, _ADDRESS, ctypes.c_void_p],
    ),
    "take_fault": (ctypes.c_void_p, [ctypes.c_void_p]),
    "most_bytes": (_BYTES, [_BYTES]),
    "encoded_bytes": (_BYTES, [_ADDRESS]),
    "zero_elements": (_BYTES, [_ADDRESS]),
    "encode": (
        ctypes.c_void_p,
        [ctypes.c_void_p, _TEXT, ctypes.c_int, _ADDRESS, _BYTES, _ADDRESS, *_LAUNCH],
    ),
    "decode": (
        ctypes.c_void_p,
        [ctypes.c_void_p, _TEXT, ctypes.c_int, _ADDRESS, _BYTES, _ADDRESS, *_LAUNCH],
    ),
    "count_zeros": (
        ctypes.c_void_p,
        [ctypes.c_void_p, ctypes.c_int, _ADDRESS, _BYTES, ctypes.c_int, _ADDRESS, *_LAUNCH],
    ),
}


@dataclass(frozen=True)
class Launch:
    """How many blocks a kernel runs in, and of how many threads: 32, 64, 96 to 1024."""

    blocks: int = 16
    threads: int = 512


DEFAULT_LAUNCH = Launch()


class GpuCodecs:
    """The codecs of one GPU. All is given to a stream, and nothing is waited for.

    Addresses and streams are the driver's, as numbers. Tensors begin at multiples of 16 bytes, far
    blocks, which are pinned memory of `most_bytes`, at those of 128.

    Args:
        stream: Any stream of the GPU.
        folder: Where the kernels are; None: beside the library.

    Raises:
        LibraryError: There are none here, and why.
    """

    def __init__(self, stream: int, folder: Path | None = None) -> None:
        self._codecs: int | None = None
        self._free = library.load().dll.tfswap_free
        if not library.GPU_LIBRARY_PATH.exists():
            raise LibraryError(
                "codecs on the GPU are not available: tfswap was built against a TensorFlow "
                "without GPU devices."
            )
        dll = ctypes.CDLL(str(library.GPU_LIBRARY_PATH))
        self._functions: dict[str, Any] = {}
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(dll, f"tfswap_codecs_{name}")
            function.restype, function.argtypes = result, arguments
            self._functions[name] = function
        problem = ctypes.c_void_p()
        place = folder or library.GPU_LIBRARY_PATH.parent
        self._codecs = self._functions["make"](stream, str(place).encode(), ctypes.byref(problem))
        self._check(problem.value)

    def __enter__(self) -> GpuCodecs:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """The GPU must have done all that it was given."""
        if self._codecs:
            self._functions["destroy"](self._codecs)
            self._codecs = None

    def use_nvcomp(
        self, codec: str, path: str, workspace: int, size_bytes: int, fault: int, stream: int
    ) -> None:
        """Has one of nvCOMP's codecs work from now on, on one stream at a time each way.

        Args:
            codec: Of `tfswap.machine.nvcomp.NAMES`.
            path: The library.
            workspace: Memory of the GPU's, until `close`.
            size_bytes: Its size: the larger, the more of a tensor is encoded at once.
            fault: Pinned memory of 8 bytes, all zero.
            stream: Waited for.

        Raises:
            LibraryError: The library will not do, or the memory is too small for it.
        """
        arguments = (codec.encode(), os.fsencode(path), workspace, size_bytes, fault, stream)
        self._check(self._functions["use_nvcomp"](self._codecs, *arguments))

    def check_decoded(self) -> None:
        """Asks whether nvCOMP could decode all that it has, as far as the GPU has done it.

        Raises:
            LibraryError: It could not.
        """
        self._check(self._functions["take_fault"](self._codecs))

    def most_bytes(self, size_bytes: int) -> int:
        """What a far block of a tensor of that size must have room for."""
        return int(self._functions["most_bytes"](size_bytes))

    def encoded_bytes(self, far_block: int) -> int:
        """What an encoded tensor takes; once its encoding has ended."""
        return int(self._functions["encoded_bytes"](far_block))

    def zero_elements(self, far_block: int) -> int:
        """How many elements of an encoded tensor are zero; once its encoding has ended."""
        return int(self._functions["zero_elements"](far_block))

    def encode(
        self,
        codec: str,
        element_bytes: int,
        source: int,
        size_bytes: int,
        far_block: int,
        stream: int,
        launch: Launch = DEFAULT_LAUNCH,
    ) -> None:
        """Gives the stream the encoding of a tensor of the GPU.

        Raises:
            LibraryError: The codec, an address or the launch cannot be, or the driver refused.
        """
        self._check(
            self._functions["encode"](
                *(self._codecs, codec.encode(), element_bytes, source, size_bytes, far_block),
                *(stream, launch.blocks, launch.threads),
            )
        )

    def decode(
        self,
        codec: str,
        element_bytes: int,
        target: int,
        size_bytes: int,
        far_block: int,
        stream: int,
        launch: Launch = DEFAULT_LAUNCH,
    ) -> None:
        """Gives the stream the way back; codec and sizes must be those of `encode`.

        Raises:
            LibraryError: As `encode`.
        """
        self._check(
            self._functions["decode"](
                *(self._codecs, codec.encode(), element_bytes, target, size_bytes, far_block),
                *(stream, launch.blocks, launch.threads),
            )
        )

    def count_zeros(
        self,
        element_bytes: int,
        source: int,
        size_bytes: int,
        every: int,
        count: int,
        stream: int,
        launch: Launch = DEFAULT_LAUNCH,
    ) -> None:
        """Counts zeros in every `every`th 4 KiB.

        Args:
            element_bytes: 4 or 2.
            source: The tensor.
            size_bytes: Its size.
            every: 1 counts all.
            count: Pinned memory for two 64-bit numbers: zeros, and elements looked at.
            stream: Which does it.
            launch: Of the kernel.

        Raises:
            LibraryError: As `encode`.
        """
        self._check(
            self._functions["count_zeros"](
                *(self._codecs, element_bytes, source, size_bytes, every, count),
                *(stream, launch.blocks, launch.threads),
            )
        )

    def _check(self, problem: int | None) -> None:
        assert problem is not None
        text = take_text(problem, self._free)
        if text:
            raise LibraryError(text)
