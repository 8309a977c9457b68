#include "codecs/sparse.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "codecs/codec_path.h"

namespace tfswap {
namespace {

constexpr size_t kMaxWords = 65535;  // positions and lengths have 16 bits
constexpr size_t kMaxGroups = kMaxWords / kGroupWords + 1;
constexpr size_t kMaxGroupBytes = kGroupWords * 4;

// The bitmap of a section, padded with zeros to 64 bits.
struct Bits {
  alignas(64) uint64_t words[kMaxGroups * kBitmapBytes / 8 + 1];

  char* data() { return reinterpret_cast<char*>(words); }
  const char* data() const { return reinterpret_cast<const char*>(words); }
};

// The layout of a section.
struct Shape {
  Shape(int element_bytes, size_t section_bytes)
      : kernels(KernelsFor(element_bytes)),
        word_bytes(element_bytes == 2 ? 2 : 4),
        words(section_bytes / word_bytes),
        tail_bytes(section_bytes % word_bytes),
        full_groups(words / kGroupWords),
        groups((words + kGroupWords - 1) / kGroupWords) {}

  size_t group_bytes() const { return kGroupWords * word_bytes; }
  size_t bitmap_bytes() const { return groups * kBitmapBytes; }

  const WordKernels& kernels;
  const size_t word_bytes;
  const size_t words;
  const size_t tail_bytes;
  const size_t full_groups;
  const size_t groups;  // the last one may be partial
};

size_t BytesLeft(const char* cursor, const char* end) { return static_cast<size_t>(end - cursor); }

// The last group padded with zeros, so that the kernels process whole groups only.
struct LastGroup {
  LastGroup(const Shape& shape, const char* from) {
    std::memcpy(words, from + shape.full_groups * shape.group_bytes(),
                (shape.words % kGroupWords) * shape.word_bytes);
  }
  alignas(64) char words[kMaxGroupBytes] = {};
};

// Pack one group through a buffer, near the end of the output where a whole group might not fit.
// `pack` is called with the position and the end of the output.
template <typename Pack>
bool PackThroughBuffer(const Pack& pack, char** to, const char* to_end) {
  alignas(64) char packed[kMaxGroupBytes];
  char* packed_end = packed;
  pack(&packed_end, packed + sizeof(packed));
  const size_t bytes = BytesLeft(packed, packed_end);
  if (bytes > BytesLeft(*to, to_end)) return false;
  std::memcpy(*to, packed, bytes);
  *to += bytes;
  return true;
}

bool MarkAndPack(const Shape& shape, const char* from, char* bits, char** to, const char* to_end) {
  const WordKernels& kernels = shape.kernels;
  size_t group = kernels.mark_and_pack(from, shape.full_groups, bits, to, to_end);
  const LastGroup last(shape, from);
  for (; group < shape.groups; ++group) {
    const char* words = group < shape.full_groups ? from + group * shape.group_bytes() : last.words;
    const auto pack = [&](char** out, const char* out_end) {
      kernels.mark_and_pack(words, 1, bits + group * kBitmapBytes, out, out_end);
    };
    if (!PackThroughBuffer(pack, to, to_end)) return false;
  }
  return true;
}

bool Pack(const Shape& shape, const char* from, const char* bits, char** to, const char* to_end) {
  const WordKernels& kernels = shape.kernels;
  size_t group = kernels.pack(from, shape.full_groups, bits, to, to_end);
  const LastGroup last(shape, from);
  for (; group < shape.groups; ++group) {
    const char* words = group < shape.full_groups ? from + group * shape.group_bytes() : last.words;
    const auto pack = [&](char** out, const char* out_end) {
      kernels.pack(words, 1, bits + group * kBitmapBytes, out, out_end);
    };
    if (!PackThroughBuffer(pack, to, to_end)) return false;
  }
  return true;
}

bool Positions(const Shape& shape, const char* bits, char** to, const char* to_end) {
  const WordKernels& kernels = shape.kernels;
  size_t group = kernels.positions(bits, shape.groups, 0, to, to_end);
  for (; group < shape.groups; ++group) {
    const auto pack = [&](char** out, const char* out_end) {
      kernels.positions(bits + group * kBitmapBytes, 1, static_cast<uint16_t>(group * kGroupWords),
                        out, out_end);
    };
    if (!PackThroughBuffer(pack, to, to_end)) return false;
  }
  return true;
}

size_t Mark(const Shape& shape, const char* from, Bits* bits) {
  bits->words[shape.groups / 2] = 0;  // padding of the last 64 bits
  size_t marked = shape.kernels.mark(from, shape.full_groups, bits->data());
  if (shape.full_groups < shape.groups) {
    const LastGroup last(shape, from);
    char* last_bits = bits->data() + shape.full_groups * kBitmapBytes;
    marked += shape.kernels.mark(last.words, 1, last_bits);
  }
  return marked;
}

// `values` has one word per set bit; all bits are within the section.
void Unpack(const Shape& shape, const char* values, size_t value_bytes, const char* bits, char* to,
            bool past_cache) {
  const WordKernels& kernels = shape.kernels;
  const char* const values_end = values + value_bytes;
  size_t group = kernels.unpack(&values, values_end, shape.full_groups, bits, to, past_cache);
  // Fewer values than a group are left: pad them, so that the kernel reads nothing else.
  alignas(64) char last_values[2 * kMaxGroupBytes] = {};
  std::memcpy(last_values, values, BytesLeft(values, values_end));
  values = last_values;
  const char* const last_end = last_values + sizeof(last_values);
  group += kernels.unpack(&values, last_end, shape.full_groups - group, bits + group * kBitmapBytes,
                          to + group * shape.group_bytes(), past_cache);
  if (group == shape.groups) return;
  alignas(64) char words[kMaxGroupBytes];
  kernels.unpack(&values, last_end, 1, bits + group * kBitmapBytes, words, false);
  std::memcpy(to + group * shape.group_bytes(), words,
              (shape.words % kGroupWords) * shape.word_bytes);
}

void CopyTail(const Shape& shape, const char* from_end, char* to_end) {
  std::memcpy(to_end - shape.tail_bytes, from_end - shape.tail_bytes, shape.tail_bytes);
}

// Mark the zero words of runs that are too short as kept. Return the number of kept words.
size_t KeepShortRuns(const Shape& shape, Bits* bits) {
  // Two lengths cost 4 bytes: one 4-byte word or two 2-byte words.
  const size_t least_run = shape.word_bytes == 4 ? 2 : 3;
  const size_t count = (shape.words + 63) / 64;
  const auto valid = [&](size_t i) {
    return i + 1 < count || shape.words % 64 == 0 ? ~uint64_t{0}
                                                  : (uint64_t{1} << shape.words % 64) - 1;
  };
  const auto zeros = [&](size_t i) { return i < count ? ~bits->words[i] & valid(i) : 0; };
  size_t kept = 0;
  uint64_t here = zeros(0);
  uint64_t starts_before = 0;
  for (size_t i = 0; i < count; ++i) {
    const uint64_t next = zeros(i + 1);
    uint64_t starts = here & (here >> 1 | next << 63);
    if (least_run == 3) starts &= here >> 2 | next << 62;
    uint64_t runs = starts | starts << 1 | starts_before >> 63;
    if (least_run == 3) runs |= starts << 2 | starts_before >> 62;
    bits->words[i] = ~runs & valid(i);
    kept += static_cast<size_t>(__builtin_popcountll(bits->words[i]));
    starts_before = starts;
    here = next;
  }
  return kept;
}

// The starts of runs, except for the first; the section starts with a run of zeros, of length 0 or
// more.
uint64_t RunStarts(const Shape& shape, const Bits& bits, size_t i) {
  const uint64_t before = i > 0 ? bits.words[i - 1] >> 63 : 0;
  const uint64_t starts = bits.words[i] ^ (bits.words[i] << 1 | before);
  const size_t left = shape.words - i * 64;
  return left >= 64 ? starts : starts & ((uint64_t{1} << left) - 1);
}

void SetBits(Bits* bits, size_t begin, size_t end) {
  while (begin < end) {
    const size_t in_word = std::min(end - begin, 64 - begin % 64);
    bits->words[begin / 64] |= ~uint64_t{0} >> (64 - in_word) << begin % 64;
    begin += in_word;
  }
}

// The header of RLE and CSR: a 32-bit count, then so many 16-bit numbers.
constexpr size_t kCountBytes = 4;

// Return false if they do not fit into the encoded bytes. Sets the bytes left for values.
bool ReadCount(const Shape& shape, const char* from, size_t encoded_bytes, size_t* count,
               size_t* value_bytes) {
  if (encoded_bytes < kCountBytes + shape.tail_bytes) return false;
  uint32_t stored;
  std::memcpy(&stored, from, sizeof(stored));
  *count = stored;
  const size_t left = encoded_bytes - kCountBytes - shape.tail_bytes;
  if (*count > left / 2) return false;
  *value_bytes = left - 2 * *count;
  return true;
}

uint16_t Load16(const char* from) {
  uint16_t value;
  std::memcpy(&value, from, sizeof(value));
  return value;
}

}  // namespace

size_t EncodeZvc(int element_bytes, const char* from, size_t bytes, char* to, size_t capacity) {
  const Shape shape(element_bytes, bytes);
  if (shape.bitmap_bytes() + shape.tail_bytes > capacity) return 0;
  char* values = to + shape.bitmap_bytes();
  const char* const values_end = to + capacity - shape.tail_bytes;
  if (!MarkAndPack(shape, from, to, &values, values_end)) return 0;
  const size_t encoded_bytes = BytesLeft(to, values) + shape.tail_bytes;
  CopyTail(shape, from + bytes, to + encoded_bytes);
  return encoded_bytes;
}

bool DecodeZvc(int element_bytes, const char* from, size_t encoded_bytes, char* to, size_t bytes,
               bool past_cache) {
  const Shape shape(element_bytes, bytes);
  if (encoded_bytes < shape.bitmap_bytes() + shape.tail_bytes) return false;
  const size_t value_bytes = encoded_bytes - shape.bitmap_bytes() - shape.tail_bytes;
  const size_t marked = shape.kernels.count_bits(from, shape.groups);
  if (marked * shape.word_bytes != value_bytes) return false;
  if (shape.full_groups < shape.groups) {
    uint32_t last;
    std::memcpy(&last, from + shape.full_groups * kBitmapBytes, sizeof(last));
    if (last >> shape.words % kGroupWords != 0) return false;
  }
  Unpack(shape, from + shape.bitmap_bytes(), value_bytes, from, to, past_cache);
  CopyTail(shape, from + encoded_bytes, to + bytes);
  return true;
}

size_t EncodeRle(int element_bytes, const char* from, size_t bytes, char* to, size_t capacity) {
  const Shape shape(element_bytes, bytes);
  if (shape.words > kMaxWords) return 0;
  Bits bits;
  Mark(shape, from, &bits);
  const size_t kept = KeepShortRuns(shape, &bits);
  const size_t count = (shape.words + 63) / 64;
  size_t lengths = 1;
  for (size_t i = 0; i < count; ++i) {
    lengths += static_cast<size_t>(__builtin_popcountll(RunStarts(shape, bits, i)));
  }
  const size_t front_bytes = kCountBytes + 2 * lengths;
  const size_t encoded_bytes = front_bytes + kept * shape.word_bytes + shape.tail_bytes;
  if (encoded_bytes > capacity) return 0;

  const auto stored_count = static_cast<uint32_t>(lengths);
  std::memcpy(to, &stored_count, sizeof(stored_count));
  char* out = to + kCountBytes;
  size_t begin = 0;
  const auto write_until = [&](size_t end) {
    const auto length = static_cast<uint16_t>(end - begin);
    std::memcpy(out, &length, sizeof(length));
    out += sizeof(length);
    begin = end;
  };
  for (size_t i = 0; i < count; ++i) {
    for (uint64_t starts = RunStarts(shape, bits, i); starts != 0; starts &= starts - 1) {
      write_until(i * 64 + static_cast<size_t>(__builtin_ctzll(starts)));
    }
  }
  write_until(shape.words);
  Pack(shape, from, bits.data(), &out, to + encoded_bytes - shape.tail_bytes);
  CopyTail(shape, from + bytes, to + encoded_bytes);
  return encoded_bytes;
}

bool DecodeRle(int element_bytes, const char* from, size_t encoded_bytes, char* to, size_t bytes,
               bool past_cache) {
  const Shape shape(element_bytes, bytes);
  size_t lengths, value_bytes;
  if (shape.words > kMaxWords) return false;
  if (!ReadCount(shape, from, encoded_bytes, &lengths, &value_bytes)) return false;
  Bits bits;
  std::memset(bits.words, 0, (shape.words + 63) / 64 * 8);
  size_t place = 0, kept = 0;
  for (size_t i = 0; i < lengths; ++i) {
    const size_t end = place + Load16(from + kCountBytes + 2 * i);
    if (end > shape.words) return false;
    if (i % 2 == 1) {
      SetBits(&bits, place, end);
      kept += end - place;
    }
    place = end;
  }
  if (place != shape.words || kept * shape.word_bytes != value_bytes) return false;
  Unpack(shape, from + kCountBytes + 2 * lengths, value_bytes, bits.data(), to, past_cache);
  CopyTail(shape, from + encoded_bytes, to + bytes);
  return true;
}

size_t EncodeCsr(int element_bytes, const char* from, size_t bytes, char* to, size_t capacity) {
  const Shape shape(element_bytes, bytes);
  if (shape.words > kMaxWords) return 0;
  Bits bits;
  const size_t marked = Mark(shape, from, &bits);
  const size_t encoded_bytes = kCountBytes + marked * (2 + shape.word_bytes) + shape.tail_bytes;
  if (encoded_bytes > capacity) return 0;
  const auto count = static_cast<uint32_t>(marked);
  std::memcpy(to, &count, sizeof(count));
  char* out = to + kCountBytes;
  const char* const out_end = to + encoded_bytes - shape.tail_bytes;
  Positions(shape, bits.data(), &out, out_end);
  Pack(shape, from, bits.data(), &out, out_end);
  CopyTail(shape, from + bytes, to + encoded_bytes);
  return encoded_bytes;
}

bool DecodeCsr(int element_bytes, const char* from, size_t encoded_bytes, char* to, size_t bytes) {
  const Shape shape(element_bytes, bytes);
  size_t marked, value_bytes;
  if (!ReadCount(shape, from, encoded_bytes, &marked, &value_bytes)) return false;
  if (value_bytes != marked * shape.word_bytes) return false;
  const char* const places = from + kCountBytes;
  bool outside = false;
  for (size_t i = 0; i < marked; ++i) outside |= Load16(places + 2 * i) >= shape.words;
  if (outside) return false;
  const char* const values = places + 2 * marked;
  std::memset(to, 0, bytes - shape.tail_bytes);
  if (shape.word_bytes == 2) {
    for (size_t i = 0; i < marked; ++i) {
      std::memcpy(to + 2 * size_t{Load16(places + 2 * i)}, values + 2 * i, 2);
    }
  } else {
    for (size_t i = 0; i < marked; ++i) {
      std::memcpy(to + 4 * size_t{Load16(places + 2 * i)}, values + 4 * i, 4);
    }
  }
  CopyTail(shape, from + encoded_bytes, to + bytes);
  return true;
}

}  // namespace tfswap
