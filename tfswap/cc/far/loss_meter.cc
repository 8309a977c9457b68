#include "far/loss_meter.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>

namespace tfswap {

namespace {

constexpr size_t kEvery = 16;  // sections

}  // namespace

void LossMeter::Compare(const std::string& label, const void* data, const EncodedBuffer& encoded) {
  const size_t sections = encoded.sections.size();
  if (sections == 0) return;
  size_t first;
  {
    std::lock_guard<std::mutex> lock(mu_);
    first = found_[label].compared++ % std::min(kEvery, sections);
  }
  Found now;
  const auto decoded = std::make_unique<float[]>(kSectionBytes / sizeof(float));
  for (size_t section = first; section < sections; section += kEvery) {
    const char* const source = static_cast<const char*>(data) + section * kSectionBytes;
    const size_t floats = DecodeOneSection(encoded, section, decoded.get()) / sizeof(float);
    for (size_t i = 0; i < floats; ++i) {
      float exact;
      std::memcpy(&exact, source + i * sizeof(float), sizeof(float));
      if (!std::isfinite(exact)) continue;
      const double error = std::abs(static_cast<double>(exact) - decoded[i]);
      now.squared_error += error * error;
      now.squared += static_cast<double>(exact) * exact;
      now.largest_error = std::max(now.largest_error, error);
    }
  }
  std::lock_guard<std::mutex> lock(mu_);
  Found& found = found_[label];
  found.squared_error += now.squared_error;
  found.squared += now.squared;
  found.largest_error = std::max(found.largest_error, now.largest_error);
}

void LossMeter::Reset() {
  std::lock_guard<std::mutex> lock(mu_);
  found_.clear();
}

std::vector<Loss> LossMeter::Losses() const {
  std::lock_guard<std::mutex> lock(mu_);
  std::vector<Loss> losses;
  for (const auto& [label, found] : found_) {
    const double relative = found.squared > 0 ? std::sqrt(found.squared_error / found.squared) : 0;
    losses.push_back({label, relative, found.largest_error});
  }
  return losses;
}

}  // namespace tfswap
