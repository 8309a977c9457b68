"""What `Library.gpu_codecs` knows, for benchmarks and tests."""

from __future__ import annotations

from typing import NamedTuple

NAMES = ("zvc", "rle", "csr")
"""tfswap's kernels."""
ELEMENT_BYTES = (4, 2)


class Launch(NamedTuple):
    """How many blocks a kernel runs in, and of how many threads: 32, 64, 96 to 1024."""

    blocks: int = 16
    threads: int = 512
