"""Codecs of far memory: their names, which are usable here, and why the others are not.

``zvc``, ``rle`` and ``csr`` are tfswap's own, for tensors with many zeros; like ``lz4`` and
``zstd``, they are lossless. ``zfp`` and ``bfp`` are lossy: they encode float32 at a fixed rate.
``lz4``, ``zstd`` and ``zfp`` come from c-blosc2 (``pip install "tfswap[codecs]"``), an optional
dependency. ``bfp``, block floating point, is tfswap's own: about as fast as a copy, and at the same
rate as exact as ZFP, except for smooth data. Its lowest rate is 11 percent, which stands in for
lower ones; from 75 to 99 percent it is as exact as at 74, and at 100 it is lossless. On a GPU,
``lz4`` and ``ans`` come from nvCOMP (``pip install nvidia-nvcomp-cu12``).

The encodings are in ``cc/codecs``. All but ``bfp`` are those of CSWAP+ (Chen et al. 2022).
"""

from __future__ import annotations

import functools
import importlib.util
from pathlib import Path

from tfswap import _core
from tfswap.machine import nvcomp

LOSSLESS = ("zvc", "rle", "csr", "lz4", "zstd")
LOSSY = ("zfp", "bfp")
NAMES = (*LOSSLESS, *LOSSY)
NEED_BLOSC = ("lz4", "zstd", "zfp")

_LIBRARIES = ("libblosc2.so", "libblosc2.so.*")


def find_blosc() -> Path | None:
    """Return c-blosc2's library in the package ``blosc2``, without importing the package."""
    spec = importlib.util.find_spec("blosc2")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        for pattern in _LIBRARIES:
            for path in sorted(Path(folder, "lib").glob(pattern)):
                return path
    return None


@functools.cache
def load_blosc() -> str:
    """Load c-blosc2, once.

    Returns:
        An empty string, or the reason why ``lz4``, ``zstd`` and ``zfp`` cannot be used.
    """
    path = find_blosc()
    if path is None:
        return 'blosc2 is not installed: pip install "tfswap[codecs]", then install tfswap again'
    return _core.load_blosc(str(path))


def why_not(codec: str, element_bytes: int = 4) -> str:
    """Return why a codec cannot encode elements of this size here; an empty string if it can.

    Raises:
        ValueError: The codec is unknown.
    """
    if codec not in NAMES:
        raise ValueError(f"unknown codec {codec!r}: allowed are {', '.join(NAMES)}")
    fault = load_blosc() if codec in NEED_BLOSC else ""
    return fault or _core.why_not_codec(codec, element_bytes)


def why_not_on_cpu(codec: str) -> str:
    """Do what `why_not` does, also for codecs that only GPUs have."""
    return why_not(codec) if codec in NAMES else f"no CPU encodes by {codec}"


def check(codec: str | None, lossy: bool = False) -> str | None:
    """Check the options `codec` and `lossy` of `AutoSwap`, and return `codec`.

    Raises:
        ValueError: The codec is unknown, is lossy without ``lossy=True``, or cannot be used on any
            device here; the message lists the alternatives.
    """
    if lossy and codec is None:
        raise ValueError(
            "lossy=True and codec=None: without a codec nothing is encoded. Remove one of them"
        )
    if codec is not None and not isinstance(codec, str):
        raise ValueError(f"codec is {codec!r}; it must be the name of a codec, or None")
    named = codec is not None and codec not in ("auto", "cswap")
    known = dict.fromkeys((*LOSSLESS, *nvcomp.NAMES, *(LOSSY if lossy else ())))
    if named and codec not in known:
        allowed = ", ".join(map(repr, ("auto", "cswap", *known)))
        reason = f"codec {codec!r} is lossy, and needs lossy=True" if codec in LOSSY else ""
        raise ValueError(f"{reason or f'unknown codec {codec!r}'}: allowed are {allowed} and None")
    if lossy and not usable_lossy_codecs(codec):
        faults = "; ".join(f"{name}: {why_not(name)}" for name in LOSSY)
        raise ValueError(f"lossy=True: no lossy codec can be used here. {faults}")
    fault = why_not_on_cpu(codec) if named and codec is not None else ""
    if not fault or codec in nvcomp.NAMES and nvcomp.find_nvcomp() is not None:
        return codec
    if codec in nvcomp.NAMES:
        fault = f"on a CPU: {fault}; on a GPU: {nvcomp.INSTALL}"
    raise ValueError(f"codec={codec!r}: {fault}")


def usable_lossy_codecs(codec: str | None) -> tuple[str, ...]:
    """Return the usable lossy codecs: `codec` if it is lossy, otherwise all of them."""
    named = (codec,) if codec in LOSSY else LOSSY
    return tuple(name for name in named if not why_not(name))


def available(element_bytes: int = 4) -> tuple[str, ...]:
    """Return the codecs that can encode elements of this size here."""
    return tuple(codec for codec in NAMES if not why_not(codec, element_bytes))
