#include "grappler/pass_log.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <utility>

namespace tfswap {

namespace {

constexpr size_t kMaxRecords = 64;  // bounds the memory of a process that keeps tracing graphs

std::mutex mu;
int64_t last_serial = 0;

using Key = std::pair<std::string, std::string>;

std::map<Key, PassRecord>& Records() {
  static auto* records = new std::map<Key, PassRecord>();
  return *records;
}

// Return the first record of the graph for which `has` holds; null if there is none.
template <typename Has>
const PassRecord* FindOf(const std::string& fingerprint, Has has) {
  const auto& records = Records();
  for (auto it = records.lower_bound({fingerprint, ""});
       it != records.end() && it->first.first == fingerprint; ++it) {
    if (has(it->second)) return &it->second;
  }
  return nullptr;
}

const PassRecord* WithFloors(const std::string& fingerprint) {
  return FindOf(fingerprint, [](const PassRecord& each) { return !each.floors.empty(); });
}

}  // namespace

void LogPass(PassRecord record) {
  std::lock_guard<std::mutex> lock(mu);
  record.serial = ++last_serial;
  auto& records = Records();
  // The floors are computed once per graph.
  const PassRecord* known = record.floors.empty() ? WithFloors(record.fingerprint) : nullptr;
  if (known != nullptr) record.floors = known->floors;
  const auto earlier = records.find({record.fingerprint, record.label});
  if (earlier != records.end()) record.times += earlier->second.times;
  PassRecord& kept = records[{record.fingerprint, record.label}];
  kept = std::move(record);
  if (records.size() > kMaxRecords) {
    records.erase(std::min_element(
        records.begin(), records.end(),
        [](const auto& a, const auto& b) { return a.second.serial < b.second.serial; }));
  }
}

std::vector<PassRecord> PassRecords() {
  std::lock_guard<std::mutex> lock(mu);
  std::vector<PassRecord> records;
  for (const auto& [key, record] : Records()) records.push_back(record);
  std::sort(records.begin(), records.end(),
            [](const PassRecord& a, const PassRecord& b) { return a.serial < b.serial; });
  return records;
}

std::string DescriptionOf(const std::string& fingerprint) {
  std::lock_guard<std::mutex> lock(mu);
  const PassRecord* found =
      FindOf(fingerprint, [](const PassRecord& each) { return !each.description.empty(); });
  return found == nullptr ? "" : found->description;
}

std::string DescriptionUnderPlan(const std::string& fingerprint, const std::string& label) {
  {
    std::lock_guard<std::mutex> lock(mu);
    const auto known = Records().find({fingerprint, label});
    if (known != Records().end() && !known->second.planned_description.empty()) {
      return known->second.planned_description;
    }
  }
  return DescriptionOf(fingerprint);
}

bool HasFloors(const std::string& fingerprint) {
  std::lock_guard<std::mutex> lock(mu);
  return WithFloors(fingerprint) != nullptr;
}

void ClearPassRecords() {
  std::lock_guard<std::mutex> lock(mu);
  Records().clear();
}

}  // namespace tfswap
