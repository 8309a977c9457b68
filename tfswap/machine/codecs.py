"""Codecs of far memory: which there are, which can be used here, and why the others cannot.

``zvc``, ``rle`` and ``csr`` are tfswap's own, for tensors with many zeros; they, ``lz4`` and
``zstd`` give back every bit. ``zfp`` and ``bfp`` are lossy: float32 at a fixed part of its size.
``lz4``, ``zstd`` and ``zfp`` are c-blosc2's (``pip install "tfswap[codecs]"``), which need not be
there. ``bfp``, block floating point, is tfswap's: about as fast as a copy, and at the same rate as
exact as ZFP but where neighbours are alike. Its least rate is 11 percent; lower ones are taken for
that, and from 75 on it keeps no more than at 74, but at 100 every bit. On a GPU, ``lz4`` and
``ans`` are nvCOMP's (``pip install nvidia-nvcomp-cu12``).

The encodings: ``cc/codecs``. All but ``bfp`` are those of CSWAP+ (Chen et al. 2022).
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
    """The library of c-blosc2 in the installed package ``blosc2``, which is not imported."""
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
        An empty text, or why ``lz4``, ``zstd`` and ``zfp`` cannot be used.
    """
    path = find_blosc()
    if path is None:
        return 'blosc2 is not installed: pip install "tfswap[codecs]", then install tfswap again'
    return _core.load_blosc(str(path))


def why_not(codec: str, element_bytes: int = 4) -> str:
    """Why a codec cannot be used here for elements of so many bytes; empty: it can be.

    Raises:
        ValueError: There is no such codec.
    """
    if codec not in NAMES:
        raise ValueError(f"unknown codec {codec!r}: allowed are {', '.join(NAMES)}")
    fault = load_blosc() if codec in NEED_BLOSC else ""
    return fault or _core.why_not_codec(codec, element_bytes)


def why_not_on_cpu(codec: str) -> str:
    """As `why_not`, also of those that only GPUs have."""
    return why_not(codec) if codec in NAMES else f"no CPU encodes by {codec}"


def check(codec: str | None, lossy: bool = False) -> str | None:
    """Refuse what is no `codec` of `AutoSwap`, or goes not with its `lossy`.

    Raises:
        ValueError: It is none, is lossy without leave, or no device here can have it; the text says
            what can.
    """
    if lossy and codec is None:
        raise ValueError(
            "lossy=True and codec=None: without a codec nothing is encoded. Leave one of them out"
        )
    if codec is not None and not isinstance(codec, str):
        raise ValueError(f"codec is {codec!r}; it must be the name of one, or None")
    named = codec is not None and codec not in ("auto", "cswap")
    known = dict.fromkeys((*LOSSLESS, *nvcomp.NAMES, *(LOSSY if lossy else ())))
    if named and codec not in known:
        allowed = ", ".join(map(repr, ("auto", "cswap", *known)))
        why = f"codec {codec!r} is lossy, and needs lossy=True" if codec in LOSSY else ""
        raise ValueError(f"{why or f'unknown codec {codec!r}'}: allowed are {allowed} and None")
    if lossy and not lossy_for(codec):
        faults = "; ".join(f"{name}: {why_not(name)}" for name in LOSSY)
        raise ValueError(f"lossy=True: no lossy codec can be used here. {faults}")
    fault = why_not_on_cpu(codec) if named and codec is not None else ""
    if not fault or codec in nvcomp.NAMES and nvcomp.find_nvcomp() is not None:
        return codec
    if codec in nvcomp.NAMES:
        fault = f"on a CPU: {fault}; on a GPU: {nvcomp.INSTALL}"
    raise ValueError(f"codec={codec!r}: {fault}")


def lossy_for(codec: str | None) -> tuple[str, ...]:
    """The lossy codecs that can be used here where `codec` is said: all, or the one it names."""
    named = (codec,) if codec in LOSSY else LOSSY
    return tuple(name for name in named if not why_not(name))


def available(element_bytes: int = 4) -> tuple[str, ...]:
    """The codecs that can be used here for elements of so many bytes."""
    return tuple(codec for codec in NAMES if not why_not(codec, element_bytes))
