#include "bindings/codec_bindings.h"

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings/buffer_bytes.h"
#include "codecs/blosc.h"
#include "codecs/codec.h"
#include "codecs/codec_path.h"
#include "codecs/codec_stream.h"
#include "core/util/thread_team.h"

namespace py = pybind11;

namespace tfswap {
namespace {

constexpr size_t kPageBytes = 4096;

// Chunks from the heap, at most `most` at once. Returned chunks are reused.
class HeapChunks : public ChunkSource {
 public:
  HeapChunks(size_t chunk_bytes, size_t most) : chunk_bytes_(chunk_bytes), most_(most) {}

  char* Take() override {
    if (free_.empty() && chunks_.size() < most_) {
      chunks_.push_back(std::make_unique<char[]>(chunk_bytes_));
      free_.push_back(chunks_.back().get());
    }
    if (free_.empty()) return nullptr;
    char* const chunk = free_.back();
    free_.pop_back();
    return chunk;
  }
  void Give(char* chunk) override { free_.push_back(chunk); }
  size_t chunk_bytes() const override { return chunk_bytes_; }
  size_t taken() const { return chunks_.size() - free_.size(); }

 private:
  const size_t chunk_bytes_;
  const size_t most_;
  std::vector<std::unique_ptr<char[]>> chunks_;
  std::vector<char*> free_;
};

// An encoded buffer and its chunks.
struct Encoded {
  explicit Encoded(size_t chunk_bytes, size_t most_chunks) : chunks(chunk_bytes, most_chunks) {}

  HeapChunks chunks;
  EncodedBuffer buffer;
};

CodecSpec SpecOf(const std::string& codec, int element_bytes, int rate_percent) {
  const std::optional<Codec> parsed = ParseCodec(codec);
  if (!parsed) {
    throw std::invalid_argument("unknown codec '" + codec +
                                "': allowed are stored, zvc, rle, csr, lz4, zstd, zfp, bfp");
  }
  const CodecSpec spec = {*parsed, element_bytes, rate_percent};
  const std::string fault = WhyUnusable(spec);
  if (!fault.empty()) throw std::invalid_argument(fault);
  return spec;
}

std::unique_ptr<Encoded> EncodeData(const py::buffer& data, const std::string& codec,
                                    int element_bytes, int rate_percent, int threads,
                                    size_t chunk_bytes, size_t most_chunks) {
  const CodecSpec spec = SpecOf(codec, element_bytes, rate_percent);
  if (chunk_bytes < MaxEncodedBytes(kSectionBytes)) {
    throw std::invalid_argument("chunks need at least " +
                                std::to_string(MaxEncodedBytes(kSectionBytes)) + " bytes, not " +
                                std::to_string(chunk_bytes));
  }
  const py::buffer_info info = data.request();
  const auto [from, bytes] = BytesOf(info);
  auto encoded = std::make_unique<Encoded>(chunk_bytes, most_chunks);
  bool complete;
  {
    py::gil_scoped_release without_gil;
    complete = Encode(spec, from, bytes, threads, &encoded->chunks, &encoded->buffer);
  }
  if (encoded->chunks.taken() != encoded->buffer.chunks.size()) {
    throw std::logic_error("chunks were lost");
  }
  return complete ? std::move(encoded) : nullptr;
}

py::bytes DecodeData(const Encoded& encoded, int threads) {
  PyObject* const data =
      PyBytes_FromStringAndSize(nullptr, static_cast<py::ssize_t>(encoded.buffer.bytes));
  if (data == nullptr) throw py::error_already_set();
  const auto result = py::reinterpret_steal<py::bytes>(data);
  bool well_formed;
  {
    char* const to = PyBytes_AS_STRING(data);
    py::gil_scoped_release without_gil;
    well_formed = Decode(encoded.buffer, to, threads);
  }
  if (!well_formed) throw std::runtime_error("a section is malformed");
  return result;
}

// Allocate exactly `bytes` bytes, so that a sanitizer detects reads beyond them.
std::unique_ptr<char[]> Exactly(size_t bytes) {
  return std::unique_ptr<char[]>(new char[std::max(bytes, size_t{1})]);
}

py::bytes EncodeOne(const py::buffer& data, const std::string& codec, int element_bytes,
                    int rate_percent) {
  const CodecSpec spec = SpecOf(codec, element_bytes, rate_percent);
  const py::buffer_info info = data.request();
  const auto [from, bytes] = BytesOf(info);
  const auto to = Exactly(MaxEncodedBytes(bytes));
  return py::bytes(to.get(), EncodeSection(spec, from, bytes, to.get()));
}

py::object DecodeOne(const py::buffer& data, size_t bytes, bool past_cache) {
  const py::buffer_info info = data.request();
  const auto [from, encoded_bytes] = BytesOf(info);
  const auto encoded = Exactly(encoded_bytes);
  std::copy_n(from, encoded_bytes, encoded.get());
  const auto to = Exactly(bytes);
  if (!DecodeSection(encoded.get(), encoded_bytes, to.get(), bytes, past_cache)) return py::none();
  return py::bytes(to.get(), bytes);
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

template <typename Work>
double SecondsOf(const Work& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Copy with one memcpy per thread.
void CopyTogether(char* to, const char* from, size_t bytes, int threads) {
  const size_t piece = (bytes + static_cast<size_t>(threads) - 1) / static_cast<size_t>(threads);
  std::atomic<size_t> next{0};
  ThreadTeam::Shared().RunParallel(threads, [&] {
    size_t begin;
    while ((begin = next.fetch_add(piece)) < bytes) {
      std::memcpy(to + begin, from + begin, std::min(piece, bytes - begin));
    }
  });
}

// Return the encoded bytes and the seconds to encode, to decode and to copy with memcpy: medians of
// alternating runs into memory that has been written before.
std::tuple<size_t, double, double, double> Measure(const py::buffer& data, const std::string& codec,
                                                   int element_bytes, int rate_percent, int threads,
                                                   int repeats) {
  const CodecSpec spec = SpecOf(codec, element_bytes, rate_percent);
  const py::buffer_info info = data.request();
  const auto [from, bytes] = BytesOf(info);
  if (bytes == 0 || repeats < 1 || threads < 1) {
    throw std::invalid_argument("data, a thread and a repeat are needed");
  }
  py::gil_scoped_release without_gil;
  HeapChunks chunks(256 << 10, std::numeric_limits<size_t>::max());
  EncodedBuffer encoded;
  Encode(spec, from, bytes, threads, &chunks, &encoded);
  const size_t encoded_bytes = encoded.encoded_bytes;
  // Aligned like tensors, to cache lines at least.
  std::vector<char> block(bytes + kPageBytes, 1);
  char* const to =
      block.data() +
      (kPageBytes - reinterpret_cast<uintptr_t>(block.data()) % kPageBytes) % kPageBytes;
  std::vector<double> encode_s, decode_s, copy_s;
  for (int i = 0; i < repeats; ++i) {
    Release(&encoded, &chunks);
    encode_s.push_back(SecondsOf([&] { Encode(spec, from, bytes, threads, &chunks, &encoded); }));
    copy_s.push_back(
        SecondsOf([&, from = from, bytes = bytes] { CopyTogether(to, from, bytes, threads); }));
    decode_s.push_back(SecondsOf([&] { Decode(encoded, to, threads); }));
  }
  return {encoded_bytes, Median(encode_s), Median(decode_s), Median(copy_s)};
}

}  // namespace

void BindCodecs(py::module_& module) {
  py::class_<Encoded>(module, "Encoded")
      .def_property_readonly("encoded_bytes",
                             [](const Encoded& encoded) { return encoded.buffer.encoded_bytes; })
      .def_property_readonly("chunks",
                             [](const Encoded& encoded) { return encoded.buffer.chunks.size(); })
      .def("decode", &DecodeData, py::arg("threads") = 1);
  module.def("encode", &EncodeData, py::arg("data"), py::arg("codec"), py::arg("element_bytes") = 4,
             py::arg("rate_percent") = 100, py::arg("threads") = 1,
             py::arg("chunk_bytes") = size_t{256 << 10},
             py::arg("most_chunks") = std::numeric_limits<size_t>::max());
  module.def("encode_section", &EncodeOne, py::arg("data"), py::arg("codec"),
             py::arg("element_bytes") = 4, py::arg("rate_percent") = 100);
  module.def("decode_section", &DecodeOne, py::arg("data"), py::arg("bytes"),
             py::arg("past_cache") = false);
  module.def("measure_codec", &Measure, py::arg("data"), py::arg("codec"),
             py::arg("element_bytes") = 4, py::arg("rate_percent") = 100, py::arg("threads") = 1,
             py::arg("repeats") = 5);
  module.def(
      "why_not_codec",
      [](const std::string& codec, int element_bytes) {
        const std::optional<Codec> parsed = ParseCodec(codec);
        return parsed ? WhyUnusable({*parsed, element_bytes, 100}) : "there is no codec " + codec;
      },
      py::arg("codec"), py::arg("element_bytes") = 4);
  module.def(
      "sparsity",
      [](const py::buffer& data, int element_bytes, int every) {
        const py::buffer_info info = data.request();
        const auto [from, bytes] = BytesOf(info);
        py::gil_scoped_release without_gil;
        return Sparsity(from, bytes, element_bytes, every);
      },
      py::arg("data"), py::arg("element_bytes") = 4, py::arg("every") = 1);
  module.def(
      "count_zero_words",
      [](const py::buffer& data, int element_bytes) {
        const py::buffer_info info = data.request();
        const auto [from, bytes] = BytesOf(info);
        return CountZeroWords(from, bytes, element_bytes);
      },
      py::arg("data"), py::arg("element_bytes") = 4);
  module.def("load_blosc", &LoadBlosc, py::arg("path"));
  module.def("codec_path", &CodecPath);
  module.def("best_codec_path", &BestCodecPath);
  module.def("set_codec_path", &SetCodecPath, py::arg("name"));
  module.attr("SECTION_BYTES") = kSectionBytes;
}

}  // namespace tfswap
