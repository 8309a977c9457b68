#include "core/spill/io_queue.h"

#include <pthread.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "core/util/faults.h"

#if defined(__linux__) && __has_include(<linux/io_uring.h>)
#include <linux/io_uring.h>
#if defined(SYS_io_uring_setup) && defined(SYS_io_uring_enter) && defined(IORING_FEAT_SINGLE_MMAP)
#define TFSWAP_HAS_IO_URING 1
#endif
#endif

namespace tfswap {

namespace {

int64_t RunBlocking(int file, const IoRequest& request) {
  const auto begin = static_cast<off_t>(request.offset);
  const ssize_t bytes = request.write
                            ? pwritev(file, request.parts.data(), request.num_parts, begin)
                            : preadv(file, request.parts.data(), request.num_parts, begin);
  return bytes < 0 ? -errno : bytes;
}

#if TFSWAP_HAS_IO_URING

// The kernel accesses the other end of the rings.
template <typename T>
T LoadAcquire(const T* place) {
  return __atomic_load_n(place, __ATOMIC_ACQUIRE);
}
template <typename T>
void StoreRelease(T* place, T value) {
  __atomic_store_n(place, value, __ATOMIC_RELEASE);
}

class RingQueue : public IoQueue {
 public:
  static std::unique_ptr<IoQueue> Make(int file) {
    std::unique_ptr<RingQueue> queue(new RingQueue(file));
    if (!queue->SetUp()) return nullptr;
    return queue;
  }

  ~RingQueue() override {
    if (entries_ != nullptr) munmap(entries_, entries_bytes_);
    if (rings_ != nullptr) munmap(rings_, rings_bytes_);
    if (ring_ >= 0) close(ring_);
  }

  const char* name() const override { return "io_uring"; }

  void Submit(int slot, const IoRequest& request) override {
    requests_[slot] = request;
    const IoRequest& kept = requests_[slot];
    const uint32_t tail = *tail_;
    const uint32_t index = tail & mask_;
    io_uring_sqe& entry = entries_[index];
    std::memset(&entry, 0, sizeof(entry));
    entry.opcode = kept.write ? IORING_OP_WRITEV : IORING_OP_READV;
    entry.fd = file_;
    entry.off = static_cast<uint64_t>(kept.offset);
    entry.addr = reinterpret_cast<uintptr_t>(kept.parts.data());
    entry.len = static_cast<uint32_t>(kept.num_parts);
    entry.user_data = static_cast<uint64_t>(slot);
    array_[index] = index;
    StoreRelease(tail_, tail + 1);
    int64_t submitted;
    do {
      submitted = Enter(1, 0, 0);
    } while (submitted < 0 && errno == EINTR);
    if (submitted == 1) return;
    // The kernel is out of resources: run the request synchronously.
    StoreRelease(tail_, tail);
    completed_inline_.push_back({slot, RunBlocking(file_, kept)});
  }

  Done Wait() override {
    if (!completed_inline_.empty()) {
      const Done done = completed_inline_.front();
      completed_inline_.pop_front();
      return done;
    }
    for (;;) {
      const uint32_t head = *done_head_;
      if (head != LoadAcquire(done_tail_)) {
        const io_uring_cqe& entry = done_entries_[head & done_mask_];
        const Done done{static_cast<int>(entry.user_data), entry.res};
        StoreRelease(done_head_, head + 1);
        return done;
      }
      // Requests in flight complete despite an error here, and must be waited for.
      if (Enter(0, 1, IORING_ENTER_GETEVENTS) < 0 && errno != EINTR) usleep(1000);
    }
  }

 private:
  explicit RingQueue(int file) : file_(file) {}

  bool SetUp() {
    io_uring_params params = {};
    ring_ = static_cast<int>(syscall(SYS_io_uring_setup, kSlots, &params));
    if (ring_ < 0 || (params.features & IORING_FEAT_SINGLE_MMAP) == 0) return false;
    rings_bytes_ = std::max<size_t>(params.sq_off.array + params.sq_entries * sizeof(uint32_t),
                                    params.cq_off.cqes + params.cq_entries * sizeof(io_uring_cqe));
    entries_bytes_ = params.sq_entries * sizeof(io_uring_sqe);
    rings_ = static_cast<char*>(Map(rings_bytes_, IORING_OFF_SQ_RING));
    entries_ = static_cast<io_uring_sqe*>(Map(entries_bytes_, IORING_OFF_SQES));
    if (rings_ == nullptr || entries_ == nullptr) return false;
    tail_ = At<uint32_t>(params.sq_off.tail);
    mask_ = *At<uint32_t>(params.sq_off.ring_mask);
    array_ = At<uint32_t>(params.sq_off.array);
    done_head_ = At<uint32_t>(params.cq_off.head);
    done_tail_ = At<uint32_t>(params.cq_off.tail);
    done_mask_ = *At<uint32_t>(params.cq_off.ring_mask);
    done_entries_ = At<io_uring_cqe>(params.cq_off.cqes);
    return true;
  }

  void* Map(size_t bytes, uint64_t which) {
    void* mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring_,
                        static_cast<off_t>(which));
    if (mapped == MAP_FAILED) return nullptr;
    madvise(mapped, bytes, MADV_DONTFORK);  // a forked process would share the ring
    return mapped;
  }

  template <typename T>
  T* At(uint32_t offset) {
    return reinterpret_cast<T*>(rings_ + offset);
  }

  int64_t Enter(unsigned to_submit, unsigned min_done, unsigned flags) {
    return syscall(SYS_io_uring_enter, ring_, to_submit, min_done, flags, nullptr, 0);
  }

  const int file_;
  int ring_ = -1;
  char* rings_ = nullptr;
  size_t rings_bytes_ = 0;
  io_uring_sqe* entries_ = nullptr;
  size_t entries_bytes_ = 0;
  uint32_t* tail_ = nullptr;
  uint32_t mask_ = 0;
  uint32_t* array_ = nullptr;
  uint32_t* done_head_ = nullptr;
  uint32_t* done_tail_ = nullptr;
  uint32_t done_mask_ = 0;
  io_uring_cqe* done_entries_ = nullptr;
  std::array<IoRequest, kSlots> requests_;
  std::deque<Done> completed_inline_;
};

#endif  // TFSWAP_HAS_IO_URING

class ThreadQueue : public IoQueue {
 public:
  explicit ThreadQueue(int file) : file_(file) {
    try {
      for (int i = 0; i < kSlots; ++i) {
        std::lock_guard<std::mutex> lock(mu_);
        threads_.emplace_back([this] { Work(); });
        ++working_;
        pthread_setname_np(threads_.back().native_handle(), "tfswap-file");
      }
    } catch (const std::system_error&) {
      if (threads_.empty()) throw;  // fewer threads suffice
    }
  }

  ~ThreadQueue() override {
    {
      std::lock_guard<std::mutex> lock(mu_);
      closing_ = true;
    }
    wake_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  const char* name() const override { return "threads"; }

  void Submit(int slot, const IoRequest& request) override {
    {
      std::lock_guard<std::mutex> lock(mu_);
      requests_[slot] = request;
      pending_.push_back(slot);
    }
    wake_.notify_one();
  }

  Done Wait() override {
    std::unique_lock<std::mutex> lock(mu_);
    completed_.wait(lock,
                    [this] { return !done_.empty() || (working_ == 0 && !pending_.empty()); });
    if (done_.empty()) RunNextLocked(&lock);  // no thread is left to run it
    const Done done = done_.front();
    done_.pop_front();
    return done;
  }

 private:
  void Work() {
    std::unique_lock<std::mutex> lock(mu_);
    for (;;) {
      wake_.wait(lock, [this] { return closing_ || !pending_.empty(); });
      if (pending_.empty()) return;
      if (Faults::Strikes(Fault::kThreadDies)) {
        --working_;
        completed_.notify_one();
        wake_.notify_one();
        return;
      }
      RunNextLocked(&lock);
      completed_.notify_one();
    }
  }

  // Releases the lock during the request.
  void RunNextLocked(std::unique_lock<std::mutex>* lock) {
    const int slot = pending_.front();
    pending_.pop_front();
    const IoRequest request = requests_[slot];
    lock->unlock();
    const int64_t result = RunBlocking(file_, request);
    lock->lock();
    done_.push_back({slot, result});
  }

  const int file_;
  std::mutex mu_;
  std::condition_variable wake_, completed_;
  std::array<IoRequest, kSlots> requests_;
  std::deque<int> pending_;
  std::deque<Done> done_;
  bool closing_ = false;
  int working_ = 0;  // threads
  std::vector<std::thread> threads_;
};

}  // namespace

std::unique_ptr<IoQueue> IoQueue::CreateRing([[maybe_unused]] int file) {
#if TFSWAP_HAS_IO_URING
  return RingQueue::Make(file);
#else
  return nullptr;
#endif
}

std::unique_ptr<IoQueue> IoQueue::CreateThreads(int file) {
  try {
    return std::make_unique<ThreadQueue>(file);
  } catch (const std::system_error&) {
    return nullptr;
  }
}

}  // namespace tfswap
