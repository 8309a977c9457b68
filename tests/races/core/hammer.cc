// Stress test of the code that does not depend on TensorFlow, under a sanitizer.
//
//     core_hammer --seconds 3 --folder FOLDER_FOR_THE_FILE

#include "hammer.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "core/gpu/hazard_tracker.h"
#include "core/memory/address_table.h"
#include "core/memory/host_pool.h"
#include "core/memory/slab.h"
#include "core/util/thread_counters.h"
#include "far/far_memory.h"
#include "far/loss_meter.h"
#include "far/ratio_sampler.h"
#include "pattern.h"

namespace {

using races::Between;
using races::Dice;
using races::Fill;
using races::Holds;
using races::Require;
using namespace tfswap;  // NOLINT: all of it

constexpr int64_t kKiB = 1024;

uint32_t NextOwner() {
  static std::atomic<uint32_t> last{0};
  return ++last;
}

class Account : public MemoryAccount {
 public:
  bool TryReserve(int64_t bytes) override {
    int64_t used = used_.load();
    do {
      if (used + bytes > limit.load()) return false;
    } while (!used_.compare_exchange_weak(used, used + bytes));
    return true;
  }
  void Release(int64_t bytes) override { used_.fetch_sub(bytes); }
  int64_t OverBudgetBytes() const override {
    return std::max(used_.load() - limit.load(), int64_t{0});
  }
  int64_t used() const { return used_.load(); }

  std::atomic<int64_t> limit{int64_t{2} << 20};

 private:
  std::atomic<int64_t> used_{0};
};

class SlabUser {
 public:
  SlabUser() { slab_.SetLimit(int64_t{1} << 20); }

  void Claim(Dice* dice) {
    const int64_t bytes = Between(dice, 1, 140 * kKiB);
    const uint32_t owner = NextOwner();
    int64_t offset = Between(dice, 0, 900) * kKiB;
    const int64_t way = Between(dice, 0, 3);
    const int64_t paid = way == 1 && bytes > 70 * kKiB ? 64 * kKiB : 0;
    if (way == 0) {
      if (slab_.Claim(offset, bytes) != Slab::Claimed::kYes) return;
    } else {
      offset = way == 3 ? slab_.ClaimPaid(bytes) : slab_.ClaimUnplanned(bytes, paid);
      if (offset < 0) return;
    }
    if (paid > 0) {
      Fill(slab_.At(offset), paid, owner);
      const bool is_paid = slab_.Pay(offset, bytes);
      Require(Holds(slab_.At(offset), paid, owner), "a claim lost its beginning");
      if (!is_paid) return slab_.Release(offset);
    }
    Fill(slab_.At(offset), bytes, owner);
    if (way == 2) {
      const int64_t kept = Between(dice, 1, 140) * kKiB;
      slab_.ReleaseEnd(offset, kept);
      Require(Holds(slab_.At(offset), std::min(kept, bytes), owner), "a claim lost what it kept");
    } else {
      Require(Holds(slab_.At(offset), bytes, owner), "a claim is somebody else's too");
    }
    slab_.Release(offset);
  }
  void Decommit(Dice* dice) {
    slab_.Decommit(Between(dice, 0, 1 << 20));
    slab_.SetLimit(Between(dice, 0, 20) * 64 * kKiB);
    slab_.Picture(20);
    account_.limit.store(Between(dice, 1, 32) * 64 * kKiB);
  }
  void End() {
    Require(slab_.Stats().claimed_bytes == 0, "granules stayed taken");
    Require(account_.used() == slab_.Stats().committed_bytes, "what is backed is not what is paid");
  }

 private:
  Account account_;
  Slab slab_{int64_t{1} << 30, &account_};
};

class PoolUser {
 public:
  PoolUser() { pool_.SetLimit(4096 * kKiB); }

  void Use(Dice* dice) {
    const uint32_t owner = NextOwner();
    const int64_t bytes = Between(dice, 1, (Between(dice, 0, 9) == 0 ? 300 : 60) * kKiB);
    void* block = pool_.Allocate(bytes);
    if (block == nullptr) return;
    Fill(block, bytes, owner);
    if (Between(dice, 0, 20) == 0) pool_.Trim();
    Require(Holds(block, bytes, owner), "a host block has two owners");
    pool_.Free(block, bytes);
  }
  void Limit(Dice* dice) {
    pool_.SetLimit(Between(dice, 0, 8) * 1024 * kKiB);
    pool_.ResetPeak();
  }
  void End() { Require(pool_.Stats().bytes_in_use == 0, "host memory stays in use"); }

 private:
  HostPool pool_{HostPool::System(1024 * kKiB)};
};

class FarUser {
 public:
  explicit FarUser(const std::string& folder) : folder_(folder) {
    sampler_.SetCodecs({Codec::kZvc});
    memory_.SetLossyRate(50);
    Open(nullptr);
  }

  void Use(Dice* dice) {
    const int64_t bytes = Between(dice, 1, 150) * kKiB;
    const uint32_t owner = NextOwner();
    std::vector<char> tensor(bytes);
    Fill(tensor.data(), bytes, owner);
    PlacementRequest request;
    request.tier = static_cast<FarTier>(Between(dice, 0, 2));
    const Codec codecs[] = {Codec::kStored, Codec::kZvc, Codec::kRle, Codec::kCsr, Codec::kBfp};
    request.codec.codec = codecs[Between(dice, 0, 4)];
    request.codec.rate_percent = 50;
    request.threads = static_cast<int>(Between(dice, 1, 3));
    sampler_.Sample("tensor", tensor.data(), bytes, 4);
    FarCopy copy;
    if (!memory_.Put(tensor.data(), bytes, request, &copy)) return;
    if (copy.lossy) meter_.Compare("tensor", tensor.data(), copy.encoded);
    std::fill(tensor.begin(), tensor.end(), 0);
    const std::string problem = memory_.Get(copy, tensor.data()).why;
    Require(problem.empty(), problem);
    Require(copy.lossy || Holds(tensor.data(), bytes, owner), "another tensor came back");
    memory_.Drop(&copy);
  }
  // Replace the file; the old file keeps its contents.
  void Open(Dice* dice) {
    if (dice != nullptr && Between(dice, 0, 4) > 0) return;
    const std::string problem = FarFile::Get()->Open(folder_, int64_t{64} << 20);
    if (!problem.empty()) std::fprintf(stderr, "without a file: %s\n", problem.c_str());
  }
  void Consider(Dice* dice) {
    memory_.host()->SetLimit(Between(dice, 1, 8) * 512 * kKiB);
    memory_.WhyBlocked(kKiB);
    memory_.Stats();
    sampler_.Samples();
    meter_.Losses();
    if (Between(dice, 0, 3) == 0) memory_.ResetStats();
  }
  void End() {
    Require(memory_.host()->Stats().bytes_in_use == 0, "far memory stays in use");
    FarFile::Get()->Close();
  }

 private:
  const std::string folder_;
  FarMemory memory_{FarFile::Get()};
  RatioSampler sampler_;
  LossMeter meter_;
};

// A GPU whose commands may or may not have ended when it is asked.
class QuickCard : public Gpu {
 public:
  Event Record(Queue) override {
    std::lock_guard<std::mutex> lock(mu_);
    alive_.insert(++last_);
    return reinterpret_cast<Event>(last_);
  }
  void Wait(Queue, Event event) override { Consider(event); }
  bool HasHappened(Event event) override { return Consider(event) % 3 != 0; }
  void Recycle(Event event) override {
    std::lock_guard<std::mutex> lock(mu_);
    Require(alive_.erase(reinterpret_cast<uintptr_t>(event)) == 1, "an event is recycled twice");
  }
  bool Move(Queue, const Transfer&) override { return true; }

 private:
  uintptr_t Consider(Event event) {
    std::lock_guard<std::mutex> lock(mu_);
    Require(alive_.count(reinterpret_cast<uintptr_t>(event)) == 1, "an event that was recycled");
    return ++asked_;
  }

  std::mutex mu_;
  std::set<uintptr_t> alive_;
  uintptr_t last_ = 0, asked_ = 0;
};

class TrackerUser {
 public:
  void Use(Dice* dice) {
    char* block = memory_.data() + Between(dice, 0, 63) * kBlock;
    char* host = memory_.data() + (64 + Between(dice, 0, 63)) * kBlock;
    tracker_.OpBegins();
    switch (Between(dice, 0, 5)) {
      case 0:
        return tracker_.Acquired(block, kBlock);
      case 1:
        return tracker_.Released(block, kBlock);
      case 2:
        tracker_.CopyOut(host, block, kBlock);
        return;
      case 3:
        tracker_.CopyIn(block, host, kBlock);
        return tracker_.BeforeUse(block);
      case 4:
        tracker_.MovePieceOut(tracker_.BeginOut(block), {block, kBlock, host, kBlock});
        return;
      default:
        tracker_.IsIdle(host, kBlock);
        tracker_.waits();
        tracker_.remembered();
    }
  }

 private:
  static constexpr int64_t kBlock = 512;
  std::vector<char> memory_ = std::vector<char>(128 * kBlock);
  QuickCard gpu_;
  HazardTracker tracker_{&gpu_, HazardTracker::Memory::kInOrder};
};

class TableUser {
 public:
  void Use(Dice* dice) {
    auto* row = counters_.ThisThreads();
    std::vector<std::unique_ptr<int>> blocks;
    for (int64_t i = Between(dice, 1, 40); i > 0; --i) {
      blocks.push_back(std::make_unique<int>(static_cast<int>(i)));
      table_.Insert(blocks.back().get(), *blocks.back(), [&] { row->Add(0, 1); });
    }
    for (const auto& block : blocks) {
      Require(table_.Get(block.get(), -1) == *block, "a block is not in the table");
      int found = -1;
      Require(table_.Remove(block.get(), [&](int value) { found = value; }), "it is gone");
      Require(found == *block, "it is another one's");
      row->Add(0, -1);
    }
  }
  void Consider(Dice*) {
    int64_t sum = 0;
    table_.Hold([&](auto all) { all([&](const void*, int value) { sum += value; }); });
    Require(sum >= 0, "a table of what is not there");
    counters_.Sums();
  }
  void End() { Require(counters_.Sums()[0] == 0, "counters lost something"); }

 private:
  AddressTable<int> table_;
  ThreadCounters<1> counters_;
};

}  // namespace

int main(int argc, char** argv) {
  auto arguments = races::ArgumentsOf(argc, argv);
  SlabUser slab;
  PoolUser pool;
  FarUser far(arguments["folder"]);
  TrackerUser tracker;
  TableUser table;
  races::Hammer({{"claims", 60, [&](Dice* dice) { slab.Claim(dice); }},
                 {"decommits", 5, [&](Dice* dice) { slab.Decommit(dice); }},
                 {"host blocks", 40, [&](Dice* dice) { pool.Use(dice); }},
                 {"host limits", 2, [&](Dice* dice) { pool.Limit(dice); }},
                 {"far copies", 30, [&](Dice* dice) { far.Use(dice); }},
                 {"far looks", 3, [&](Dice* dice) { far.Consider(dice); }},
                 {"files", 1, [&](Dice* dice) { far.Open(dice); }},
                 {"hazards", 60, [&](Dice* dice) { tracker.Use(dice); }},
                 {"tables", 30, [&](Dice* dice) { table.Use(dice); }},
                 {"table looks", 3, [&](Dice* dice) { table.Consider(dice); }}},
                /*threads=*/4, std::atof(arguments["seconds"].c_str()));
  slab.End();
  pool.End();
  far.End();
  table.End();
  return 0;
}
