#ifndef TFSWAP_CC_CORE_UTIL_THREAD_COUNTERS_H_
#define TFSWAP_CC_CORE_UTIL_THREAD_COUNTERS_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>

namespace tfswap {

// N counters that many threads increment and few reads sum up. Each thread has its own row, so
// adding takes no lock, no atomic read-modify-write, and no cache line of another thread.
template <int N>
class ThreadCounters {
 public:
  ThreadCounters() : id_(NextId()) {}
  ThreadCounters(const ThreadCounters&) = delete;
  ThreadCounters& operator=(const ThreadCounters&) = delete;

  // The counters of one thread; look it up once to add to several.
  class Row {
   public:
    void Add(int counter, int64_t by) {
      std::atomic<int64_t>& own = counts_[counter];
      own.store(own.load(std::memory_order_relaxed) + by, std::memory_order_relaxed);
    }

   private:
    friend class ThreadCounters;
    alignas(64) std::array<std::atomic<int64_t>, N> counts_ = {};
  };

  Row* ThisThreads() {
    // Compare ids, not addresses: an address may be reused.
    thread_local int64_t owner = 0;
    thread_local Row* row = nullptr;
    if (owner == id_) return row;
    std::lock_guard<std::mutex> lock(mu_);
    std::unique_ptr<Row>& own = rows_[std::this_thread::get_id()];
    if (own == nullptr) own = std::make_unique<Row>();
    owner = id_;
    return row = own.get();
  }

  // Return the sums since Reset(). Concurrent additions may or may not be included.
  std::array<int64_t, N> Sums() const {
    std::lock_guard<std::mutex> lock(mu_);
    std::array<int64_t, N> sums = Totals();
    for (int i = 0; i < N; ++i) sums[i] -= before_[i];
    return sums;
  }

  void Reset() {
    std::lock_guard<std::mutex> lock(mu_);
    before_ = Totals();
  }

 private:
  static int64_t NextId() {
    static std::atomic<int64_t> last{0};
    return ++last;
  }

  std::array<int64_t, N> Totals() const {
    std::array<int64_t, N> totals = {};
    for (const auto& [thread, row] : rows_) {
      for (int i = 0; i < N; ++i) totals[i] += row->counts_[i].load(std::memory_order_relaxed);
    }
    return totals;
  }

  const int64_t id_;
  mutable std::mutex mu_;
  // A thread id may be reused; the new thread continues the row.
  std::unordered_map<std::thread::id, std::unique_ptr<Row>> rows_;
  std::array<int64_t, N> before_ = {};
};

}  // namespace tfswap

#endif  // TFSWAP_CC_CORE_UTIL_THREAD_COUNTERS_H_
