// Fault injection for tests: the only place where faults are configured and queried.
//
//  Set("copy-in-fails after=3 times=1; slow-disk ms=5")
//
// The first fault is injected once, on the fourth call that could fail; the second one always.
// While no fault is set, a query costs one relaxed load.

#ifndef TFSWAP_CC_CORE_UTIL_FAULTS_H_
#define TFSWAP_CC_CORE_UTIL_FAULTS_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <utility>

namespace tfswap {

// Names are in faults.cc. A copy is one of a buffer or of a variable, a call is one of SpillFile.
enum class Fault : int {
  kCopyOutFails,
  kCopyInFails,
  kCopyThrows,       // in either direction, on the copying thread
  kSlowCopy,         // in either direction; of copies by threads only
  kBitFlip,          // in host memory, encoded or not, before the copy-in
  kAllocationFails,  // the system has no memory for the device
  kHostFull,         // host memory is exhausted
  kDiskFull,         // the file cannot grow
  kWriteError,       // EIO, of one piece of a call
  kWriteFull,        // ENOSPC, of one piece of a call
  kShortWrite,       // half of the requested bytes
  kReadError,        // EIO, of one piece of a call
  kShortRead,        // half of the requested bytes
  kEndOfFile,        // a piece is missing
  kFileBitFlip,      // one bit of a piece is flipped
  kSlowDisk,         // each request of a call
  kThreadDies,       // one of tfswap's threads ends instead of starting its next task
  kCancel,           // a step is cancelled when a kernel is about to run
  kCount,
};

// Thread-safe. A process has one instance per library that the core is linked into.
class Faults {
 public:
  static constexpr size_t kMaxCharacters = 1000;
  static constexpr int64_t kMaxValue = 1'000'000'000;  // of any option
  static constexpr int64_t kMaxMs = 10'000;

  static Faults* Get();

  // Return whether to inject the fault now.
  static bool Strikes(Fault fault) {
    return (set_.load(std::memory_order_relaxed) & BitOf(fault)) != 0 && Get()->Decide(fault);
  }
  // Sleep for the duration of the fault if it is injected.
  static void Delay(Fault fault) {
    if (Strikes(fault)) Get()->Sleep(fault);
  }

  // Replace all faults; "" removes them. Return an error message, and change nothing, if the text
  // is invalid, else "". Options after a name: "after" (calls before the first injection; 0),
  // "times" (number of injections; unlimited), "ms" (of slow faults; 20) and "bit" (position of bit
  // flips, modulo the size; 0).
  std::string Set(const std::string& text);
  void Sleep(Fault fault) const;
  int64_t bit(Fault fault) const { return At(fault).bit.load(); }
  // Return the number of queries and of injections since it was last set, by the name of each fault
  // that was set since the process started.
  std::map<std::string, std::pair<int64_t, int64_t>> Counts() const;

 private:
  struct State {
    std::atomic<int64_t> after{0}, times{0}, ms{0}, bit{0};
    std::atomic<int64_t> checks{0}, injected{0};
    std::atomic<bool> was_set{false};
  };

  static constexpr uint32_t BitOf(Fault fault) { return uint32_t{1} << static_cast<int>(fault); }
  State& At(Fault fault) { return states_[static_cast<size_t>(fault)]; }
  const State& At(Fault fault) const { return states_[static_cast<size_t>(fault)]; }
  bool Decide(Fault fault);

  static std::atomic<uint32_t> set_;
  std::mutex mu_;
  std::array<State, static_cast<size_t>(Fault::kCount)> states_;
};

}  // namespace tfswap

#endif  // TFSWAP_CC_CORE_UTIL_FAULTS_H_
