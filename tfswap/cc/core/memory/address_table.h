#ifndef TFSWAP_CC_CORE_MEMORY_ADDRESS_TABLE_H_
#define TFSWAP_CC_CORE_MEMORY_ADDRESS_TABLE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

namespace tfswap {

// A hash table of values by block address, stored apart from the blocks, which may be in the memory
// of another device. Thread-safe; threads contend only if their blocks are in the same of many
// shards. Value is plain data.
template <typename Value>
class AddressTable {
 public:
  // Insert a block and call `then` with the lock of its shard held, so that `then` happens before
  // the block can be looked up or removed.
  template <typename Then>
  void Insert(const void* ptr, const Value& value, Then then) {
    Shard& shard = ShardOf(ptr);
    std::lock_guard<std::mutex> lock(shard.mu);
    if (2 * (shard.used + 1) > shard.entries.size()) Grow(&shard);
    Place(&shard, {ptr, value});
    then();
  }

  // Remove a block and call `then` with its value and the lock held; return whether it was present.
  template <typename Then>
  bool Remove(const void* ptr, Then then) {
    Shard& shard = ShardOf(ptr);
    std::lock_guard<std::mutex> lock(shard.mu);
    size_t at = Find(shard, ptr);
    if (at == kNone) return false;
    then(shard.entries[at].value);
    --shard.used;
    // Move up entries that were displaced by the removed one.
    const size_t mask = shard.entries.size() - 1;
    for (size_t next = (at + 1) & mask; shard.entries[next].ptr != nullptr;
         next = (next + 1) & mask) {
      const size_t home = Hash(shard.entries[next].ptr) & mask;
      if (((next - home) & mask) < ((next - at) & mask)) continue;
      shard.entries[at] = shard.entries[next];
      at = next;
    }
    shard.entries[at] = Entry();
    return true;
  }

  // Return the value of the block, or `otherwise`.
  Value Get(const void* ptr, const Value& otherwise) const {
    const Shard& shard = ShardOf(ptr);
    std::lock_guard<std::mutex> lock(shard.mu);
    const size_t at = Find(shard, ptr);
    return at == kNone ? otherwise : shard.entries[at].value;
  }

  // Call `then` with all shards locked. Its argument is a function that calls its own argument with
  // every block and value.
  template <typename Then>
  void Hold(Then then) const {
    for (const Shard& shard : shards_) shard.mu.lock();
    then([this](auto each) {
      for (const Shard& shard : shards_) {
        for (const Entry& entry : shard.entries) {
          if (entry.ptr != nullptr) each(entry.ptr, entry.value);
        }
      }
    });
    for (const Shard& shard : shards_) shard.mu.unlock();
  }

 private:
  static constexpr size_t kShards = 64;
  static constexpr size_t kNone = ~size_t{0};

  struct Entry {
    const void* ptr = nullptr;
    Value value = {};
  };
  // Open addressing with linear probing; at most half full.
  struct alignas(64) Shard {
    mutable std::mutex mu;
    size_t used = 0;
    std::vector<Entry> entries = std::vector<Entry>(16);
  };

  static uint64_t Hash(const void* ptr) {
    // Blocks start at multiples of 64 bytes, many at those of much more.
    uint64_t bits = reinterpret_cast<uintptr_t>(ptr) >> 6;
    bits *= 0x9E3779B97F4A7C15;
    return bits ^ bits >> 32;
  }
  static size_t ShardNumber(const void* ptr) { return Hash(ptr) >> 24 & (kShards - 1); }
  Shard& ShardOf(const void* ptr) { return shards_[ShardNumber(ptr)]; }
  const Shard& ShardOf(const void* ptr) const { return shards_[ShardNumber(ptr)]; }

  static size_t Find(const Shard& shard, const void* ptr) {
    const size_t mask = shard.entries.size() - 1;
    for (size_t at = Hash(ptr) & mask;; at = (at + 1) & mask) {
      if (shard.entries[at].ptr == ptr) return at;
      if (shard.entries[at].ptr == nullptr) return kNone;
    }
  }
  static void Place(Shard* shard, const Entry& entry) {
    const size_t mask = shard->entries.size() - 1;
    size_t at = Hash(entry.ptr) & mask;
    while (shard->entries[at].ptr != nullptr) at = (at + 1) & mask;
    shard->entries[at] = entry;
    ++shard->used;
  }
  static void Grow(Shard* shard) {
    std::vector<Entry> old(2 * shard->entries.size());
    old.swap(shard->entries);
    shard->used = 0;
    for (const Entry& entry : old) {
      if (entry.ptr != nullptr) Place(shard, entry);
    }
  }

  std::array<Shard, kShards> shards_;
};

}  // namespace tfswap

#endif  // TFSWAP_CC_CORE_MEMORY_ADDRESS_TABLE_H_
