#include "core/gpu/hazard_tracker.h"

#include <algorithm>

#include "core/memory/buffer_chunks.h"

namespace tfswap {

namespace {

// Limit on the accesses recorded per queue.
constexpr size_t kMaxAccesses = 8192;
// Freed blocks of at least this size get their own event soon; smaller ones share a later one.
constexpr int64_t kEventBytes = 256 * 1024;
// Acquisitions between two calls of Prune().
constexpr int64_t kPruneEvery = 64;

uintptr_t Address(const void* ptr) { return reinterpret_cast<uintptr_t>(ptr); }

// Move a large block in chunks, each followed by its own event. An encoded block has one size,
// known at its end, and moves as a whole.
template <typename Move>
bool InChunks(const Transfer& transfer, const Move& move) {
  if (transfer.form.kind != Form::Kind::kPlain) return move(transfer);
  const BufferChunks chunks(transfer.block_bytes);
  for (int i = 0; i < chunks.count(); ++i) {
    const int64_t begin = chunks.begin(i), bytes = chunks.bytes(i);
    const Transfer piece{static_cast<char*>(transfer.block) + begin, bytes,
                         static_cast<char*>(transfer.host) + begin, bytes};
    if (!move(piece)) return false;
  }
  return true;
}

}  // namespace

HazardTracker::~HazardTracker() {
  for (QueueState& line : queues_) {
    for (const RecordedEvent& recorded : line.events) gpu_->Recycle(recorded.event);
  }
}

void HazardTracker::Activate() {
  if (active_.load(std::memory_order_relaxed)) return;
  // Earlier frees were not recorded: copies-in wait for all of compute so far.
  QueueState& compute = state(Queue::kCompute);
  compute.dropped = ++compute.now;
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
  if (++acquired_ % kPruneEvery == 0) {
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
  if (fills_.erase(begin) > 0) {  // unread; the access of the copy stays recorded
    filling_.store(static_cast<int>(fills_.size()), std::memory_order_relaxed);
  }
  AddAccess(Queue::kCompute, block, bytes, /*writes=*/true);
  if (bytes >= kEventBytes) event_wanted_.store(true, std::memory_order_relaxed);
}

bool HazardTracker::MoveOut(const Transfer& transfer) {
  std::lock_guard<std::mutex> lock(mu_);
  Activate();
  const PiecewiseMove move = BeginOutLocked(transfer.block);
  return InChunks(transfer, [&](const Transfer& piece) { return Out(Queue::kOut, move, piece); });
}

bool HazardTracker::MoveIn(const Transfer& transfer) {
  std::lock_guard<std::mutex> lock(mu_);
  Activate();
  const PiecewiseMove move = BeginInLocked(transfer.block);
  return InChunks(transfer, [&](const Transfer& piece) { return In(Queue::kIn, move, piece); });
}

HazardTracker::PiecewiseMove HazardTracker::BeginOut(const void* block) {
  std::lock_guard<std::mutex> lock(mu_);
  Activate();
  return BeginOutLocked(block);
}

HazardTracker::PiecewiseMove HazardTracker::BeginIn(const void* block) {
  std::lock_guard<std::mutex> lock(mu_);
  Activate();
  return BeginInLocked(block);
}

bool HazardTracker::MovePieceOut(const PiecewiseMove& move, const Transfer& piece) {
  std::lock_guard<std::mutex> lock(mu_);
  return Out(Queue::kFileOut, move, piece);
}

bool HazardTracker::MovePieceIn(const PiecewiseMove& move, const Transfer& piece) {
  std::lock_guard<std::mutex> lock(mu_);
  return In(Queue::kFileIn, move, piece);
}

bool HazardTracker::IsIdle(const void* host, int64_t bytes) {
  std::lock_guard<std::mutex> lock(mu_);
  const uintptr_t begin = Address(host);
  for (const Queue queue : kCopyQueues) {
    Prune(queue);
    const QueueState& others = state(queue);
    if (others.dropped > others.happened) return false;
    for (const Access& access : others.accesses) {
      if (access.begin < begin + bytes && begin < access.end) return false;
    }
  }
  return true;
}

std::array<std::array<int64_t, kQueues>, kQueues> HazardTracker::waits() const {
  std::lock_guard<std::mutex> lock(mu_);
  std::array<std::array<int64_t, kQueues>, kQueues> waits;
  for (int i = 0; i < kQueues; ++i) waits[i] = queues_[i].waits;
  return waits;
}

int64_t HazardTracker::remembered() const {
  std::lock_guard<std::mutex> lock(mu_);
  int64_t sum = 0;
  for (const QueueState& line : queues_) sum += static_cast<int64_t>(line.accesses.size());
  return sum;
}

// Call the functions below with mu_ held.

HazardTracker::PiecewiseMove HazardTracker::BeginOutLocked(const void* block) {
  // The producer has been enqueued to compute already. If a copy-in produced the tensor and nothing
  // has used it since, its access is recorded.
  return {block, fills_.count(Address(block)) == 0 ? MarkCompute() : 0};
}

HazardTracker::PiecewiseMove HazardTracker::BeginInLocked(const void* block) {
  return {block, memory_ == Memory::kStreamOrdered ? MarkCompute() : 0};
}

bool HazardTracker::Out(Queue queue, const PiecewiseMove& move, const Transfer& transfer) {
  const uintptr_t block = Address(transfer.block), host = Address(transfer.host);
  WaitForPoint(queue, Queue::kCompute, move.point);
  WaitForOthers(queue, block, block + transfer.block_bytes, /*writes=*/false);
  WaitForOthers(queue, host, host + transfer.host_bytes, /*writes=*/true);
  if (!gpu_->Move(queue, transfer)) return false;
  AddAccess(queue, transfer.block, transfer.block_bytes, /*writes=*/false);
  AddAccess(queue, transfer.host, transfer.host_bytes, /*writes=*/true);
  Record(queue);
  Prune(queue);
  return true;
}

bool HazardTracker::In(Queue queue, const PiecewiseMove& move, const Transfer& transfer) {
  Prune(Queue::kCompute);
  const uintptr_t block = Address(transfer.block), host = Address(transfer.host);
  WaitForPoint(queue, Queue::kCompute, move.point);
  WaitForOthers(queue, block, block + transfer.block_bytes, /*writes=*/true);
  WaitForOthers(queue, host, host + transfer.host_bytes, /*writes=*/false);
  if (!gpu_->Move(queue, transfer)) return false;
  AddAccess(queue, transfer.block, transfer.block_bytes, /*writes=*/true);
  AddAccess(queue, transfer.host, transfer.host_bytes, /*writes=*/false);
  Record(queue);
  Prune(queue);
  fills_[Address(move.block)] = {queue, state(queue).now};
  filling_.store(static_cast<int>(fills_.size()), std::memory_order_relaxed);
  return true;
}

int64_t HazardTracker::MarkCompute() {
  QueueState& compute = state(Queue::kCompute);
  ++compute.now;
  Record(Queue::kCompute);
  return compute.now;
}

void HazardTracker::WaitForOthers(Queue queue, uintptr_t begin, uintptr_t end, bool writes) {
  for (int i = 0; i < kQueues; ++i) {
    const auto other = static_cast<Queue>(i);
    if (other == queue) continue;
    const QueueState& others = queues_[i];
    // From the newest on: the points of a queue complete in order, so one wait is enough.
    int64_t point = others.dropped;
    for (auto access = others.accesses.rbegin(); access != others.accesses.rend(); ++access) {
      if ((writes || access->writes) && access->begin < end && begin < access->end) {
        point = access->point;
        break;
      }
    }
    WaitForPoint(queue, other, point);
  }
}

void HazardTracker::WaitForPoint(Queue queue, Queue other, int64_t point) {
  QueueState& mine = state(queue);
  int64_t& known = mine.clock[static_cast<int>(other)];
  if (point <= known || point <= state(other).happened) return;
  const RecordedEvent& recorded = EventAfter(other, point);
  if (recorded.point > state(other).happened) {
    gpu_->Wait(queue, recorded.event);
    ++mine.waits[static_cast<int>(other)];
  }
  // All that the other queue waited for has completed as well.
  for (int i = 0; i < kQueues; ++i) mine.clock[i] = std::max(mine.clock[i], recorded.clock[i]);
  known = std::max(known, recorded.point);
}

const HazardTracker::RecordedEvent& HazardTracker::EventAfter(Queue queue, int64_t point) {
  std::deque<RecordedEvent>& events = state(queue).events;
  auto it = std::lower_bound(
      events.begin(), events.end(), point,
      [](const RecordedEvent& recorded, int64_t value) { return recorded.point < value; });
  if (it != events.end()) return *it;
  Record(queue);
  return events.back();
}

void HazardTracker::AddAccess(Queue queue, const void* begin, int64_t bytes, bool writes) {
  QueueState& mine = state(queue);
  ++mine.now;
  mine.accesses.push_back({Address(begin), Address(begin) + bytes, mine.now, writes});
  if (mine.accesses.size() <= kMaxAccesses) return;
  Prune(queue);
  while (mine.accesses.size() > kMaxAccesses / 2) {
    mine.dropped = mine.accesses.front().point;
    mine.accesses.pop_front();
  }
}

void HazardTracker::Record(Queue queue) {
  QueueState& mine = state(queue);
  if (!mine.events.empty() && mine.events.back().point == mine.now) return;
  mine.events.push_back({mine.now, gpu_->Record(queue), mine.clock});
}

void HazardTracker::Prune(Queue queue) {
  QueueState& mine = state(queue);
  while (!mine.events.empty() && gpu_->HasHappened(mine.events.front().event)) {
    mine.happened = mine.events.front().point;
    gpu_->Recycle(mine.events.front().event);
    mine.events.pop_front();
  }
  while (!mine.accesses.empty() && mine.accesses.front().point <= mine.happened) {
    mine.accesses.pop_front();
  }
}

}  // namespace tfswap
