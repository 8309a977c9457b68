#include "grappler/pass_log.h"

#include <algorithm>
#include <map>
#include <mutex>

namespace tfswap {

namespace {

constexpr size_t kKept = 64;  // graphs; a process that makes ever new ones must not grow

std::mutex mu;
int64_t last_serial = 0;

std::map<std::string, PassRecord>& Records() {
  static auto* records = new std::map<std::string, PassRecord>();
  return *records;
}

}  // namespace

void LogPass(PassRecord record) {
  std::lock_guard<std::mutex> lock(mu);
  record.serial = ++last_serial;
  auto& records = Records();
  PassRecord& kept = records[record.fingerprint];
  // They are looked at once.
  if (record.floors.empty()) record.floors = std::move(kept.floors);
  kept = std::move(record);
  if (records.size() > kKept) {
    records.erase(std::min_element(
        records.begin(), records.end(),
        [](const auto& a, const auto& b) { return a.second.serial < b.second.serial; }));
  }
}

std::vector<PassRecord> PassRecords() {
  std::lock_guard<std::mutex> lock(mu);
  std::vector<PassRecord> records;
  for (const auto& [fingerprint, record] : Records()) records.push_back(record);
  std::sort(records.begin(), records.end(),
            [](const PassRecord& a, const PassRecord& b) { return a.serial < b.serial; });
  return records;
}

std::string DescriptionOf(const std::string& fingerprint) {
  std::lock_guard<std::mutex> lock(mu);
  auto it = Records().find(fingerprint);
  return it == Records().end() ? "" : it->second.description;
}

bool HasFloors(const std::string& fingerprint) {
  std::lock_guard<std::mutex> lock(mu);
  auto it = Records().find(fingerprint);
  return it != Records().end() && !it->second.floors.empty();
}

void ClearPassRecords() {
  std::lock_guard<std::mutex> lock(mu);
  Records().clear();
}

}  // namespace tfswap
