#include "core/simulate/trace.h"

namespace tfswap {

namespace {

template <typename T>
void AppendRaw(const T* values, size_t count, std::string* out) {
  out->append(reinterpret_cast<const char*>(values), sizeof(T) * count);
}

}  // namespace

std::string StepTrace::Serialize() const {
  std::string joined;
  for (const std::string& name : names) joined.append(name).push_back('\n');
  const int64_t head[] = {start_ns,
                          end_ns,
                          resident_bytes,
                          static_cast<int64_t>(ops.size()),
                          static_cast<int64_t>(buffers.size()),
                          static_cast<int64_t>(accesses.size()),
                          static_cast<int64_t>(joined.size())};
  std::string out = "TFSWTRC2";
  AppendRaw(head, 7, &out);
  AppendRaw(ops.data(), ops.size(), &out);
  AppendRaw(buffers.data(), buffers.size(), &out);
  AppendRaw(accesses.data(), accesses.size(), &out);
  return out + joined;
}

int32_t NameTable::Intern(std::string_view name) {
  auto [it, inserted] = index_.try_emplace(std::string(name), static_cast<int32_t>(names_->size()));
  if (inserted) names_->emplace_back(name);
  return it->second;
}

}  // namespace tfswap
