"""Compression ratios of a training's tensors, sampled while they are copied out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tfswap.ops.loaded_library import Library
from tfswap.plan.node_names import swap_out_name
from tfswap.planning.planners.assignment import MAX_ENCODED_RATIO

if TYPE_CHECKING:
    from tfswap._runtime import CodecSample

# A tensor with at most this many distinct words is a mask. The library counts up to one more.
_MASK_NUMBERS = 16


class RatioSamples:
    """Ratios of the tensors that were copied out between `start` and `stop`.

    Args:
        lib: The library.
        codecs: Names of lossless codecs.
    """

    def __init__(self, lib: Library, codecs: Sequence[str]) -> None:
        self._library = lib
        self._codecs = tuple(codecs)
        self._samples: dict[str, CodecSample] = {}
        self._is_sampling = False

    def start(self) -> None:
        """Encode sections of everything that is swapped out from now on, to measure its ratios."""
        if self._codecs:
            self._is_sampling = True
            self._library.sample_codecs(self._codecs)

    def stop(self) -> None:
        """Stop sampling and merge the samples into the earlier ones.

        Further calls have no effect.
        """
        if not self._is_sampling:
            return
        self._is_sampling = False
        for sample in self._library.codec_samples():
            self._samples[sample.label] = sample
        self._library.sample_codecs(())

    def of(self, tensor: str) -> dict[str, float]:
        """Return the ratios of one tensor ("node:port") by codec; empty if it was not sampled."""
        sample = self._samples.get(swap_out_name(tensor))
        return {} if sample is None else sample.ratios

    def is_dense(self, tensor: str) -> bool:
        """Return whether no codec makes the tensor much smaller and it is not a mask."""
        sample = self._samples.get(swap_out_name(tensor))
        if sample is None or not sample.ratios:
            return False
        return (
            min(sample.ratios.values()) > MAX_ENCODED_RATIO
            and sample.different_words > _MASK_NUMBERS
        )
