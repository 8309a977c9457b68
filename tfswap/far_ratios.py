"""What codecs make of a training's tensors: sampled while they pass."""

from __future__ import annotations

from collections.abc import Sequence

from tfswap.ops.library import Library
from tfswap.plan import SWAP_OUT_PREFIX


class RatioSamples:
    """Ratios of the tensors that ran through swap-outs while `start` was in force.

    Args:
        lib: The library.
        codecs: Names of lossless ones.
    """

    def __init__(self, lib: Library, codecs: Sequence[str]) -> None:
        self._library = lib
        self._codecs = tuple(codecs)
        self._by_node: dict[str, dict[str, float]] = {}

    def start(self) -> None:
        """Sections of all that is swapped out from now on are encoded, to see what comes of it."""
        if self._codecs:
            self._library.sample_codecs(self._codecs)

    def stop(self) -> None:
        """Ends that, and takes what was found; what passed before and not this time stays."""
        if not self._codecs:
            return
        self._by_node |= parse_samples(self._library.codec_samples(), self._codecs)
        self._library.sample_codecs(())

    def of(self, tensor: str) -> dict[str, float]:
        """Ratios of one tensor ("node:port") by codec; empty if it was not met."""
        node, _, port = tensor.rpartition(":")
        return self._by_node.get(f"{SWAP_OUT_PREFIX}{node.replace(':', '_')}_{port}", {})


def parse_samples(text: str, codecs: Sequence[str]) -> dict[str, dict[str, float]]:
    """The library's lines: a node's name, bytes, then encoded and sampled bytes of each codec."""
    found: dict[str, dict[str, float]] = {}
    for line in text.splitlines():
        node, _, *amounts = line.split("\t")
        pairs = zip(map(int, amounts[::2]), map(int, amounts[1::2]), strict=True)
        found[node] = {
            codec: encoded / sampled
            for codec, (encoded, sampled) in zip(codecs, pairs, strict=True)
            if sampled
        }
    return found
