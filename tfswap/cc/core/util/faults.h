// Faults on purpose, for tests: the one place where they are set, and where whoever could fail asks
// whether to.
//
//   Set("copy-in-fails after=3 times=1; slow-disk ms=5")
//
// The fault strikes from the fourth time on that it could, once; the other one always. While none
// is set, asking costs one relaxed load.

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

// Their names are in faults.cc; a copy is one of a buffer or of a variable, a call one of
// SpillFile's.
enum class Fault : int {
  kCopyOutFails,
  kCopyInFails,
  kCopyThrows,       // either way, on the thread that makes it
  kSlowCopy,         // either way; threads' only
  kBitFlip,          // of what is in host memory, encoded or not, before it is copied back
  kAllocationFails,  // the system has no memory for the device
  kHostFull,         // host memory takes no more
  kDiskFull,         // the file cannot grow
  kWriteError,       // EIO, of one piece of a call
  kWriteFull,        // ENOSPC, likewise
  kShortWrite,       // half of what was asked for
  kReadError,        // EIO, of one piece of a call
  kShortRead,        // half of what was asked for
  kEndOfFile,        // a piece is not there
  kFileBitFlip,      // one bit of a piece is read wrong
  kSlowDisk,         // each request of a call
  kThreadDies,       // one of ours, instead of taking up its next work
  kCancel,           // a step is cancelled when a kernel is about to run
  kCount,
};

// Thread-safe. A process has one for each library that the core is linked into.
class Faults {
 public:
  static constexpr size_t kMostCharacters = 1000;
  static constexpr int64_t kMost = 1'000'000'000;  // of any number
  static constexpr int64_t kMostMs = 10'000;

  static Faults* Get();

  // Whether it strikes here and now.
  static bool Strikes(Fault fault) {
    return (set_.load(std::memory_order_relaxed) & BitOf(fault)) != 0 && Get()->Decide(fault);
  }
  // Sleeps for as long as the fault says, if it strikes.
  static void Delay(Fault fault) {
    if (Strikes(fault)) Get()->Sleep(fault);
  }

  // In the place of all that were set; "" is none. Answers "" or what is wrong with the text, and
  // then all is as it was. After each name, of a fault's own: "after" (the times that it could have
  // struck before it does; 0), "times" (how often it strikes; always), "ms" (of slow ones; 20) and
  // "bit" (the place of flips, modulo what there is; 0).
  std::string Set(const std::string& text);
  void Sleep(Fault fault) const;
  int64_t bit(Fault fault) const { return At(fault).bit.load(); }
  // By name, of each fault that was ever set: how often it could have struck since it was set last,
  // and how often it did.
  std::map<std::string, std::pair<int64_t, int64_t>> Counts() const;

 private:
  struct State {
    std::atomic<int64_t> after{0}, times{0}, ms{0}, bit{0};
    std::atomic<int64_t> asked{0}, struck{0};
    std::atomic<bool> known{false};  // has been set
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
