#include "core/spill/spill_lanes.h"

#include <cstdlib>
#include <utility>

namespace tfswap {

namespace {

// Concurrent transfers. More of them wait, because the disk is saturated.
constexpr int kMaxLanes = 4;

}  // namespace

std::unique_ptr<SpillLane> SpillLane::Make(int file, bool io_uring) {
  auto lane = std::make_unique<SpillLane>();
  lane->queue = io_uring ? IoQueue::CreateRing(file) : IoQueue::CreateThreads(file);
  // Pages are allocated when first touched.
  lane->bounce = static_cast<char*>(
      std::aligned_alloc(kSpillPieceBytes, IoQueue::kSlots * SpillLane::kBounceBytes));
  if (lane->queue == nullptr || lane->bounce == nullptr) return nullptr;
  return lane;
}

SpillLane::~SpillLane() { std::free(bounce); }

SpillLanes::SpillLanes(int file, bool io_uring, std::unique_ptr<SpillLane> first)
    : file_(file), io_uring_(io_uring) {
  idle_.push_back(std::move(first));
}

std::unique_ptr<SpillLane> SpillLanes::Take() {
  std::unique_lock<std::mutex> lock(mu_);
  if (idle_.empty() && count_ < kMaxLanes) {
    ++count_;
    lock.unlock();
    std::unique_ptr<SpillLane> lane = SpillLane::Make(file_, io_uring_);
    if (lane == nullptr && io_uring_) lane = SpillLane::Make(file_, false);
    if (lane != nullptr) return lane;
    lock.lock();
    --count_;  // wait for an existing one
  }
  one_is_idle_.wait(lock, [this] { return !idle_.empty(); });
  std::unique_ptr<SpillLane> lane = std::move(idle_.back());
  idle_.pop_back();
  return lane;
}

void SpillLanes::Release(std::unique_ptr<SpillLane> lane) {
  {
    std::lock_guard<std::mutex> lock(mu_);
    idle_.push_back(std::move(lane));
  }
  one_is_idle_.notify_one();
}

}  // namespace tfswap
