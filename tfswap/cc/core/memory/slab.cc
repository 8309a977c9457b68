#include "core/memory/slab.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <new>

namespace tfswap {

namespace {

constexpr int64_t kWordGranules = 64;  // granules per word of taken_, words per word of words_
constexpr int64_t kGranulesAChunk = Slab::kChunkBytes / Slab::kGranuleBytes;
constexpr int64_t kLargeBytes = 16 * Slab::kChunkBytes;
constexpr uint64_t kPoison = 0xDBDBDBDBDBDBDBDB;
constexpr int64_t kHugePageBytes = int64_t{2} << 20;

int64_t RoundUp(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

// Reserve addresses without memory; they are zero when first touched.
void* Reserve(int64_t bytes) {
  void* mapped = mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) throw std::bad_alloc();
  return mapped;
}

void FillWithPoison(char* begin, int64_t bytes) {
  std::fill_n(reinterpret_cast<uint64_t*>(begin), bytes / 8, kPoison);
}

// Return the bits of a word that are in granules [first, last).
uint64_t Mask(int64_t word, int64_t first, int64_t last) {
  const int64_t begin = std::max(first - word * kWordGranules, int64_t{0});
  const int64_t end = std::min(last - word * kWordGranules, kWordGranules);
  const uint64_t below_end = end == kWordGranules ? ~uint64_t{0} : (uint64_t{1} << end) - 1;
  return below_end & ~((uint64_t{1} << begin) - 1);
}

// Large claims check many words: two accumulators without branches let the loads overlap.
bool AreClear(const std::atomic<uint64_t>* word, const std::atomic<uint64_t>* end) {
  uint64_t even = 0, odd = 0;
  for (; end - word >= 4; word += 4) {
    even |= word[0].load() | word[2].load();
    odd |= word[1].load() | word[3].load();
  }
  for (; word != end; ++word) even |= word->load();
  return (even | odd) == 0;
}

}  // namespace

Slab::Slab(int64_t capacity_bytes, MemoryAccount* account)
    : Slab(RoundUp(capacity_bytes, int64_t{1} << 30), 2 * RoundUp(capacity_bytes, int64_t{1} << 30),
           account) {
  char* begin = static_cast<char*>(Reserve(whole_bytes_ + kHugePageBytes));
  // Align to huge pages.
  char* aligned = reinterpret_cast<char*>(
      RoundUp(static_cast<int64_t>(reinterpret_cast<intptr_t>(begin)), kHugePageBytes));
  if (aligned > begin) munmap(begin, static_cast<size_t>(aligned - begin));
  const int64_t tail = kHugePageBytes - (aligned - begin);
  if (tail > 0) munmap(aligned + whole_bytes_, static_cast<size_t>(tail));
  begin_.store(aligned);
  end_.store(whole_bytes_);
}

std::unique_ptr<Slab> Slab::BlockBacked(int64_t capacity_bytes) {
  const int64_t capacity = RoundUp(capacity_bytes, int64_t{1} << 30);
  return std::unique_ptr<Slab>(new Slab(capacity, capacity, nullptr));
}

Slab::Slab(int64_t capacity_bytes, int64_t whole_bytes, MemoryAccount* account)
    : account_(account), capacity_bytes_(capacity_bytes), whole_bytes_(whole_bytes) {
  const int64_t whole = whole_bytes_;
  const int64_t granules = whole / kGranuleBytes;
  taken_ = static_cast<std::atomic<uint64_t>*>(Reserve(granules / 8));
  words_ = static_cast<std::atomic<uint64_t>*>(Reserve(granules / 8 / kWordGranules));
  const auto entries = granules * static_cast<int64_t>(sizeof(Entry));
  claims_ = static_cast<Entry*>(Reserve(entries));
  madvise(claims_, static_cast<size_t>(entries), MADV_HUGEPAGE);
  backed_ = static_cast<std::atomic<uint64_t>*>(Reserve(whole / kChunkBytes / 8));
  backed_end_[1].store(capacity_bytes_ / kChunkBytes);
}

Slab::~Slab() {
  const int64_t whole = whole_bytes_;
  const int64_t granules = whole / kGranuleBytes;
  if (account_ != nullptr) account_->Release(committed_.load());
  if (!IsBlockBacked()) munmap(begin_.load(), static_cast<size_t>(whole));
  munmap(taken_, static_cast<size_t>(granules / 8));
  munmap(words_, static_cast<size_t>(granules / 8 / kWordGranules));
  munmap(claims_, static_cast<size_t>(granules) * sizeof(Entry));
  munmap(backed_, static_cast<size_t>(whole / kChunkBytes / 8));
}

void Slab::Attach(char* block, int64_t bytes) {
  std::lock_guard<std::mutex> lock(commit_mu_);
  const int64_t chunks = std::min(bytes, capacity_bytes_) / kChunkBytes;
  begin_.store(block);
  end_.store(chunks * kChunkBytes);
  committed_.store(chunks * kChunkBytes);
  backed_end_[0].store(chunks);
  for (int64_t chunk = 0; chunk < chunks; ++chunk) {
    backed_[chunk / 64].fetch_or(uint64_t{1} << (chunk % 64), std::memory_order_release);
  }
}

char* Slab::Detach() {
  std::lock_guard<std::mutex> lock(commit_mu_);
  const int64_t chunks = backed_end_[0].load();
  if (chunks == 0 || !ClaimGranules(0, chunks * kGranulesAChunk)) return nullptr;
  // A concurrent claim finds the chunk claimed, or not backed.
  for (int64_t chunk = 0; chunk < chunks; ++chunk) {
    backed_[chunk / 64].fetch_and(~(uint64_t{1} << (chunk % 64)));
  }
  backed_end_[0].store(0);
  committed_.store(0);
  end_.store(0);
  char* block = begin_.exchange(nullptr);
  ReleaseGranules(0, chunks * kGranulesAChunk);
  return block;
}

void Slab::SetLimit(int64_t bytes) {
  limit_.store(std::min(RoundUp(bytes, kChunkBytes), capacity_bytes_));
  if (IsBlockBacked()) return;
  // Advice only. No huge page crosses the limit, because memory above it is not paid for.
  const int64_t huge = limit_.load() / kHugePageBytes * kHugePageBytes;
  madvise(At(0), static_cast<size_t>(huge), MADV_HUGEPAGE);
  madvise(At(huge), static_cast<size_t>(capacity_bytes_ - huge), MADV_NOHUGEPAGE);
  std::lock_guard<std::mutex> lock(commit_mu_);
  for (int64_t chunk = limit_.load() / kChunkBytes; chunk < backed_end_[0].load(); ++chunk) {
    if (IsBacked(chunk)) DecommitChunk(chunk);
  }
}

Slab::Claimed Slab::Claim(int64_t offset, int64_t bytes, int64_t paid) {
  return ClaimIn(capacity_bytes_, offset, bytes, paid);
}

Slab::Claimed Slab::ClaimIn(int64_t end, int64_t offset, int64_t bytes, int64_t paid,
                            bool takes_idle) {
  const int64_t first = offset / kGranuleBytes;
  const int64_t last = (offset + std::max<int64_t>(bytes, 1) + kGranuleBytes - 1) / kGranuleBytes;
  if (offset < 0 || last * kGranuleBytes > end) return Claimed::kOutside;
  const int64_t decommits = decommits_.load();
  if (!ClaimGranules(first, last)) {
    // A search for idle chunks may hold the range temporarily: try again after it.
    if (decommits % 2 == 0 && decommits_.load() == decommits) return Claimed::kTaken;
    std::lock_guard<std::mutex> lock(commit_mu_);
    if (!ClaimGranules(first, last)) return Claimed::kTaken;
  }
  const bool in_part = paid > 0 && paid < bytes;
  const int64_t backed_end = in_part ? offset + paid : last * kGranuleBytes;
  if (!Commit(offset / kChunkBytes, (backed_end + kChunkBytes - 1) / kChunkBytes, takes_idle)) {
    ReleaseGranules(first, last);
    return Claimed::kNoMemory;
  }
  claims_[first] = {bytes, in_part ? bytes - paid : 0};
  if (check_.load(std::memory_order_relaxed)) CheckPoison(offset, backed_end - offset);
  return Claimed::kYes;
}

bool Slab::Pay(int64_t offset, int64_t paid) {
  Entry& claim = claims_[offset / kGranuleBytes];
  const int64_t begin = offset + claim.bytes - claim.unpaid;
  const int64_t end = offset + std::min(paid, claim.bytes);
  if (end <= begin) return true;
  if (!Commit(begin / kChunkBytes, (end + kChunkBytes - 1) / kChunkBytes)) return false;
  claim.unpaid -= end - begin;
  if (check_.load(std::memory_order_relaxed)) CheckPoison(begin, end - begin);
  return true;
}

int64_t Slab::ClaimUnplanned(int64_t bytes, int64_t paid, bool takes_idle) {
  const int64_t wanted = (std::max<int64_t>(bytes, 1) + kGranuleBytes - 1) / kGranuleBytes;
  const int64_t end = whole_bytes_ / kGranuleBytes;
  // Large blocks begin with a chunk: parts of two would have to be paid for otherwise.
  const int64_t unit = bytes >= kLargeBytes ? kGranulesAChunk : 1;
  int64_t run = 0;
  // Search upwards; granules from `granule` on have not been checked.
  for (int64_t granule = capacity_bytes_ / kGranuleBytes; granule < end;) {
    const uint64_t word = Taken(granule / kWordGranules) >> (granule % kWordGranules);
    const int64_t left = kWordGranules - granule % kWordGranules;
    const int64_t clear = word == 0 ? left : __builtin_ctzll(word);
    run += clear;
    granule += clear;
    const int64_t first = RoundUp(granule - run, unit);
    if (granule - first >= wanted) {
      const int64_t offset = first * kGranuleBytes;
      const Claimed claimed = ClaimIn(whole_bytes_, offset, bytes, paid, takes_idle);
      if (claimed == Claimed::kYes) return offset;
      if (claimed != Claimed::kTaken) return -1;
      run = 0;  // another thread was faster
      granule = first + 1;
      continue;
    }
    if (word == 0) continue;
    run = 0;
    const uint64_t rest = ~(word >> clear);
    granule += rest == 0 ? left - clear : std::min<int64_t>(__builtin_ctzll(rest), left - clear);
  }
  return -1;
}

int64_t Slab::ClaimPaid(int64_t bytes) {
  const int64_t middle = capacity_bytes_;
  const int64_t offset = ClaimPaidIn(middle, backed_end_[1].load() * kChunkBytes, bytes);
  return offset >= 0 ? offset : ClaimPaidIn(0, backed_end_[0].load() * kChunkBytes, bytes);
}

int64_t Slab::ClaimPaidIn(int64_t begin, int64_t end, int64_t bytes) {
  const int64_t wanted = (std::max<int64_t>(bytes, 1) + kGranuleBytes - 1) / kGranuleBytes;
  int64_t run = 0;
  // Search downwards; granules below `granule` have not been checked.
  for (int64_t granule = end / kGranuleBytes; granule > begin / kGranuleBytes;) {
    if (!IsBacked((granule - 1) / kGranulesAChunk)) {
      granule = (granule - 1) / kGranulesAChunk * kGranulesAChunk;
      run = 0;
      continue;
    }
    const int64_t in_word = (granule - 1) % kWordGranules + 1;
    const uint64_t word = Taken((granule - 1) / kWordGranules) << (kWordGranules - in_word);
    const int64_t clear = word == 0 ? in_word : __builtin_clzll(word);
    run += clear;
    granule -= clear;
    if (run >= wanted) {
      const int64_t offset = (granule + run - wanted) * kGranuleBytes;
      if (ClaimIn(end, offset, bytes, 0) == Claimed::kYes) return offset;
      run = 0;  // another thread was faster
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
  const int64_t bytes = std::max<int64_t>(claims_[first].bytes, 1);
  const int64_t length = (bytes + kGranuleBytes - 1) / kGranuleBytes;
  if (check_.load(std::memory_order_relaxed)) Poison(offset, length * kGranuleBytes);
  ReleaseGranules(first, first + length);
}

int64_t Slab::ReleaseEnd(int64_t offset, int64_t kept) {
  // A word that was claimed as a whole can only be released as a whole.
  constexpr int64_t kWordBytes = kWordGranules * kGranuleBytes;
  Entry& claim = claims_[offset / kGranuleBytes];
  const int64_t end = RoundUp(offset + kept, kWordBytes);
  const int64_t released_bytes = offset + claim.bytes - end;
  if (released_bytes <= 0) return 0;
  const int64_t first = end / kGranuleBytes;
  const int64_t last = (offset + claim.bytes + kGranuleBytes - 1) / kGranuleBytes;
  claim = {end - offset, 0};
  if (check_.load(std::memory_order_relaxed)) Poison(end, (last - first) * kGranuleBytes);
  ReleaseGranules(first, last);
  return released_bytes;
}

bool Slab::ClaimGranules(int64_t first, int64_t last) {
  const int64_t first_word = (first + kWordGranules - 1) / kWordGranules;
  const int64_t last_word = last / kWordGranules;
  if (first_word > last_word) {
    return ClaimBits(last_word, Mask(last_word, first, last));  // within one word
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
    // Conflict: undo this word and all previous ones.
    words_[i].fetch_and(~(mask & ~before));
    if (i * kWordGranules > first) ReleaseWords(first, i * kWordGranules);
    return false;
  }
  if (AreClear(taken_ + first, taken_ + last)) return true;
  ReleaseWords(first, last);
  return false;
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

bool Slab::Commit(int64_t first_chunk, int64_t last_chunk, bool takes_idle) {
  bool backed = true;
  for (int64_t i = first_chunk / 64; backed && i * 64 < last_chunk; ++i) {
    const uint64_t mask = Mask(i, first_chunk, last_chunk);
    backed = (backed_[i].load(std::memory_order_acquire) & mask) == mask;
  }
  if (backed || IsBlockBacked()) return backed;
  std::lock_guard<std::mutex> lock(commit_mu_);
  int64_t missing = 0;
  for (int64_t chunk = first_chunk; chunk < last_chunk; ++chunk) {
    if (!IsBacked(chunk)) missing += kChunkBytes;
  }
  if (missing > 0 && account_ != nullptr && !account_->TryReserve(missing)) {
    // Release idle chunks to reuse their memory.
    if (!takes_idle || DecommitIdle(missing) == 0 || !account_->TryReserve(missing)) return false;
  }
  committed_.fetch_add(missing);
  std::atomic<int64_t>& backed_end = backed_end_[first_chunk * kChunkBytes >= capacity_bytes_];
  backed_end.store(std::max(backed_end.load(), last_chunk));
  for (int64_t chunk = first_chunk; chunk < last_chunk; ++chunk) {
    if (IsBacked(chunk)) continue;
    if (check_.load()) FillWithPoison(At(chunk * kChunkBytes), kChunkBytes);
    backed_[chunk / 64].fetch_or(uint64_t{1} << (chunk % 64), std::memory_order_release);
  }
  return true;
}

int64_t Slab::Decommit(int64_t bytes) {
  if (IsBlockBacked()) return 0;
  std::lock_guard<std::mutex> lock(commit_mu_);
  return DecommitIdle(bytes);
}

int64_t Slab::DecommitIdle(int64_t bytes) {
  decommits_.fetch_add(1);
  int64_t released_bytes = 0;
  const int64_t begins[] = {0, capacity_bytes_ / kChunkBytes};
  // From the top, which is used least often.
  for (const int half : {1, 0}) {
    for (int64_t chunk = backed_end_[half].load();
         chunk-- > begins[half] && released_bytes < bytes;) {
      if (IsBacked(chunk) && DecommitChunk(chunk)) released_bytes += kChunkBytes;
    }
  }
  decommits_.fetch_add(1);
  return released_bytes;
}

bool Slab::DecommitChunk(int64_t chunk) {
  const int64_t first = chunk * kGranulesAChunk;
  if (!IsBacked(chunk) || !ClaimGranules(first, first + kGranulesAChunk)) return false;
  // A concurrent claim finds the chunk claimed, or not backed.
  backed_[chunk / 64].fetch_and(~(uint64_t{1} << (chunk % 64)));
  madvise(At(chunk * kChunkBytes), kChunkBytes, MADV_DONTNEED);
  committed_.fetch_sub(kChunkBytes);
  if (account_ != nullptr) account_->Release(kChunkBytes);
  ReleaseGranules(first, first + kGranulesAChunk);
  return true;
}

void Slab::SetCheck(bool check) {
  if (IsBlockBacked()) return;
  std::lock_guard<std::mutex> lock(commit_mu_);
  check_.store(check);
  if (!check) return;
  const int64_t begins[] = {0, capacity_bytes_ / kGranuleBytes};
  for (const int half : {0, 1}) {
    const int64_t end = backed_end_[half].load() * kGranulesAChunk;
    for (int64_t granule = begins[half]; granule < end; ++granule) {
      if (!IsBacked(granule / kGranulesAChunk) || !ClaimGranules(granule, granule + 1)) {
        continue;
      }
      Poison(granule * kGranuleBytes, kGranuleBytes);
      ReleaseGranules(granule, granule + 1);
    }
  }
}

void Slab::Poison(int64_t offset, int64_t bytes) {
  for (const int64_t end = offset + bytes; offset < end;) {
    const int64_t chunk = offset / kChunkBytes;
    const int64_t part = std::min(end, (chunk + 1) * kChunkBytes) - offset;
    if (IsBacked(chunk)) FillWithPoison(At(offset), part);
    offset += part;
  }
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

std::string Slab::Picture(int64_t width) const {
  const int64_t unplanned_end = backed_end_[1].load() * kChunkBytes;
  return "planned [" + PictureOf(0, limit_.load(), width) + "], others [" +
         PictureOf(capacity_bytes_, unplanned_end, width) + "]";
}

std::string Slab::PictureOf(int64_t begin, int64_t end, int64_t width) const {
  // In whole chunks; each is one word of granules.
  static_assert(kGranulesAChunk == kWordGranules);
  const int64_t first = begin / kChunkBytes, count = end / kChunkBytes - first;
  std::string signs;
  for (int64_t part = 0; part < std::min(width, count); ++part) {
    const int64_t from = first + part * count / std::min(width, count);
    const int64_t to = first + (part + 1) * count / std::min(width, count);
    int64_t taken = 0, backed = 0;
    for (int64_t chunk = from; chunk < to; ++chunk) {
      taken += __builtin_popcountll(Taken(chunk));
      backed += IsBacked(chunk);
    }
    signs += taken == (to - from) * kWordGranules ? '#' : taken > 0 ? '+' : backed > 0 ? '.' : ' ';
  }
  return signs;
}

int64_t Slab::ClaimedIn(int64_t first_chunk, int64_t last_chunk) const {
  static_assert(kGranulesAChunk == kWordGranules);
  int64_t granules = 0;
  for (int64_t chunk = first_chunk; chunk < last_chunk; ++chunk) {
    if (chunk % 64 == 0 && backed_[chunk / 64].load(std::memory_order_relaxed) == 0) {
      chunk += 63;
    } else {
      granules += __builtin_popcountll(Taken(chunk));
    }
  }
  return granules * kGranuleBytes;
}

SlabStats Slab::Stats() const {
  return {limit_.load(), committed_.load(),
          ClaimedIn(0, backed_end_[0].load()) +
              ClaimedIn(capacity_bytes_ / kChunkBytes, backed_end_[1].load())};
}

}  // namespace tfswap
