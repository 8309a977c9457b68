"""Tensors to encode, and a slow reference reader of far blocks.

The format is in `tfswap/cc/cuda/codec_format.h`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

SECTION_BYTES = 16384
UNIT_BYTES = 32
LINE_BYTES = 128
HEADER_BYTES = 32
MAGIC = 0x43574654
CODECS = ("zvc", "rle", "csr")

Bytes = NDArray[np.uint8]


def round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def section_count(size_bytes: int) -> int:
    return -(-size_bytes // SECTION_BYTES)


def sections_begin(size_bytes: int) -> int:
    return round_up(HEADER_BYTES + 8 * section_count(size_bytes), LINE_BYTES)


def most_bytes(size_bytes: int) -> int:
    return sections_begin(size_bytes) + round_up(size_bytes, UNIT_BYTES)


@dataclass(frozen=True)
class Header:
    """The header in the first 32 bytes."""

    magic: int
    codec: str
    word_bytes: int
    source_bytes: int
    far_bytes: int
    zero_words: int


def header_of(block: Bytes) -> Header:
    codec, word_bytes = block[4:8].view(np.uint16)
    source_bytes, far_bytes, zero_words = (int(each) for each in block[8:32].view(np.uint64))
    magic = int(block[:4].view(np.uint32)[0])
    return Header(magic, CODECS[codec], int(word_bytes), source_bytes, far_bytes, zero_words)


def places_of(block: Bytes, size_bytes: int) -> list[tuple[int, int]]:
    """Return each section's offset and bytes."""
    table = block[HEADER_BYTES:][: 8 * section_count(size_bytes)].view(np.uint32).reshape(-1, 2)
    return [(int(at) * UNIT_BYTES, int(stored)) for at, stored in table]


def decoded(block: Bytes) -> Bytes:
    """Decode a far block, and check that its sections do not overlap."""
    header = header_of(block)
    assert header.magic == MAGIC
    size_bytes = header.source_bytes
    parts, used = [], []
    for i, (at, stored) in enumerate(places_of(block, size_bytes)):
        left = min(SECTION_BYTES, size_bytes - i * SECTION_BYTES)
        assert sections_begin(size_bytes) <= at and stored <= left
        used.append((at, at + round_up(stored, UNIT_BYTES)))
        parts.append(_section(block[at : at + stored], left, header))
    end = sections_begin(size_bytes)
    for begin, behind in sorted(used):  # one after the other, with no gap
        assert begin == end
        end = behind
    assert header.far_bytes == end <= most_bytes(size_bytes)
    return np.concatenate(parts) if parts else np.zeros(0, np.uint8)


def _section(stored: Bytes, size_bytes: int, header: Header) -> Bytes:
    if stored.size == size_bytes:
        return stored
    type_ = np.dtype(f"u{header.word_bytes}")
    count = size_bytes // type_.itemsize
    words = np.zeros(count, type_)
    if stored.size == 0:
        return words.view(np.uint8)
    if header.codec == "csr":
        values = stored.size // (type_.itemsize + 2)
        numbers = stored[values * type_.itemsize :].view(np.uint16)
        words[numbers] = stored[: values * type_.itemsize].view(type_)
        return words.view(np.uint8)
    if header.codec == "zvc":
        index_bytes = 4 * -(-count // 32)
        there = np.unpackbits(stored[:index_bytes], bitorder="little")[:count].astype(bool)
    else:
        edges = int(stored[:2].view(np.uint16)[0])
        changes = np.zeros(count + 1, np.int64)
        changes[stored[2 : 2 + 2 * edges].view(np.uint16)] = 1
        there = np.cumsum(changes)[:count] % 2 == 1
        index_bytes = round_up(2 + 2 * edges, type_.itemsize)
    values_there = stored[index_bytes:].view(type_)
    words[there] = values_there
    return words.view(np.uint8)


def values(elements: int, element_bytes: int, zeros: float, seed: int = 0) -> Bytes:
    """Return random elements, of which a part is zero, at random places."""
    dice = np.random.default_rng(seed)
    made = dice.integers(1, 1 << 8 * element_bytes, elements, dtype=f"u{element_bytes}")
    made[dice.random(elements) < zeros] = 0
    return made.view(np.uint8)


def runs(elements: int, element_bytes: int, seed: int = 0) -> Bytes:
    """Return alternating runs of zeros and of other elements."""
    dice = np.random.default_rng(seed)
    made = dice.integers(1, 1 << 8 * element_bytes, elements, dtype=f"u{element_bytes}")
    at = 0
    while at < elements:
        zeros, others = dice.geometric(1 / 40, 2)
        made[at : at + zeros] = 0
        at += zeros + others
    return made.view(np.uint8)
