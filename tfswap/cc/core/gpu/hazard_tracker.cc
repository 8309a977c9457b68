#include "core/gpu/hazard_tracker.h"

#include <algorithm>

#include "core/memory/sections.h"

namespace tfswap {

namespace {

// More than this many freed blocks are not remembered one by one.
constexpr size_t kMostTouches = 8192;
// Freed blocks of this size get an event soon; smaller ones wait for somebody else's.
constexpr int64_t kEventBytes = 256 * 1024;
// Acquisitions between two looks at what has happened.
constexpr int64_t kLookEvery = 64;

uintptr_t Address(const void* ptr) { return reinterpret_cast<uintptr_t>(ptr); }

// Moves a large block piece by piece, each with an event of its own behind it. What is encoded has
// one size, at its end.
template <typename Move>
bool InSections(const Transfer& transfer, const Move& move) {
  if (transfer.form.kind != Form::Kind::kPlain) return move(transfer);
  const Sections sections(transfer.block_bytes);
  for (int i = 0; i < sections.count(); ++i) {
    const int64_t begin = sections.begin(i), bytes = sections.bytes(i);
    const Transfer piece{static_cast<char*>(transfer.block) + begin, bytes,
                         static_cast<char*>(transfer.host) + begin, bytes};
    if (!move(piece)) return false;
  }
  return true;
}

}  // namespace

HazardTracker::~HazardTracker() {
  for (Line& line : lines_) {
    for (const Recorded& recorded : line.events) gpu_->Recycle(recorded.event);
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
  WaitForPoint(Queue::kCompute, it->second.queue, it->second.point);
  fills_.erase(it);
  filling_.store(static_cast<int>(fills_.size()), std::memory_order_relaxed);
}

void HazardTracker::Acquired(const void* block, int64_t bytes) {
  if (!active()) return;
  std::lock_guard<std::mutex> lock(mu_);
  if (++acquired_ % kLookEvery == 0) {
    for (const Queue queue : kCopyQueues) Prune(queue);
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
  const Whole whole = BeginOutLocked(transfer.block);
  return InSections(transfer,
                    [&](const Transfer& piece) { return Out(Queue::kOut, whole, piece); });
}

bool HazardTracker::MoveIn(const Transfer& transfer) {
  std::lock_guard<std::mutex> lock(mu_);
  Activate();
  const Whole whole = BeginInLocked(transfer.block);
  return InSections(transfer, [&](const Transfer& piece) { return In(Queue::kIn, whole, piece); });
}

HazardTracker::Whole HazardTracker::BeginOut(const void* block) {
  std::lock_guard<std::mutex> lock(mu_);
  Activate();
  return BeginOutLocked(block);
}

HazardTracker::Whole HazardTracker::BeginIn(const void* block) {
  std::lock_guard<std::mutex> lock(mu_);
  Activate();
  return BeginInLocked(block);
}

bool HazardTracker::MovePieceOut(const Whole& whole, const Transfer& piece) {
  std::lock_guard<std::mutex> lock(mu_);
  return Out(Queue::kFileOut, whole, piece);
}

bool HazardTracker::MovePieceIn(const Whole& whole, const Transfer& piece) {
  std::lock_guard<std::mutex> lock(mu_);
  return In(Queue::kFileIn, whole, piece);
}

bool HazardTracker::IsIdle(const void* host, int64_t bytes) {
  std::lock_guard<std::mutex> lock(mu_);
  const uintptr_t begin = Address(host);
  for (const Queue queue : kCopyQueues) {
    Prune(queue);
    const Line& others = line(queue);
    if (others.forgotten > others.happened) return false;
    for (const Touch& touch : others.touches) {
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

HazardTracker::Whole HazardTracker::BeginOutLocked(const void* block) {
  // Whoever made the tensor has been given to compute: it is somewhere up to now. What a copy in
  // made, and nobody has used since, is among the touches.
  return {block, fills_.count(Address(block)) == 0 ? MarkCompute() : 0};
}

HazardTracker::Whole HazardTracker::BeginInLocked(const void* block) {
  return {block, memory_ == Memory::kStreamOrdered ? MarkCompute() : 0};
}

bool HazardTracker::Out(Queue queue, const Whole& whole, const Transfer& transfer) {
  const uintptr_t block = Address(transfer.block), host = Address(transfer.host);
  WaitForPoint(queue, Queue::kCompute, whole.point);
  WaitForOthers(queue, block, block + transfer.block_bytes, /*writes=*/false);
  WaitForOthers(queue, host, host + transfer.host_bytes, /*writes=*/true);
  if (!gpu_->Move(queue, transfer)) return false;
  Note(queue, transfer.block, transfer.block_bytes, /*writes=*/false);
  Note(queue, transfer.host, transfer.host_bytes, /*writes=*/true);
  Record(queue);
  Prune(queue);
  return true;
}

bool HazardTracker::In(Queue queue, const Whole& whole, const Transfer& transfer) {
  Prune(Queue::kCompute);
  const uintptr_t block = Address(transfer.block), host = Address(transfer.host);
  WaitForPoint(queue, Queue::kCompute, whole.point);
  WaitForOthers(queue, block, block + transfer.block_bytes, /*writes=*/true);
  WaitForOthers(queue, host, host + transfer.host_bytes, /*writes=*/false);
  if (!gpu_->Move(queue, transfer)) return false;
  Note(queue, transfer.block, transfer.block_bytes, /*writes=*/true);
  Note(queue, transfer.host, transfer.host_bytes, /*writes=*/false);
  Record(queue);
  Prune(queue);
  fills_[Address(whole.block)] = {queue, line(queue).now};
  filling_.store(static_cast<int>(fills_.size()), std::memory_order_relaxed);
  return true;
}

int64_t HazardTracker::MarkCompute() {
  Line& compute = line(Queue::kCompute);
  ++compute.now;
  Record(Queue::kCompute);
  return compute.now;
}

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
    gpu_->Wait(queue, recorded.event);
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
  mine.events.push_back({mine.now, gpu_->Record(queue), mine.clock});
}

void HazardTracker::Prune(Queue queue) {
  Line& mine = line(queue);
  while (!mine.events.empty() && gpu_->HasHappened(mine.events.front().event)) {
    mine.happened = mine.events.front().point;
    gpu_->Recycle(mine.events.front().event);
    mine.events.pop_front();
  }
  while (!mine.touches.empty() && mine.touches.front().point <= mine.happened) {
    mine.touches.pop_front();
  }
}

}  // namespace tfswap
