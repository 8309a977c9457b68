#include "core/hazard_tracker.h"

#include <algorithm>

namespace tfswap {

namespace {

// More than this many freed blocks are not remembered one by one.
constexpr size_t kMostTouches = 8192;
// Freed blocks of this size get an event soon; smaller ones wait for somebody else's.
constexpr int64_t kEventBytes = 256 * 1024;
// Acquisitions between two looks at what has happened.
constexpr int64_t kLookEvery = 64;

uintptr_t Address(const void* ptr) { return reinterpret_cast<uintptr_t>(ptr); }

}  // namespace

HazardTracker::~HazardTracker() {
  for (Line& line : lines_) {
    for (const Recorded& recorded : line.events) card_->Recycle(recorded.event);
  }
}

void HazardTracker::Activate() {
  if (active_.load(std::memory_order_relaxed)) return;
  // What was freed until now is not known: whoever copies in waits for all of it.
  Line& compute = line(Queue::kCompute);
  compute.forgotten = ++compute.now;
  Record(Queue::kCompute);
  active_.store(true, std::memory_order_relaxed);
}

void HazardTracker::RecordBetweenOps() {
  std::lock_guard<std::mutex> lock(mu_);
  if (!event_wanted_.exchange(false)) return;
  Record(Queue::kCompute);
}

void HazardTracker::WaitForFill(const void* block) {
  std::lock_guard<std::mutex> lock(mu_);
  auto it = fills_.find(Address(block));
  if (it == fills_.end()) return;
  WaitForPoint(Queue::kCompute, Queue::kIn, it->second);
  fills_.erase(it);
  filling_.store(static_cast<int>(fills_.size()), std::memory_order_relaxed);
}

void HazardTracker::Acquired(const void* block, int64_t bytes) {
  if (!active()) return;
  std::lock_guard<std::mutex> lock(mu_);
  if (++acquired_ % kLookEvery == 0) {
    Prune(Queue::kOut);
    Prune(Queue::kIn);
  }
  WaitForOthers(Queue::kCompute, Address(block), Address(block) + bytes, /*writes=*/true);
}

void HazardTracker::Released(const void* block, int64_t bytes) {
  if (!active()) return;
  std::lock_guard<std::mutex> lock(mu_);
  const uintptr_t begin = Address(block);
  if (memory_ == Memory::kStreamOrdered) {
    WaitForOthers(Queue::kCompute, begin, begin + bytes, /*writes=*/true);
  }
  if (fills_.erase(begin) > 0) {  // nobody read it; the copy still writes, and is written down
    filling_.store(static_cast<int>(fills_.size()), std::memory_order_relaxed);
  }
  Note(Queue::kCompute, block, bytes, /*writes=*/true);
  if (bytes >= kEventBytes) event_wanted_.store(true, std::memory_order_relaxed);
}

bool HazardTracker::MoveOut(const Transfer& transfer) {
  std::lock_guard<std::mutex> lock(mu_);
  Activate();
  const uintptr_t block = Address(transfer.block), host = Address(transfer.host);
  // Whoever made the tensor has been given to compute: it is somewhere up to now. What a copy in
  // made, and nobody has used since, is among the touches.
  if (fills_.count(block) == 0) {
    WaitForPoint(Queue::kOut, Queue::kCompute, ++line(Queue::kCompute).now);
  }
  WaitForOthers(Queue::kOut, block, block + transfer.block_bytes, /*writes=*/false);
  WaitForOthers(Queue::kOut, host, host + transfer.host_bytes, /*writes=*/true);
  if (!card_->Move(Queue::kOut, transfer)) return false;
  Note(Queue::kOut, transfer.block, transfer.block_bytes, /*writes=*/false);
  Note(Queue::kOut, transfer.host, transfer.host_bytes, /*writes=*/true);
  Record(Queue::kOut);
  Prune(Queue::kOut);
  return true;
}

bool HazardTracker::MoveIn(const Transfer& transfer) {
  std::lock_guard<std::mutex> lock(mu_);
  Activate();
  Prune(Queue::kCompute);
  const uintptr_t block = Address(transfer.block), host = Address(transfer.host);
  if (memory_ == Memory::kStreamOrdered) {
    WaitForPoint(Queue::kIn, Queue::kCompute, ++line(Queue::kCompute).now);
  }
  WaitForOthers(Queue::kIn, block, block + transfer.block_bytes, /*writes=*/true);
  WaitForOthers(Queue::kIn, host, host + transfer.host_bytes, /*writes=*/false);
  if (!card_->Move(Queue::kIn, transfer)) return false;
  Note(Queue::kIn, transfer.block, transfer.block_bytes, /*writes=*/true);
  Note(Queue::kIn, transfer.host, transfer.host_bytes, /*writes=*/false);
  Record(Queue::kIn);
  Prune(Queue::kIn);
  fills_[block] = line(Queue::kIn).now;
  filling_.store(static_cast<int>(fills_.size()), std::memory_order_relaxed);
  return true;
}

bool HazardTracker::IsIdle(const void* host, int64_t bytes) {
  std::lock_guard<std::mutex> lock(mu_);
  const uintptr_t begin = Address(host);
  for (const Queue queue : {Queue::kOut, Queue::kIn}) {
    Prune(queue);
    for (const Touch& touch : line(queue).touches) {
      if (touch.begin < begin + bytes && begin < touch.end) return false;
    }
  }
  return true;
}

std::array<std::array<int64_t, kQueues>, kQueues> HazardTracker::waits() const {
  std::lock_guard<std::mutex> lock(mu_);
  std::array<std::array<int64_t, kQueues>, kQueues> waits;
  for (int i = 0; i < kQueues; ++i) waits[i] = lines_[i].waits;
  return waits;
}

int64_t HazardTracker::remembered() const {
  std::lock_guard<std::mutex> lock(mu_);
  int64_t sum = 0;
  for (const Line& line : lines_) sum += static_cast<int64_t>(line.touches.size());
  return sum;
}

// All below: with mu_ held.

void HazardTracker::WaitForOthers(Queue queue, uintptr_t begin, uintptr_t end, bool writes) {
  for (int i = 0; i < kQueues; ++i) {
    const auto other = static_cast<Queue>(i);
    if (other == queue) continue;
    const Line& others = lines_[i];
    // From the newest on: a queue's points happen in order, so one wait is enough.
    int64_t point = others.forgotten;
    for (auto touch = others.touches.rbegin(); touch != others.touches.rend(); ++touch) {
      if ((writes || touch->writes) && touch->begin < end && begin < touch->end) {
        point = touch->point;
        break;
      }
    }
    WaitForPoint(queue, other, point);
  }
}

void HazardTracker::WaitForPoint(Queue queue, Queue other, int64_t point) {
  Line& mine = line(queue);
  int64_t& known = mine.clock[static_cast<int>(other)];
  if (point <= known || point <= line(other).happened) return;
  const Recorded& recorded = EventBehind(other, point);
  if (recorded.point > line(other).happened) {
    card_->Wait(queue, recorded.event);
    ++mine.waits[static_cast<int>(other)];
  }
  // What the other one waited for before is over too.
  for (int i = 0; i < kQueues; ++i) mine.clock[i] = std::max(mine.clock[i], recorded.clock[i]);
  known = std::max(known, recorded.point);
}

const HazardTracker::Recorded& HazardTracker::EventBehind(Queue queue, int64_t point) {
  std::deque<Recorded>& events = line(queue).events;
  auto it = std::lower_bound(
      events.begin(), events.end(), point,
      [](const Recorded& recorded, int64_t value) { return recorded.point < value; });
  if (it != events.end()) return *it;
  Record(queue);
  return events.back();
}

void HazardTracker::Note(Queue queue, const void* begin, int64_t bytes, bool writes) {
  Line& mine = line(queue);
  ++mine.now;
  mine.touches.push_back({Address(begin), Address(begin) + bytes, mine.now, writes});
  if (mine.touches.size() <= kMostTouches) return;
  Prune(queue);
  while (mine.touches.size() > kMostTouches / 2) {
    mine.forgotten = mine.touches.front().point;
    mine.touches.pop_front();
  }
}

void HazardTracker::Record(Queue queue) {
  Line& mine = line(queue);
  if (!mine.events.empty() && mine.events.back().point == mine.now) return;
  mine.events.push_back({mine.now, card_->Record(queue), mine.clock});
}

void HazardTracker::Prune(Queue queue) {
  Line& mine = line(queue);
  while (!mine.events.empty() && card_->HasHappened(mine.events.front().event)) {
    mine.happened = mine.events.front().point;
    card_->Recycle(mine.events.front().event);
    mine.events.pop_front();
  }
  while (!mine.touches.empty() && mine.touches.front().point <= mine.happened) {
    mine.touches.pop_front();
  }
}

}  // namespace tfswap
