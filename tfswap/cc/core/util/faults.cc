#include "core/util/faults.h"

#include <charconv>
#include <chrono>
#include <optional>
#include <sstream>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

namespace tfswap {

namespace {

constexpr int kFaults = static_cast<int>(Fault::kCount);
static_assert(kFaults <= 32);

// In the order of Fault.
constexpr std::array<std::string_view, kFaults> kNames = {
    "copy-out-fails",   "copy-in-fails", "copy-throws", "slow-copy",   "bit-flip",
    "allocation-fails", "host-full",     "disk-full",   "write-error", "write-full",
    "short-write",      "read-error",    "short-read",  "end-of-file", "file-bit-flip",
    "slow-disk",        "thread-dies",   "cancel",
};
constexpr int64_t kDefaultMs = 20;

struct FaultSpec {
  Fault fault;
  int64_t after = 0;
  int64_t times = Faults::kMaxValue;
  int64_t ms = kDefaultMs;
  int64_t bit = 0;
};

bool IsSlow(Fault fault) { return fault == Fault::kSlowCopy || fault == Fault::kSlowDisk; }
bool IsFlip(Fault fault) { return fault == Fault::kBitFlip || fault == Fault::kFileBitFlip; }

std::optional<Fault> Parsed(std::string_view name) {
  for (int i = 0; i < kFaults; ++i) {
    if (kNames[i] == name) return static_cast<Fault>(i);
  }
  return std::nullopt;
}

std::string Unknown(const std::string& name) {
  std::string text = "unknown fault '" + name + "'; the faults are ";
  for (const std::string_view each : kNames) {
    text += (each == kNames.front() ? "" : ", ") + std::string(each);
  }
  return text;
}

// Parse an option such as "after=3"; return an error message or "".
std::string SetOption(std::string_view setting, FaultSpec* wanted) {
  const std::string name(kNames[static_cast<size_t>(wanted->fault)]);
  const size_t sign = setting.find('=');
  const std::string_view key = setting.substr(0, sign);
  int64_t least = 0, most = Faults::kMaxValue;
  int64_t* value = nullptr;
  if (key == "after") {
    value = &wanted->after;
  } else if (key == "times") {
    value = &wanted->times;
    least = 1;
  } else if (key == "ms" && IsSlow(wanted->fault)) {
    value = &wanted->ms;
    most = Faults::kMaxMs;
  } else if (key == "bit" && IsFlip(wanted->fault)) {
    value = &wanted->bit;
  }
  if (value == nullptr) {
    return "fault '" + name + "' has no '" + std::string(key) + "'; it has after, times" +
           (IsSlow(wanted->fault)   ? ", ms"
            : IsFlip(wanted->fault) ? ", bit"
                                    : "");
  }
  const std::string_view digits = sign == setting.npos ? "" : setting.substr(sign + 1);
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), *value);
  const bool is_number = error == std::errc() && end == digits.data() + digits.size();
  if (is_number && *value >= least && *value <= most) return "";
  return "fault '" + name + "': '" + std::string(key) + "' must be a number from " +
         std::to_string(least) + " to " + std::to_string(most) + "; got '" + std::string(digits) +
         "'";
}

std::string Parse(const std::string& text, std::vector<FaultSpec>* faults) {
  if (text.size() > Faults::kMaxCharacters) {
    return "the text of faults may have at most " + std::to_string(Faults::kMaxCharacters) +
           " characters; it has " + std::to_string(text.size());
  }
  std::istringstream all(text);
  for (std::string one; std::getline(all, one, ';');) {
    std::istringstream words(one);
    std::string word;
    if (!(words >> word)) continue;
    const std::optional<Fault> fault = Parsed(word);
    if (!fault) return Unknown(word);
    for (const FaultSpec& each : *faults) {
      if (each.fault == *fault) return "fault '" + word + "' is set twice";
    }
    faults->push_back({*fault});
    while (words >> word) {
      std::string problem = SetOption(word, &faults->back());
      if (!problem.empty()) return problem;
    }
  }
  return "";
}

}  // namespace

std::atomic<uint32_t> Faults::set_{0};

Faults* Faults::Get() {
  static auto* faults = new Faults();
  return faults;
}

std::string Faults::Set(const std::string& text) {
  std::vector<FaultSpec> wanted;
  std::string problem = Parse(text, &wanted);
  if (!problem.empty()) return problem;
  std::lock_guard<std::mutex> lock(mu_);
  set_.store(0);
  uint32_t bits = 0;
  for (const FaultSpec& each : wanted) {
    State& state = At(each.fault);
    state.after.store(each.after);
    state.times.store(each.times);
    state.ms.store(each.ms);
    state.bit.store(each.bit);
    state.checks.store(0);
    state.injected.store(0);
    state.was_set.store(true);
    bits |= BitOf(each.fault);
  }
  set_.store(bits);
  return "";
}

bool Faults::Decide(Fault fault) {
  State& state = At(fault);
  const int64_t number = state.checks.fetch_add(1) - state.after.load();
  if (number < 0 || number >= state.times.load()) return false;
  state.injected.fetch_add(1);
  return true;
}

void Faults::Sleep(Fault fault) const {
  std::this_thread::sleep_for(std::chrono::milliseconds(At(fault).ms.load()));
}

std::map<std::string, std::pair<int64_t, int64_t>> Faults::Counts() const {
  std::map<std::string, std::pair<int64_t, int64_t>> counts;
  for (size_t i = 0; i < states_.size(); ++i) {
    const State& state = states_[i];
    if (!state.was_set.load()) continue;
    counts[std::string(kNames[i])] = {state.checks.load(), state.injected.load()};
  }
  return counts;
}

}  // namespace tfswap
