"""The codecs of `Library.gpu_codecs`, for benchmarks and tests."""

from __future__ import annotations

from typing import NamedTuple

NAMES = ("zvc", "rle", "csr")
"""The codecs of tfswap's own kernels."""
ELEMENT_BYTES = (4, 2)


class Launch(NamedTuple):
    """The blocks of a kernel and the threads of each: 32, 64, 96, ..., 1024."""

    blocks: int = 16
    threads: int = 512
