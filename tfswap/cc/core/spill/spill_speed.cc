#include "core/spill/spill_speed.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

namespace tfswap {

namespace {

using Clock = std::chrono::steady_clock;

// The size of a large tensor.
constexpr int64_t kBlockBytes = int64_t{8} << 20;

// Transfer `extents` one after the other until `until`, or each once with `once`. Return the number
// of transfers.
size_t TransferExtents(SpillFile* file, const std::vector<int64_t>& extents, bool write, char* data,
                       Clock::time_point until, bool once, std::string* problem) {
  size_t done = 0;
  do {
    const int64_t extent = extents[done % extents.size()];
    *problem =
        write ? file->Write(extent, data, kBlockBytes) : file->Read(extent, data, kBlockBytes);
    if (!problem->empty()) return done;
    ++done;
  } while (Clock::now() < until && !(once && done == extents.size()));
  return done;
}

double Measure(SpillFile* file, const std::vector<int64_t>& extents, bool write, char* data,
               Clock::duration time, std::string* problem) {
  const Clock::time_point start = Clock::now();
  const size_t done = TransferExtents(file, extents, write, data, start + time, false, problem);
  const std::chrono::duration<double> took = Clock::now() - start;
  return static_cast<double>(done) * static_cast<double>(kBlockBytes) / took.count();
}

}  // namespace

std::string MeasureSpill(const std::string& folder, int64_t bytes, double seconds,
                         SpillSpeed* speed, const SpillOptions& options) {
  std::string problem;
  const std::unique_ptr<SpillFile> file = SpillFile::Create(folder, 0, &problem, options);
  if (file == nullptr) return problem;
  // Incompressible data.
  std::vector<char> memory(2 * kBlockBytes + 4096);
  char* data = memory.data() + (4096 - reinterpret_cast<uintptr_t>(memory.data()) % 4096) % 4096;
  uint64_t word = 0x9E3779B97F4A7C15ull;
  for (int64_t i = 0; i < 2 * kBlockBytes; i += 8) {
    word ^= word << 13;
    word ^= word >> 7;
    word ^= word << 17;
    std::memcpy(data + i, &word, 8);
  }
  std::vector<int64_t> extents;
  for (int64_t left = std::max(bytes, 2 * kBlockBytes); left >= kBlockBytes; left -= kBlockBytes) {
    extents.push_back(file->Allocate(kBlockBytes));
    if (extents.back() < 0) return file->problem();
  }
  const auto time = [seconds](double share) {
    return std::chrono::duration_cast<Clock::duration>(
        std::chrono::duration<double>(seconds * share));
  };
  // Write each extent once before measuring: a first write is slower than the rewrites of a
  // training.
  size_t written =
      TransferExtents(file.get(), extents, true, data, Clock::now() + time(0.25), true, &problem);
  for (; problem.empty() && written < 2; ++written) {
    problem = file->Write(extents[written], data, kBlockBytes);
  }
  if (!problem.empty()) return problem;
  extents.resize(written);

  speed->write_bytes_per_s = Measure(file.get(), extents, true, data, time(0.25), &problem);
  if (!problem.empty()) return problem;
  speed->read_bytes_per_s = Measure(file.get(), extents, false, data, time(0.25), &problem);
  if (!problem.empty()) return problem;

  const auto half = extents.begin() + static_cast<int64_t>(written / 2);
  const std::vector<int64_t> to_write(extents.begin(), half), to_read(half, extents.end());
  std::string write_problem;
  std::thread writer([&] {
    speed->both_write_bytes_per_s =
        Measure(file.get(), to_write, true, data, time(0.25), &write_problem);
  });
  speed->both_read_bytes_per_s =
      Measure(file.get(), to_read, false, data + kBlockBytes, time(0.25), &problem);
  writer.join();
  return problem.empty() ? write_problem : problem;
}

}  // namespace tfswap
