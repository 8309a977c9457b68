"""Compression ratios of a training's tensors, sampled while they are copied out."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from tfswap.ops.loaded_library import Library
from tfswap.plan.node_names import swap_out_name
from tfswap.planning.planners.assignment import MAX_ENCODED_RATIO

# A tensor with at most this many distinct words is a mask. The library counts up to one more.
_MASK_NUMBERS = 16

# The library has one sampler.
_sampling = threading.Lock()


class RatioSamples:
    """Ratios of the tensors that were copied out between `start` and `stop`.

    Args:
        lib: The library.
        codecs: Names of lossless codecs.
    """

    def __init__(self, lib: Library, codecs: Sequence[str]) -> None:
        self._library = lib
        self._codecs = tuple(codecs)
        self._by_node: dict[str, dict[str, float]] = {}
        self._distinct_words: dict[str, int] = {}
        self._is_sampling = False

    def start(self) -> bool:
        """Encode sections of everything that is swapped out from now on, to measure its ratios.

        Returns:
            Whether sampling has started or there is nothing to sample; False while another
            training samples.
        """
        if self._codecs and _sampling.acquire(blocking=False):
            self._is_sampling = True
            self._library.sample_codecs(self._codecs)
        return self._is_sampling or not self._codecs

    def stop(self) -> None:
        """Stop sampling and merge the samples into the earlier ones.

        Further calls have no effect.
        """
        if not self._is_sampling:
            return
        self._is_sampling = False
        text = self._library.codec_samples()
        self._by_node |= parse_samples(text, self._codecs)
        self._distinct_words |= parse_distinct_words(text)
        self._library.sample_codecs(())
        _sampling.release()

    def of(self, tensor: str) -> dict[str, float]:
        """Return the ratios of one tensor ("node:port") by codec; empty if it was not sampled."""
        return self._by_node.get(swap_out_name(tensor), {})

    def is_dense(self, tensor: str) -> bool:
        """Return whether no codec makes the tensor much smaller and it is not a mask."""
        ratios = self.of(tensor).values()
        words = self._distinct_words.get(swap_out_name(tensor), 0)
        return bool(ratios) and min(ratios) > MAX_ENCODED_RATIO and words > _MASK_NUMBERS


def parse_samples(text: str, codecs: Sequence[str]) -> dict[str, dict[str, float]]:
    """Parse the ratios by node and codec from the library's lines.

    A line has the node's name, its bytes, its number of distinct words (with an upper bound), and
    for each codec the encoded and the sampled bytes.
    """
    found: dict[str, dict[str, float]] = {}
    for line in text.splitlines():
        node, _, _, *amounts = line.split("\t")
        pairs = zip(map(int, amounts[::2]), map(int, amounts[1::2]), strict=True)
        found[node] = {
            codec: encoded / sampled
            for codec, (encoded, sampled) in zip(codecs, pairs, strict=True)
            if sampled
        }
    return found


def parse_distinct_words(text: str) -> dict[str, int]:
    """Parse the number of distinct words by node from the same lines."""
    rows = (line.split("\t") for line in text.splitlines())
    return {row[0]: int(row[2]) for row in rows}
