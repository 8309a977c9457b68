#ifndef TFSWAP_CC_CORE_SIMULATE_TRACE_H_
#define TFSWAP_CC_CORE_SIMULATE_TRACE_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

// The effect of one or more steps on a device's memory, as plain data.
//
//   time ->      op A          op B
//              |-----|      |--------|
//   buffer 0   [=====output==========]        alloc_ns .. free_ns
//   buffer 1                [==temp==]
//
//   accesses:  (A, output 0, buffer 0)  (B, input 1, buffer 0)  ...

namespace tfswap {

enum class BufferKind : int32_t { kOutput = 0, kTemp = 1, kOther = 2 };
inline constexpr int kBufferKinds = 3;

struct OpRecord {
  int64_t start_ns;
  int64_t end_ns;
  int64_t wait_ns;    // part of the duration that was spent waiting for memory
  int64_t step_id;    // TensorFlow's id of the run
  uint64_t frame;     // while-loop frame, 0 outside of loops
  int64_t iteration;  // iteration of that frame
  int32_t name;       // index into StepTrace::names
  int32_t type;       // index into StepTrace::names
  int32_t graph;      // index of the fingerprint of its graph; -1: none (graph_mark.h)
  int32_t unused;     // keeps the record a multiple of 8 bytes
};

struct BufferRecord {
  int64_t bytes;
  int64_t alloc_ns;  // -1: before the recording
  int64_t free_ns;   // -1: after the recording
  int32_t name;      // the op that allocated it
  int32_t kind;      // BufferKind
};

struct AccessRecord {
  int32_t op;      // index into StepTrace::ops
  int32_t port;    // input i is i, output i is -1 - i
  int32_t buffer;  // index into StepTrace::buffers
  // 1 if the buffer is the value of a variable: of input `port`, when the op starts; of input -1 -
  // `port`, when it ends.
  int32_t of_variable;
};

struct StepTrace {
  int64_t start_ns = 0;
  int64_t end_ns = 0;
  int64_t resident_bytes = 0;  // small buffers, which are not in `buffers`, at the start
  std::vector<OpRecord> ops;
  std::vector<BufferRecord> buffers;
  std::vector<AccessRecord> accesses;
  std::vector<std::string> names;

  // Layout: 8 bytes "TFSWTRC2", 7 int64 (start_ns, end_ns, resident_bytes, and the numbers of ops,
  // buffers, accesses and bytes of names), the four arrays; each name ends in a newline.
  std::string Serialize() const;
};

// Maps equal strings to the same small number.
class NameTable {
 public:
  explicit NameTable(std::vector<std::string>* names) : names_(names) {}
  int32_t Intern(std::string_view name);

 private:
  std::vector<std::string>* names_;
  std::unordered_map<std::string, int32_t> index_;
};

}  // namespace tfswap

#endif  // TFSWAP_CC_CORE_SIMULATE_TRACE_H_
