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

// N counters that many threads add to, and somebody reads now and then. Each thread has a row of
// its own: adding takes no lock, no atomic read-modify-write, and no other thread's cache line.
template <int N>
class ThreadCounters {
 public:
  ThreadCounters() : id_(NextId()) {}
  ThreadCounters(const ThreadCounters&) = delete;
  ThreadCounters& operator=(const ThreadCounters&) = delete;

  // Of several counters, take the row once.
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
    // Ids, not addresses: another one may be at the address of one that is gone.
    thread_local int64_t owner = 0;
    thread_local Row* row = nullptr;
    if (owner == id_) return row;
    std::lock_guard<std::mutex> lock(mu_);
    std::unique_ptr<Row>& own = rows_[std::this_thread::get_id()];
    if (own == nullptr) own = std::make_unique<Row>();
    owner = id_;
    return row = own.get();
  }

  // Since Reset(). What others are adding meanwhile may be in it or not.
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
  // A thread that ends leaves its row to the next one of that id.
  std::unordered_map<std::thread::id, std::unique_ptr<Row>> rows_;
  std::array<int64_t, N> before_ = {};
};

}  // namespace tfswap

#endif  // TFSWAP_CC_CORE_UTIL_THREAD_COUNTERS_H_
