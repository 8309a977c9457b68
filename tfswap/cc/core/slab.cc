#include "core/slab.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <new>

#include "core/atomic_max.h"

namespace tfswap {

namespace {

constexpr int64_t kWordGranules = 64;  // of taken_; words of words_ too
constexpr int64_t kGranulesAChunk = Slab::kChunkBytes / Slab::kGranuleBytes;
constexpr uint64_t kPoison = 0xDBDBDBDBDBDBDBDB;
constexpr int64_t kHugePageBytes = int64_t{2} << 20;

int64_t RoundUp(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

// Addresses without memory, zero when first touched.
void* Reserve(int64_t bytes) {
  void* mapped = mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) throw std::bad_alloc();
  return mapped;
}

// The bits of a word that lie in granules [first, last).
uint64_t Mask(int64_t word, int64_t first, int64_t last) {
  const int64_t begin = std::max(first - word * kWordGranules, int64_t{0});
  const int64_t end = std::min(last - word * kWordGranules, kWordGranules);
  const uint64_t below_end = end == kWordGranules ? ~uint64_t{0} : (uint64_t{1} << end) - 1;
  return below_end & ~((uint64_t{1} << begin) - 1);
}

}  // namespace

Slab::Slab(int64_t capacity_bytes, MemoryAccount* account)
    : account_(account), capacity_bytes_(RoundUp(capacity_bytes, int64_t{1} << 30)) {
  const int64_t granules = capacity_bytes_ / kGranuleBytes;
  begin_ = static_cast<char*>(Reserve(capacity_bytes_ + kHugePageBytes));
  // Huge pages begin at their own multiples.
  char* aligned = reinterpret_cast<char*>(
      RoundUp(static_cast<int64_t>(reinterpret_cast<intptr_t>(begin_)), kHugePageBytes));
  if (aligned > begin_) munmap(begin_, static_cast<size_t>(aligned - begin_));
  const int64_t tail = kHugePageBytes - (aligned - begin_);
  if (tail > 0) munmap(aligned + capacity_bytes_, static_cast<size_t>(tail));
  begin_ = aligned;
  taken_ = static_cast<std::atomic<uint64_t>*>(Reserve(granules / 8));
  words_ = static_cast<std::atomic<uint64_t>*>(Reserve(granules / 8 / kWordGranules));
  claims_ = static_cast<int64_t*>(Reserve(granules * 8));
  backed_ = static_cast<std::atomic<int8_t>*>(Reserve(capacity_bytes_ / kChunkBytes));
}

Slab::~Slab() {
  const int64_t granules = capacity_bytes_ / kGranuleBytes;
  if (account_ != nullptr) account_->Release(committed_.load());
  munmap(begin_, static_cast<size_t>(capacity_bytes_));
  munmap(taken_, static_cast<size_t>(granules / 8));
  munmap(words_, static_cast<size_t>(granules / 8 / kWordGranules));
  munmap(claims_, static_cast<size_t>(granules * 8));
  munmap(backed_, static_cast<size_t>(capacity_bytes_ / kChunkBytes));
}

void Slab::SetLimit(int64_t bytes) {
  limit_.store(std::min(RoundUp(bytes, kChunkBytes), capacity_bytes_));
  // Advice only. None across the limit: nobody pays for what is above it.
  const int64_t huge = limit_.load() / kHugePageBytes * kHugePageBytes;
  madvise(begin_, static_cast<size_t>(huge), MADV_HUGEPAGE);
  madvise(begin_ + huge, static_cast<size_t>(capacity_bytes_ - huge), MADV_NOHUGEPAGE);
  for (int64_t chunk = limit_.load() / kChunkBytes; chunk < backed_end_.load(); ++chunk) {
    if (backed_[chunk].load() == 1) DecommitChunk(chunk);
  }
}

Slab::Claimed Slab::Claim(int64_t offset, int64_t bytes) {
  const int64_t first = offset / kGranuleBytes;
  const int64_t last = (offset + std::max<int64_t>(bytes, 1) + kGranuleBytes - 1) / kGranuleBytes;
  if (offset < 0 || last * kGranuleBytes > capacity_bytes_) return Claimed::kOutside;
  if (!ClaimGranules(first, last)) return Claimed::kTaken;
  if (!Commit(offset / kChunkBytes, (last * kGranuleBytes + kChunkBytes - 1) / kChunkBytes)) {
    ReleaseGranules(first, last);
    return Claimed::kNoMemory;
  }
  claims_[first] = bytes;
  const int64_t size = (last - first) * kGranuleBytes;
  RaiseTo(claimed_.fetch_add(size, std::memory_order_relaxed) + size, &peak_claimed_);
  if (check_.load(std::memory_order_relaxed)) CheckPoison(offset, size);
  return Claimed::kYes;
}

int64_t Slab::ClaimAnywhere(int64_t bytes) {
  const int64_t wanted = (std::max<int64_t>(bytes, 1) + kGranuleBytes - 1) / kGranuleBytes;
  int64_t run = 0;
  // Downwards; `granule` is the end of what has not been looked at.
  for (int64_t granule = limit_.load() / kGranuleBytes; granule > 0;) {
    const int64_t in_word = (granule - 1) % kWordGranules + 1;
    const uint64_t word = Taken((granule - 1) / kWordGranules) << (kWordGranules - in_word);
    const int64_t clear = word == 0 ? in_word : __builtin_clzll(word);
    run += clear;
    granule -= clear;
    if (run >= wanted) {
      const int64_t offset = (granule + run - wanted) * kGranuleBytes;
      const Claimed claimed = Claim(offset, bytes);
      if (claimed == Claimed::kYes) return offset;
      run = 0;
      if (claimed == Claimed::kNoMemory) {
        // Where memory is already, there is more room than nobody pays for.
        int64_t chunk = (offset + bytes - 1) / kChunkBytes;
        while (chunk > 0 && backed_[chunk].load() == 1) --chunk;
        granule = std::min(granule, chunk * kGranulesAChunk);
      }
      // Else somebody was faster: the search goes on below this stretch.
      continue;
    }
    if (word == 0) continue;
    run = 0;
    const uint64_t rest = ~(word << clear);
    granule -=
        rest == 0 ? in_word - clear : std::min<int64_t>(__builtin_clzll(rest), in_word - clear);
  }
  return -1;
}

void Slab::Release(int64_t offset) {
  const int64_t first = offset / kGranuleBytes;
  const int64_t length = (std::max<int64_t>(claims_[first], 1) + kGranuleBytes - 1) / kGranuleBytes;
  if (check_.load(std::memory_order_relaxed)) Poison(offset, length * kGranuleBytes);
  claimed_.fetch_sub(length * kGranuleBytes, std::memory_order_relaxed);
  ReleaseGranules(first, first + length);
}

bool Slab::ClaimGranules(int64_t first, int64_t last) {
  const int64_t first_word = (first + kWordGranules - 1) / kWordGranules;
  const int64_t last_word = last / kWordGranules;
  if (first_word > last_word) {
    return ClaimBits(last_word, Mask(last_word, first, last));  // inside of one word
  }
  const uint64_t head = first % kWordGranules == 0 ? 0 : Mask(first_word - 1, first, last);
  const uint64_t tail = last % kWordGranules == 0 ? 0 : Mask(last_word, first, last);
  if (head != 0 && !ClaimBits(first_word - 1, head)) return false;
  if (tail == 0 || ClaimBits(last_word, tail)) {
    if (ClaimWords(first_word, last_word)) return true;
    if (tail != 0) taken_[last_word].fetch_and(~tail);
  }
  if (head != 0) taken_[first_word - 1].fetch_and(~head);
  return false;
}

void Slab::ReleaseGranules(int64_t first, int64_t last) {
  const int64_t first_word = (first + kWordGranules - 1) / kWordGranules;
  const int64_t last_word = last / kWordGranules;
  if (first_word > last_word) {
    taken_[last_word].fetch_and(~Mask(last_word, first, last));
    return;
  }
  if (first % kWordGranules != 0) {
    taken_[first_word - 1].fetch_and(~Mask(first_word - 1, first, last));
  }
  if (last % kWordGranules != 0) taken_[last_word].fetch_and(~Mask(last_word, first, last));
  ReleaseWords(first_word, last_word);
}

bool Slab::ClaimBits(int64_t word, uint64_t bits) {
  const uint64_t before = taken_[word].fetch_or(bits);
  const uint64_t whole = words_[word / kWordGranules].load() >> (word % kWordGranules) & 1;
  if ((before & bits) == 0 && whole == 0) return true;
  taken_[word].fetch_and(~(bits & ~before));
  return false;
}

bool Slab::ClaimWords(int64_t first, int64_t last) {
  for (int64_t i = first / kWordGranules; i * kWordGranules < last; ++i) {
    const uint64_t mask = Mask(i, first, last);
    const uint64_t before = words_[i].fetch_or(mask);
    if ((before & mask) == 0) continue;
    // Not ours: what was free in this one, and all before it, is given back.
    words_[i].fetch_and(~(mask & ~before));
    if (i * kWordGranules > first) ReleaseWords(first, i * kWordGranules);
    return false;
  }
  for (int64_t word = first; word < last; ++word) {
    if (taken_[word].load() == 0) continue;
    ReleaseWords(first, last);
    return false;
  }
  return true;
}

void Slab::ReleaseWords(int64_t first, int64_t last) {
  for (int64_t i = first / kWordGranules; i * kWordGranules < last; ++i) {
    words_[i].fetch_and(~Mask(i, first, last));
  }
}

uint64_t Slab::Taken(int64_t word) const {
  const uint64_t whole =
      words_[word / kWordGranules].load(std::memory_order_relaxed) >> (word % kWordGranules) & 1;
  return whole != 0 ? ~uint64_t{0} : taken_[word].load(std::memory_order_relaxed);
}

bool Slab::Commit(int64_t first_chunk, int64_t last_chunk) {
  bool backed = true;
  for (int64_t chunk = first_chunk; chunk < last_chunk; ++chunk) {
    backed = backed && backed_[chunk].load(std::memory_order_acquire) == 1;
  }
  if (backed) return true;
  std::lock_guard<std::mutex> lock(commit_mu_);
  int64_t missing = 0;
  for (int64_t chunk = first_chunk; chunk < last_chunk; ++chunk) {
    if (backed_[chunk].load() == 0) missing += kChunkBytes;
  }
  if (missing > 0 && account_ != nullptr && !account_->TryReserve(missing)) return false;
  committed_.fetch_add(missing);
  backed_end_.store(std::max(backed_end_.load(), last_chunk));
  for (int64_t chunk = first_chunk; chunk < last_chunk; ++chunk) {
    if (backed_[chunk].load() != 0) continue;
    backed_[chunk].store(1, std::memory_order_release);
    if (check_.load()) Poison(chunk * kChunkBytes, kChunkBytes);
  }
  return true;
}

int64_t Slab::Decommit(int64_t bytes) {
  int64_t given_back = 0;
  // From the top: what is planned there is needed least often.
  for (int64_t chunk = backed_end_.load() - 1; chunk >= 0 && given_back < bytes; --chunk) {
    if (backed_[chunk].load(std::memory_order_relaxed) == 1 && DecommitChunk(chunk)) {
      given_back += kChunkBytes;
    }
  }
  return given_back;
}

bool Slab::DecommitChunk(int64_t chunk) {
  const int64_t first = chunk * kGranulesAChunk;
  std::lock_guard<std::mutex> lock(commit_mu_);
  if (backed_[chunk].load() != 1 || !ClaimGranules(first, first + kGranulesAChunk)) return false;
  // Whoever claims a part of it from now on finds it taken, or not backed.
  backed_[chunk].store(0);
  madvise(At(chunk * kChunkBytes), kChunkBytes, MADV_DONTNEED);
  committed_.fetch_sub(kChunkBytes);
  if (account_ != nullptr) account_->Release(kChunkBytes);
  ReleaseGranules(first, first + kGranulesAChunk);
  return true;
}

void Slab::SetCheck(bool check) {
  std::lock_guard<std::mutex> lock(commit_mu_);
  check_.store(check);
  if (!check) return;
  const int64_t end = backed_end_.load() * kGranulesAChunk;
  for (int64_t granule = 0; granule < end; ++granule) {
    if (backed_[granule / kGranulesAChunk].load() != 1 || !ClaimGranules(granule, granule + 1)) {
      continue;
    }
    Poison(granule * kGranuleBytes, kGranuleBytes);
    ReleaseGranules(granule, granule + 1);
  }
}

void Slab::Poison(int64_t offset, int64_t bytes) {
  std::fill_n(reinterpret_cast<uint64_t*>(At(offset)), bytes / 8, kPoison);
}

void Slab::CheckPoison(int64_t offset, int64_t bytes) {
  const auto* words = reinterpret_cast<const uint64_t*>(At(offset));
  for (int64_t i = 0; i < bytes / 8; ++i) {
    if (words[i] != kPoison) {
      faults_.fetch_add(1);
      return;
    }
  }
}

SlabStats Slab::Stats() const {
  return {limit_.load(), committed_.load(), claimed_.load(), peak_claimed_.load()};
}

}  // namespace tfswap
