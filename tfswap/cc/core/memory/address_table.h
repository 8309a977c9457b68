#ifndef TFSWAP_CC_CORE_MEMORY_ADDRESS_TABLE_H_
#define TFSWAP_CC_CORE_MEMORY_ADDRESS_TABLE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

namespace tfswap {

// What is known of blocks, by their addresses: beside the blocks, which may be another device's
// memory. Thread-safe; threads meet only where their blocks' addresses fall into the same of many
// parts. Value is plain data.
template <typename Value>
class AddressTable {
 public:
  // `then` is called with the part's lock held, so that it happens before anybody looks the block
  // up or removes it.
  template <typename Then>
  void Insert(const void* ptr, const Value& value, Then then) {
    Part& part = PartOf(ptr);
    std::lock_guard<std::mutex> lock(part.mu);
    if (2 * (part.used + 1) > part.entries.size()) Grow(&part);
    Place(&part, {ptr, value});
    then();
  }

  // Whether it was there; `then` is called with its value, as above.
  template <typename Then>
  bool Remove(const void* ptr, Then then) {
    Part& part = PartOf(ptr);
    std::lock_guard<std::mutex> lock(part.mu);
    size_t at = Find(part, ptr);
    if (at == kNone) return false;
    then(part.entries[at].value);
    --part.used;
    // Whoever was pushed on by this one moves up.
    const size_t mask = part.entries.size() - 1;
    for (size_t next = (at + 1) & mask; part.entries[next].ptr != nullptr;
         next = (next + 1) & mask) {
      const size_t home = Spread(part.entries[next].ptr) & mask;
      if (((next - home) & mask) < ((next - at) & mask)) continue;
      part.entries[at] = part.entries[next];
      at = next;
    }
    part.entries[at] = Entry();
    return true;
  }

  // The block's value, or `otherwise`.
  Value Get(const void* ptr, const Value& otherwise) const {
    const Part& part = PartOf(ptr);
    std::lock_guard<std::mutex> lock(part.mu);
    const size_t at = Find(part, ptr);
    return at == kNone ? otherwise : part.entries[at].value;
  }

  // Calls `then` while nobody inserts or removes anything; what it is given calls its argument with
  // every block and its value, as often as it is wanted.
  template <typename Then>
  void Hold(Then then) const {
    for (const Part& part : parts_) part.mu.lock();
    then([this](auto each) {
      for (const Part& part : parts_) {
        for (const Entry& entry : part.entries) {
          if (entry.ptr != nullptr) each(entry.ptr, entry.value);
        }
      }
    });
    for (const Part& part : parts_) part.mu.unlock();
  }

 private:
  static constexpr size_t kParts = 64;
  static constexpr size_t kNone = ~size_t{0};

  struct Entry {
    const void* ptr = nullptr;
    Value value = {};
  };
  // By address, with linear probing; at most half full.
  struct alignas(64) Part {
    mutable std::mutex mu;
    size_t used = 0;
    std::vector<Entry> entries = std::vector<Entry>(16);
  };

  static uint64_t Spread(const void* ptr) {
    // Blocks begin at multiples of 64 bytes, many at those of far more.
    uint64_t bits = reinterpret_cast<uintptr_t>(ptr) >> 6;
    bits *= 0x9E3779B97F4A7C15;
    return bits ^ bits >> 32;
  }
  static size_t PartNumber(const void* ptr) { return Spread(ptr) >> 24 & (kParts - 1); }
  Part& PartOf(const void* ptr) { return parts_[PartNumber(ptr)]; }
  const Part& PartOf(const void* ptr) const { return parts_[PartNumber(ptr)]; }

  static size_t Find(const Part& part, const void* ptr) {
    const size_t mask = part.entries.size() - 1;
    for (size_t at = Spread(ptr) & mask;; at = (at + 1) & mask) {
      if (part.entries[at].ptr == ptr) return at;
      if (part.entries[at].ptr == nullptr) return kNone;
    }
  }
  static void Place(Part* part, const Entry& entry) {
    const size_t mask = part->entries.size() - 1;
    size_t at = Spread(entry.ptr) & mask;
    while (part->entries[at].ptr != nullptr) at = (at + 1) & mask;
    part->entries[at] = entry;
    ++part->used;
  }
  static void Grow(Part* part) {
    std::vector<Entry> old(2 * part->entries.size());
    old.swap(part->entries);
    part->used = 0;
    for (const Entry& entry : old) {
      if (entry.ptr != nullptr) Place(part, entry);
    }
  }

  std::array<Part, kParts> parts_;
};

}  // namespace tfswap

#endif  // TFSWAP_CC_CORE_MEMORY_ADDRESS_TABLE_H_
