// A simulated GPU: the parts of NVIDIA's driver and runtime that TensorFlow's GPU device calls, on
// the host. Memory is host memory, streams are threads, copies copy, and kernels compute nothing,
// except for tfswap's own, which run on the CPU (tests/gpu/simt). With FAKE_CUDA_GEMM, products of
// matrices are computed too, and convolutions of float32 (fake_cudnn.cc, tensorflow_kernels.cc).
//
// TensorFlow thus creates GPU devices on a machine without a GPU, and tfswap's allocators, hazards
// and copies run for real; only the results of kernels are missing. Streams fall behind and
// overtake each other at random (at most FAKE_CUDA_DELAY_US per command), so that a missing wait
// shows as wrong bytes. All other functions return "success" (build.py), and print their names if
// FAKE_CUDA_VERBOSE is set.
//
// There are FAKE_CUDA_DEVICES GPUs, each with its own memory, streams and context.
// FAKE_CUDA_MEMORY_MIB is their memory, one number for all, or several: "4096,1024". The functions
// reject what the driver rejects: an event on another GPU's stream, a copy of unallocated GPU
// memory, memory that is pinned twice, times of events without times. As on a GPU, a stream that
// holds 1,000 copies and kernels blocks the host, and a copy of memory that is not pinned waits for
// its end. A test may make functions fail (fake_cuda_fail).

#include "fake_cuda.h"

#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "simt.h"

namespace {

constexpr int kSuccess = 0;
constexpr int kInvalidValue = 1;
constexpr int kOutOfMemory = 2;
constexpr int kInvalidContext = 201;
constexpr int kNoBinaryForGpu = 209;
constexpr int kUnsupportedPtxVersion = 222;
constexpr int kInvalidHandle = 400;
constexpr int kNotReady = 600;
constexpr int kAlreadyRegistered = 712;
constexpr int kNotRegistered = 713;
constexpr int kUnknown = 999;

int64_t Setting(const char* name, int64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::atoll(text);
}

const int64_t most_delay_us = Setting("FAKE_CUDA_DELAY_US", 200);
const int device_count = static_cast<int>(Setting("FAKE_CUDA_DEVICES", 1));

const int64_t kernel_us = Setting("FAKE_CUDA_KERNEL_US", 20);
// The speed of copies to and from the host; 0: as fast as memory.
const int64_t copy_mb_s = Setting("FAKE_CUDA_COPY_MB_S", 0);
// Whether products of matrices and convolutions are computed.
const bool gemm = Setting("FAKE_CUDA_GEMM", 0) != 0;

// What to reject, like a driver that is older than nvcc: "code", or "code,ptx".
const std::string refused = [] {
  const char* text = std::getenv("FAKE_CUDA_REFUSES");
  return std::string(text == nullptr ? "" : text);
}();

std::atomic<void*> blas_stream{nullptr};
std::atomic<int64_t> synchronizations{0};
std::atomic<int64_t> pageable_copies{0};

struct Gpu;

class FakeStream {
 public:
  explicit FakeStream(Gpu* of) : gpu(of), thread_([this] { Run(); }) { thread_.detach(); }

  Gpu* const gpu;

  // Blocks while the stream is full.
  void Push(std::function<void()> command) {
    std::unique_lock<std::mutex> lock(mu_);
    changed_.wait(lock, [this] { return work_ < kMostWork; });
    ++work_;
    PushLocked({std::move(command), true});
  }
  // Records of events, waits for them, and what takes the GPU no time: any number of them fits.
  void PushMark(std::function<void()> command) {
    std::lock_guard<std::mutex> lock(mu_);
    PushLocked({std::move(command), false});
  }
  void Finish() {
    std::unique_lock<std::mutex> lock(mu_);
    const int64_t until = given_;
    changed_.wait(lock, [&] { return done_ >= until; });
  }
  bool Idle() {
    std::lock_guard<std::mutex> lock(mu_);
    return done_ == given_;
  }

 private:
  static constexpr int64_t kMostWork = 1000;
  struct Command {
    std::function<void()> run;
    bool is_work;
  };

  void PushLocked(Command command) {
    commands_.push_back(std::move(command));
    ++given_;
    changed_.notify_all();
  }

  void Run() {
    std::mt19937 dice(static_cast<unsigned>(reinterpret_cast<uintptr_t>(this) >> 4));
    for (;;) {
      Command command;
      {
        std::unique_lock<std::mutex> lock(mu_);
        changed_.wait(lock, [this] { return !commands_.empty(); });
        command = std::move(commands_.front());
        commands_.pop_front();
      }
      if (most_delay_us > 0 && dice() % 4 == 0) {
        std::this_thread::sleep_for(std::chrono::microseconds(dice() % most_delay_us));
      }
      command.run();
      std::lock_guard<std::mutex> lock(mu_);
      ++done_;
      if (command.is_work) --work_;
      changed_.notify_all();
    }
  }

  std::mutex mu_;
  std::condition_variable changed_;
  std::deque<Command> commands_;
  int64_t work_ = 0;
  int64_t given_ = 0;
  int64_t done_ = 0;
  std::thread thread_;
};

// Contexts and memory pools of CUDA are represented by their GPU.
struct Gpu {
  int number;
  int64_t total_bytes;
  int64_t in_use = 0;  // with the_memory's lock
  std::mutex mu;
  std::set<FakeStream*> streams;
};

struct Block {
  int64_t bytes;
  Gpu* gpu;
  // For stream-ordered memory: whether the GPU is between its allocation and its free.
  std::shared_ptr<std::atomic<bool>> there = std::make_shared<std::atomic<bool>>(true);
};

// The memory of all GPUs, in one address space.
struct Memory {
  std::mutex mu;
  std::map<const char*, Block> blocks;
  // Memory that was freed in stream order. The same stream may get it again at once, before it has
  // reached the free; other streams only after the driver has reclaimed it.
  std::map<std::tuple<FakeStream*, int64_t>, std::vector<void*>> idle;
  std::map<const char*, int64_t> pinned;
  int64_t pinned_bytes = 0;
  int64_t peer_copies = 0;
};
Memory& the_memory = *new Memory();

std::vector<Gpu*> MakeGpus() {
  std::vector<Gpu*> gpus;
  const char* sizes = std::getenv("FAKE_CUDA_MEMORY_MIB");
  int64_t mib = 4096;
  for (int i = 0; i < std::max(device_count, 1); ++i) {
    if (sizes != nullptr && *sizes != 0) {
      char* end;
      mib = std::strtoll(sizes, &end, 10);
      sizes = *end == ',' ? end + 1 : end;
    }
    gpus.push_back(new Gpu{i, mib << 20});
  }
  return gpus;
}
const std::vector<Gpu*>& gpus = *new std::vector<Gpu*>(MakeGpus());

thread_local std::deque<Gpu*> contexts;

// The current GPU of this thread.
Gpu& CurrentGpu() { return contexts.empty() ? *gpus[0] : *contexts.back(); }

// The number of records, and the last one that has happened.
struct FakeEvent {
  Gpu* gpu;
  bool has_times;
  std::mutex mu;
  std::condition_variable changed;
  int64_t recorded = 0;
  int64_t happened = 0;
  std::chrono::steady_clock::time_point when;
};

FakeStream* StreamOf(void* handle) {
  static const auto* legacy = [] {
    auto* made = new std::vector<FakeStream*>();
    for (Gpu* gpu : gpus) {
      made->push_back(new FakeStream(gpu));
      std::lock_guard<std::mutex> lock(gpu->mu);
      gpu->streams.insert(made->back());
    }
    return made;
  }();
  return handle == nullptr || reinterpret_cast<uintptr_t>(handle) <= 2
             ? (*legacy)[CurrentGpu().number]
             : static_cast<FakeStream*>(handle);
}

void* AllocateLocked(Gpu* gpu, int64_t bytes) {
  if (gpu->in_use + bytes > gpu->total_bytes) return nullptr;
  void* block = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (block == MAP_FAILED) return nullptr;
  the_memory.blocks[static_cast<char*>(block)] = {bytes, gpu};
  gpu->in_use += bytes;
  return block;
}

void FreeLocked(void* block) {
  const auto it = the_memory.blocks.find(static_cast<char*>(block));
  if (it == the_memory.blocks.end()) return;
  munmap(block, it->second.bytes);
  it->second.gpu->in_use -= it->second.bytes;
  the_memory.blocks.erase(it);
}

// Return the block that contains the bytes from `address` on; null if it is not GPU memory. Call
// with the_memory's lock held.
const Block* FindLocked(const void* address, int64_t bytes = 1) {
  const auto* begin = static_cast<const char*>(address);
  auto it = the_memory.blocks.upper_bound(begin);
  if (it == the_memory.blocks.begin()) return nullptr;
  --it;
  return begin + bytes <= it->first + it->second.bytes ? &it->second : nullptr;
}

Gpu* OwnerOf(const void* address, int64_t bytes = 1) {
  std::lock_guard<std::mutex> lock(the_memory.mu);
  const Block* block = FindLocked(address, bytes);
  return block == nullptr ? nullptr : block->gpu;
}

// Return whether memory is allocated for a stream that accesses it now; host memory always is.
bool IsThere(const void* address) {
  std::lock_guard<std::mutex> lock(the_memory.mu);
  const Block* block = FindLocked(address);
  return block == nullptr || *block->there;
}

// Allocate or free `block` for the GPU from this point of the stream on.
void PushThere(void* block, FakeStream* stream, bool there) {
  const auto it = the_memory.blocks.find(static_cast<char*>(block));
  stream->PushMark([flag = it->second.there, there] { *flag = there; });
}

int AllocateInOrder(void** block, int64_t bytes, Gpu* gpu, FakeStream* stream) {
  std::lock_guard<std::mutex> lock(the_memory.mu);
  std::vector<void*>& again = the_memory.idle[{stream, bytes}];
  if (!again.empty()) {
    *block = again.back();
    again.pop_back();
    PushThere(*block, stream, true);
    return kSuccess;
  }
  *block = AllocateLocked(gpu, bytes);
  for (auto& [key, idle] : the_memory.idle) {
    FakeStream* const freed_by = std::get<0>(key);
    if (*block != nullptr) break;
    if (freed_by->gpu != gpu || !freed_by->Idle()) continue;
    for (void* freed : idle) FreeLocked(freed);
    idle.clear();
    *block = AllocateLocked(gpu, bytes);
  }
  if (*block == nullptr) return kOutOfMemory;
  *the_memory.blocks[static_cast<char*>(*block)].there = false;
  PushThere(*block, stream, true);
  return kSuccess;
}

int FreeInOrder(void* block, FakeStream* stream) {
  std::lock_guard<std::mutex> lock(the_memory.mu);
  const auto it = the_memory.blocks.find(static_cast<char*>(block));
  if (it == the_memory.blocks.end()) return kInvalidValue;
  PushThere(block, stream, false);
  the_memory.idle[{stream, it->second.bytes}].push_back(block);
  return kSuccess;
}

// Return whether any of these bytes is pinned. Call with the_memory's lock held.
bool IsPinnedLocked(const void* begin, int64_t bytes) {
  const auto* first = static_cast<const char*>(begin);
  const auto it = the_memory.pinned.lower_bound(first + bytes);
  return it != the_memory.pinned.begin() && std::prev(it)->first + std::prev(it)->second > first;
}

int CountPinned(void* block, int64_t bytes) {
  std::lock_guard<std::mutex> lock(the_memory.mu);
  if (IsPinnedLocked(block, bytes)) return kAlreadyRegistered;
  the_memory.pinned[static_cast<char*>(block)] = bytes;
  the_memory.pinned_bytes += bytes;
  return kSuccess;
}

int CountUnpinned(void* block) {
  std::lock_guard<std::mutex> lock(the_memory.mu);
  const auto it = the_memory.pinned.find(static_cast<char*>(block));
  if (it == the_memory.pinned.end()) return kNotRegistered;
  the_memory.pinned_bytes -= it->second;
  the_memory.pinned.erase(it);
  return kSuccess;
}

void FinishAll(Gpu* gpu) {
  std::set<FakeStream*> streams;
  {
    std::lock_guard<std::mutex> lock(gpu->mu);
    streams = gpu->streams;
  }
  for (FakeStream* stream : streams) stream->Finish();
}

int MakeStream(void** stream) {
  Gpu& gpu = CurrentGpu();
  auto* made = new FakeStream(&gpu);
  std::lock_guard<std::mutex> lock(gpu.mu);
  gpu.streams.insert(made);
  *stream = made;
  return kSuccess;
}

int DestroyStream(void* stream) {
  FakeStream* const ended = StreamOf(stream);
  ended->Finish();
  std::lock_guard<std::mutex> lock(ended->gpu->mu);
  ended->gpu->streams.erase(ended);  // its thread stays, and sleeps
  return kSuccess;
}

int RecordEvent(void* event, void* stream) {
  if (event == nullptr) return kInvalidHandle;
  auto* recorded = static_cast<FakeEvent*>(event);
  if (recorded->gpu != StreamOf(stream)->gpu) return kInvalidHandle;
  // Atomic for other threads: one that waits for the event must find it on its stream.
  std::lock_guard<std::mutex> at_once(recorded->mu);
  const int64_t number = ++recorded->recorded;
  StreamOf(stream)->PushMark([recorded, number] {
    std::lock_guard<std::mutex> lock(recorded->mu);
    recorded->happened = number;
    recorded->when = std::chrono::steady_clock::now();
    recorded->changed.notify_all();
  });
  return kSuccess;
}

int WaitEvent(void* stream, void* event) {
  if (event == nullptr) return kInvalidHandle;
  auto* awaited = static_cast<FakeEvent*>(event);
  std::lock_guard<std::mutex> at_once(awaited->mu);
  const int64_t number = awaited->recorded;
  StreamOf(stream)->PushMark([awaited, number] {
    std::unique_lock<std::mutex> lock(awaited->mu);
    const auto happened = [&] { return awaited->happened >= number; };
    if (awaited->changed.wait_for(lock, std::chrono::seconds(60), happened)) return;
    std::fprintf(
        stderr, "fake_cuda: a stream waits for event %p, recording %lld of %lld; %lld happened\n",
        static_cast<void*>(awaited), static_cast<long long>(number),
        static_cast<long long>(awaited->recorded), static_cast<long long>(awaited->happened));
    std::abort();
  });
  return kSuccess;
}

int QueryEvent(void* event) {
  if (event == nullptr) return kInvalidHandle;
  auto* asked = static_cast<FakeEvent*>(event);
  std::lock_guard<std::mutex> lock(asked->mu);
  return asked->happened >= asked->recorded ? kSuccess : kNotReady;
}

int RunKernel(void* stream) {
  StreamOf(stream)->Push([] { std::this_thread::sleep_for(std::chrono::microseconds(kernel_us)); });
  return kSuccess;
}

// A kernel of tfswap, which runs in stream order and computes what it computes on a GPU.
int RunKernel(const simt::Kernel& kernel, unsigned blocks, unsigned threads, void** arguments,
              void* stream) {
  if (blocks == 0 || threads == 0 || threads > 1024) return kInvalidValue;
  static std::atomic<uint32_t> seed{1};
  StreamOf(stream)->Push([body = kernel.bind(arguments), blocks, threads, at = seed++] {
    std::this_thread::sleep_for(std::chrono::microseconds(kernel_us));
    simt::Launch(body, blocks, threads, at);
  });
  return kSuccess;
}

// The variables of loaded kernels by name, initially zero.
struct Module {
  std::mutex mu;
  std::map<std::string, std::vector<int64_t>> variables;
};

int LoadModule(void** module, const void* image) {
  constexpr uint32_t kFatbin = 0xba55ed50;
  uint32_t head;
  std::memcpy(&head, image, sizeof(head));
  const bool code = head == kFatbin;
  if (code && refused.find("code") != std::string::npos) return kNoBinaryForGpu;
  if (!code && refused.find("ptx") != std::string::npos) return kUnsupportedPtxVersion;
  return *module = new Module(), kSuccess;
}

int CopyOnStream(void* to, const void* from, size_t bytes, void* stream) {
  StreamOf(stream)->Push([to, from, bytes] {
    if (!IsThere(to) || !IsThere(from)) return;  // undefined on a GPU: wrong bytes
    if (copy_mb_s > 0) std::this_thread::sleep_for(std::chrono::microseconds(bytes / copy_mb_s));
    // In two halves, so that concurrent accesses are detected.
    const size_t half = bytes / 2;
    std::memcpy(to, from, half);
    if (most_delay_us > 0) std::this_thread::sleep_for(std::chrono::microseconds(50));
    std::memcpy(static_cast<char*>(to) + half, static_cast<const char*>(from) + half, bytes - half);
  });
  return kSuccess;
}

// A copy from or to memory of the host.
int CopyWithHost(void* to, const void* from, size_t bytes, const void* host, void* stream) {
  CopyOnStream(to, from, bytes, stream);
  bool is_pinned;
  {
    std::lock_guard<std::mutex> lock(the_memory.mu);
    is_pinned = bytes == 0 || IsPinnedLocked(host, 1);
  }
  if (is_pinned) return kSuccess;
  ++pageable_copies;
  StreamOf(stream)->Finish();
  return kSuccess;
}

int64_t AttributeOf(int attribute) {
  switch (attribute) {
    case 1:  // threads a block
      return 1024;
    case 2:
    case 3:
      return 1024;
    case 4:
      return 64;
    case 5:
      return 2147483647;
    case 6:
    case 7:
      return 65535;
    case 8:  // shared memory a block
      return 49152;
    case 10:  // warp
      return 32;
    case 12:  // registers a block
      return 65536;
    case 13:  // kHz
      return 1700000;
    case 16:  // multiprocessors
      return 132;
    case 36:
      return 2619000;
    case 37:  // bus bits
      return 5120;
    case 38:  // L2
      return 50 << 20;
    case 39:  // threads a multiprocessor
      return 2048;
    case 40:  // copy engines
      return 3;
    case 41:  // unified addressing
      return 1;
    case 91:  // kernels use the host's addresses
      return 1;
    case 75:  // compute capability
      return 9;
    case 76:
      return 0;
    case 81:
    case 97:
      return 232448;
    case 82:
      return 65536;
    case 106:
      return 32;
    case 115:  // memory pools
      return 1;
    default:
      return 0;
  }
}

int context_object;
thread_local std::deque<void*> launch_streams;  // of kernels that are being launched

// The functions that fail when tfswap's GPU library calls them, but not when TensorFlow does.
std::mutex failing_mu;
std::set<std::string> failing;

bool Fails(const char* name, void* caller) {
  std::lock_guard<std::mutex> lock(failing_mu);
  if (failing.count(name) == 0) return false;
  Dl_info info;
  return dladdr(caller, &info) != 0 && std::strstr(info.dli_fname, "libtfswap_gpu") != nullptr;
}

#define FAIL_IF_ASKED() \
  if (Fails(__func__, __builtin_return_address(0))) return kUnknown

}  // namespace

void fake_cuda::RunKernel(void* stream, std::function<void()> compute) {
  if (!gemm) {
    ::RunKernel(stream);
  } else {
    StreamOf(stream)->Push(std::move(compute));
  }
}

extern "C" {

// Make all calls of these functions by tfswap fail: "one,another"; "" ends that.
void fake_cuda_fail(const char* names) {
  std::lock_guard<std::mutex> lock(failing_mu);
  failing.clear();
  std::istringstream list(names);
  for (std::string name; std::getline(list, name, ',');) failing.insert(name);
}

int fake_cuda_called(const char* name) {
  static const bool verbose = std::getenv("FAKE_CUDA_VERBOSE") != nullptr;
  if (verbose) {
    static std::mutex mu;
    static auto* seen = new std::set<std::string>();
    std::lock_guard<std::mutex> lock(mu);
    if (seen->insert(name).second) std::fprintf(stderr, "fake_cuda: %s\n", name);
  }
  return kSuccess;
}

// For tests: how often the host waited for the GPU, the bytes allocated on a GPU, the pinned bytes,
// and how often one GPU copied to another, or to or from memory that is not pinned.
int64_t fake_cuda_synchronizations() { return synchronizations.load(); }
int64_t fake_cuda_bytes_in_use(int gpu) {
  std::lock_guard<std::mutex> lock(the_memory.mu);
  return gpus[gpu]->in_use;
}
int64_t fake_cuda_pinned_bytes() {
  std::lock_guard<std::mutex> lock(the_memory.mu);
  return the_memory.pinned_bytes;
}
int64_t fake_cuda_pageable_copies() { return pageable_copies.load(); }
int64_t fake_cuda_peer_copies() {
  std::lock_guard<std::mutex> lock(the_memory.mu);
  return the_memory.peer_copies;
}

// The driver.

int cuInit(unsigned) { return kSuccess; }
int cuDriverGetVersion(int* version) { return *version = 12050, kSuccess; }
int cuDeviceGetCount(int* count) { return *count = device_count, kSuccess; }
int cuDeviceGet(int* device, int ordinal) { return *device = ordinal, kSuccess; }
int cuDeviceGetName(char* name, int size, int) {
  std::snprintf(name, size, "NVIDIA FAKE");
  return kSuccess;
}
int cuDeviceTotalMem_v2(size_t* bytes, int device) {
  return *bytes = gpus[device]->total_bytes, kSuccess;
}
int cuDeviceGetAttribute(int* value, int attribute, int) {
  return *value = static_cast<int>(AttributeOf(attribute)), kSuccess;
}
int cuDeviceGetPCIBusId(char* text, int size, int device) {
  std::snprintf(text, size, "0000:%02x:00.0", device + 1);
  return kSuccess;
}
int cuDeviceGetUuid(char* uuid, int device) {
  std::memset(uuid, device + 1, 16);
  return kSuccess;
}
int cuDeviceGetUuid_v2(char* uuid, int device) { return cuDeviceGetUuid(uuid, device); }
int cuDevicePrimaryCtxRetain(void** context, int device) {
  return *context = gpus[device], kSuccess;
}
int cuDevicePrimaryCtxGetState(int, unsigned* flags, int* active) {
  return *flags = 0, *active = 1, kSuccess;
}
int cuCtxGetCurrent(void** context) {
  return *context = contexts.empty() ? nullptr : contexts.back(), kSuccess;
}
int cuCtxSetCurrent(void* context) {
  if (!contexts.empty()) contexts.pop_back();
  if (context != nullptr) contexts.push_back(static_cast<Gpu*>(context));
  return kSuccess;
}
int cuCtxPushCurrent_v2(void* context) {
  FAIL_IF_ASKED();
  return contexts.push_back(static_cast<Gpu*>(context)), kSuccess;
}
int cuCtxPopCurrent_v2(void** context) {
  if (contexts.empty()) return kInvalidContext;
  *context = contexts.back();
  contexts.pop_back();
  return kSuccess;
}
int cuCtxGetDevice(int* device) { return *device = CurrentGpu().number, kSuccess; }
int cuCtxGetApiVersion(void*, unsigned* version) { return *version = 12050, kSuccess; }
int cuCtxSynchronize() { return ++synchronizations, FinishAll(&CurrentGpu()), kSuccess; }
int cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  FAIL_IF_ASKED();
  return *least = 0, *greatest = -5, kSuccess;
}
int cuMemGetInfo_v2(size_t* free_bytes, size_t* total) {
  const Gpu& gpu = CurrentGpu();
  std::lock_guard<std::mutex> lock(the_memory.mu);
  *free_bytes = gpu.total_bytes - gpu.in_use;
  *total = gpu.total_bytes;
  return kSuccess;
}
int cuMemAlloc_v2(void** block, size_t bytes) {
  std::lock_guard<std::mutex> lock(the_memory.mu);
  *block = AllocateLocked(&CurrentGpu(), bytes);
  return *block == nullptr ? kOutOfMemory : kSuccess;
}
int cuMemFree_v2(void* block) {
  Gpu* gpu = OwnerOf(block);
  if (gpu == nullptr) return kInvalidValue;
  FinishAll(gpu);
  std::lock_guard<std::mutex> lock(the_memory.mu);
  return FreeLocked(block), kSuccess;
}
int cuMemAllocAsync(void** block, size_t bytes, void* stream) {
  return AllocateInOrder(block, bytes, StreamOf(stream)->gpu, StreamOf(stream));
}
int cuMemAllocFromPoolAsync(void** block, size_t bytes, void* pool, void* stream) {
  return AllocateInOrder(block, bytes, static_cast<Gpu*>(pool), StreamOf(stream));
}
int cuMemFreeAsync(void* block, void* stream) { return FreeInOrder(block, StreamOf(stream)); }
int cuMemHostAlloc(void** block, size_t bytes, unsigned) {
  FAIL_IF_ASKED();
  if (posix_memalign(block, 4096, bytes) != 0) return kOutOfMemory;
  return CountPinned(*block, bytes);
}
int cuMemFreeHost(void* block) {
  FAIL_IF_ASKED();
  const int result = CountUnpinned(block);
  if (result == kSuccess) std::free(block);
  return result;
}
int cuMemHostRegister_v2(void* block, size_t bytes, unsigned) {
  FAIL_IF_ASKED();
  return CountPinned(block, bytes);
}
int cuMemHostUnregister(void* block) {
  FAIL_IF_ASKED();
  return CountUnpinned(block);
}
int cuPointerGetAttribute(void* value, int attribute, void* pointer) {
  Gpu* gpu = OwnerOf(pointer);
  if (gpu == nullptr) return kInvalidValue;
  if (attribute == 1) *static_cast<void**>(value) = gpu;
  if (attribute == 2) *static_cast<unsigned*>(value) = 2;  // device
  if (attribute == 9) *static_cast<int*>(value) = gpu->number;
  return kSuccess;
}
int cuStreamCreate(void** stream, unsigned) { return MakeStream(stream); }
int cuStreamCreateWithPriority(void** stream, unsigned, int) {
  FAIL_IF_ASKED();
  return MakeStream(stream);
}
int cuStreamDestroy_v2(void* stream) { return DestroyStream(stream); }
int cuStreamSynchronize(void* stream) {
  FAIL_IF_ASKED();
  return ++synchronizations, StreamOf(stream)->Finish(), kSuccess;
}
int cuStreamQuery(void* stream) { return StreamOf(stream)->Idle() ? kSuccess : kNotReady; }
int cuStreamGetCtx(void* stream, void** context) {
  FAIL_IF_ASKED();
  return *context = StreamOf(stream)->gpu, kSuccess;
}
int cuStreamWaitEvent(void* stream, void* event, unsigned) {
  FAIL_IF_ASKED();
  return WaitEvent(stream, event);
}
int cuStreamIsCapturing(void*, int* status) { return *status = 0, kSuccess; }
int cuEventCreate(void** event, unsigned flags) {
  constexpr unsigned kDisableTiming = 2;
  FAIL_IF_ASKED();
  return *event = new FakeEvent{&CurrentGpu(), (flags & kDisableTiming) == 0}, kSuccess;
}
int cuEventDestroy_v2(void*) { return kSuccess; }  // pending commands may refer to it
int cuEventRecord(void* event, void* stream) {
  FAIL_IF_ASKED();
  return RecordEvent(event, stream);
}
int cuEventQuery(void* event) {
  FAIL_IF_ASKED();
  return QueryEvent(event);
}
int cuEventSynchronize(void* event) {
  FAIL_IF_ASKED();
  ++synchronizations;
  auto* awaited = static_cast<FakeEvent*>(event);
  std::unique_lock<std::mutex> lock(awaited->mu);
  awaited->changed.wait(lock, [&] { return awaited->happened >= awaited->recorded; });
  return kSuccess;
}
int cuEventElapsedTime(float* ms, void* begin, void* end) {
  FAIL_IF_ASKED();
  auto* first = static_cast<FakeEvent*>(begin);
  auto* last = static_cast<FakeEvent*>(end);
  if (!first->has_times || !last->has_times) return kInvalidHandle;
  if (QueryEvent(first) != kSuccess || QueryEvent(last) != kSuccess) return kNotReady;
  *ms = std::chrono::duration<float, std::milli>(last->when - first->when).count();
  return kSuccess;
}
int cuMemcpyHtoDAsync_v2(void* to, const void* from, size_t bytes, void* stream) {
  FAIL_IF_ASKED();
  if (OwnerOf(to, bytes) == nullptr) return kInvalidValue;
  return CopyWithHost(to, from, bytes, from, stream);
}
int cuMemcpyDtoHAsync_v2(void* to, const void* from, size_t bytes, void* stream) {
  FAIL_IF_ASKED();
  if (OwnerOf(from, bytes) == nullptr) return kInvalidValue;
  return CopyWithHost(to, from, bytes, to, stream);
}
int cuMemcpyDtoDAsync_v2(void* to, const void* from, size_t bytes, void* stream) {
  if (OwnerOf(to, bytes) == nullptr || OwnerOf(from, bytes) == nullptr) return kInvalidValue;
  return CopyOnStream(to, from, bytes, stream);
}
int cuMemcpyPeerAsync(void* to, void* to_context, const void* from, void* from_context,
                      size_t bytes, void* stream) {
  if (OwnerOf(to, bytes) != to_context || OwnerOf(from, bytes) != from_context) {
    return kInvalidValue;
  }
  {
    std::lock_guard<std::mutex> lock(the_memory.mu);
    ++the_memory.peer_copies;
  }
  return CopyOnStream(to, from, bytes, stream);
}
int cuMemcpyAsync(void* to, const void* from, size_t bytes, void* stream) {
  return CopyOnStream(to, from, bytes, stream);
}
int cuMemcpyHtoD_v2(void* to, const void* from, size_t bytes) {
  return std::memcpy(to, from, bytes), kSuccess;
}
int cuMemcpyDtoH_v2(void* to, const void* from, size_t bytes) {
  return std::memcpy(to, from, bytes), kSuccess;
}
int cuMemsetD8_v2(void* to, unsigned char value, size_t count) {
  return std::memset(to, value, count), kSuccess;
}
int cuMemsetD32_v2(unsigned* to, unsigned value, size_t count) {
  return std::fill_n(to, count, value), kSuccess;
}
int cuMemsetD8Async(void* to, unsigned char value, size_t count, void* stream) {
  StreamOf(stream)->Push([=] { std::memset(to, value, count); });
  return kSuccess;
}
int cuMemsetD32Async(unsigned* to, unsigned value, size_t count, void* stream) {
  StreamOf(stream)->Push([=] { std::fill_n(to, count, value); });
  return kSuccess;
}
int cuLaunchHostFunc(void* stream, void (*function)(void*), void* data) {
  StreamOf(stream)->Push([=] { function(data); });
  return kSuccess;
}
int cuStreamAddCallback(void* stream, void (*function)(void*, int, void*), void* data, unsigned) {
  StreamOf(stream)->Push([=] { function(stream, 0, data); });
  return kSuccess;
}
// Kernels that are not tfswap's take some time in stream order, and compute nothing.
int cuLaunchKernel(void* function, unsigned blocks, unsigned, unsigned, unsigned threads, unsigned,
                   unsigned, unsigned, void* stream, void** arguments, void**) {
  FAIL_IF_ASKED();
  const simt::Kernel* kernel = simt::IfKernel(function);
  if (kernel == nullptr) return RunKernel(stream);
  return RunKernel(*kernel, blocks, threads, arguments, stream);
}
int cuLaunchKernelEx(const void*, void*, void**, void**) { return kSuccess; }
int cublasSetStream_v2(void*, void* stream) { return blas_stream.store(stream), kSuccess; }
int cublasSgemm_v2(void*, int transpose_a, int transpose_b, int m, int n, int k, const float* alpha,
                   const float* a, int lda, const float* b, int ldb, const float* beta, float* c,
                   int ldc) {
  if (!gemm || transpose_a != 0 || transpose_b != 0 || *alpha != 1 || *beta != 0) {
    return RunKernel(blas_stream.load());
  }
  StreamOf(blas_stream.load())->Push([=] {
    for (int column = 0; column < n; ++column) {
      float* to = c + static_cast<int64_t>(column) * ldc;
      std::fill_n(to, m, 0.0f);
      for (int p = 0; p < k; ++p) {
        const float factor = b[static_cast<int64_t>(column) * ldb + p];
        const float* from = a + static_cast<int64_t>(p) * lda;
        for (int row = 0; row < m; ++row) to[row] += from[row] * factor;
      }
    }
  });
  return kSuccess;
}
int cuModuleLoadData(void** module, const void* image) {
  FAIL_IF_ASKED();
  return LoadModule(module, image);
}
int cuModuleUnload(void*) { return kSuccess; }  // pending commands may refer to it
int cuModuleGetGlobal_v2(void** begin, size_t* bytes, void* module, const char* name) {
  FAIL_IF_ASKED();
  auto* own = static_cast<Module*>(module);
  std::lock_guard<std::mutex> lock(own->mu);
  *bytes = simt::VariableBytes(name);
  if (*bytes == 0) return kInvalidValue;
  std::vector<int64_t>& variable = own->variables[name];
  variable.resize((*bytes + sizeof(int64_t) - 1) / sizeof(int64_t));
  return *begin = variable.data(), kSuccess;
}
int cuModuleLoadDataEx(void** module, const void*, unsigned, void*, void*) {
  return *module = &context_object, kSuccess;
}
int cuModuleLoadFatBinary(void** module, const void*) {
  return *module = &context_object, kSuccess;
}
int cuModuleGetFunction(void** function, void*, const char* name) {
  FAIL_IF_ASKED();
  const simt::Kernel* kernel = simt::Find(name);
  *function =
      kernel == nullptr ? static_cast<void*>(&context_object) : const_cast<simt::Kernel*>(kernel);
  return kSuccess;
}
int cuFuncGetAttribute(int* value, int, void*) { return *value = 32, kSuccess; }
int cuFuncGetModule(void** module, void*) { return *module = &context_object, kSuccess; }
int cuOccupancyMaxActiveBlocksPerMultiprocessor(int* count, void*, int, size_t) {
  return *count = 8, kSuccess;
}
int cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* count, void*, int, size_t, unsigned) {
  return *count = 8, kSuccess;
}
int cuGetErrorName(int, const char** text) { return *text = "FAKE", kSuccess; }
int cuGetErrorString(int, const char** text) {
  return *text = "an error of the fake GPU", kSuccess;
}
int cuDeviceCanAccessPeer(int* can, int from, int to) { return *can = from != to, kSuccess; }
int cuDeviceGetDefaultMemPool(void** pool, int device) { return *pool = gpus[device], kSuccess; }
int cuMemPoolCreate(void** pool, const void*) { return *pool = &CurrentGpu(), kSuccess; }

// The runtime.

int cudaRuntimeGetVersion(int* version) { return *version = 12050, kSuccess; }
int cudaDriverGetVersion(int* version) { return *version = 12050, kSuccess; }
int cudaGetDeviceCount(int* count) { return *count = device_count, kSuccess; }
int cudaGetDevice(int* device) { return *device = CurrentGpu().number, kSuccess; }
int cudaSetDevice(int device) { return cuCtxSetCurrent(gpus[device]); }
// cudaDeviceProp of CUDA 12: what TensorFlow reads, by offset.
int cudaGetDeviceProperties_v2(char* properties, int device) {
  std::memset(properties, 0, 1032);
  const auto set = [&](size_t offset, auto value) {
    std::memcpy(properties + offset, &value, sizeof(value));
  };
  set(288, static_cast<size_t>(gpus[device]->total_bytes));
  set(296, size_t{49152});  // sharedMemPerBlock
  set(304, 65536);          // regsPerBlock
  set(308, 32);             // warpSize
  set(320, 1024);           // maxThreadsPerBlock
  set(324, std::array<int, 3>{1024, 1024, 64});
  set(336, std::array<int, 3>{2147483647, 65535, 65535});
  set(360, 9);               // major
  set(388, 132);             // multiProcessorCount
  set(624, 2048);            // maxThreadsPerMultiProcessor
  set(640, size_t{233472});  // sharedMemPerMultiprocessor
  set(648, 65536);           // regsPerMultiprocessor
  set(696, size_t{232448});  // sharedMemPerBlockOptin
  set(712, 32);              // maxBlocksPerMultiProcessor
  return kSuccess;
}
// cudaFuncAttributes: three sizes, then threads a block and registers.
int cudaFuncGetAttributes(char* attributes, const void*) {
  std::memset(attributes, 0, 64);
  const int values[] = {1024, 32, 90, 90};
  std::memcpy(attributes + 24, values, sizeof(values));
  return kSuccess;
}
int cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* count, const void*, int, size_t) {
  return *count = 8, kSuccess;
}
int cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* count, const void*, int, size_t,
                                                           unsigned) {
  return *count = 8, kSuccess;
}
int cudaDeviceGetAttribute(int* value, int attribute, int) {
  return *value = static_cast<int>(AttributeOf(attribute)), kSuccess;
}
const char* cudaGetErrorString(int) { return "an error of the fake GPU"; }
const char* cudaGetErrorName(int) { return "FAKE"; }
int cudaLaunchKernel(const void* kernel, uint64_t, uint32_t, uint64_t, uint32_t, void** arguments,
                     size_t, void* stream) {
  std::function<void()> compute = fake_cuda::TensorFlowKernel(kernel, arguments);
  if (compute == nullptr) return RunKernel(stream);
  return fake_cuda::RunKernel(stream, std::move(compute)), kSuccess;
}
int cudaMemcpyAsync(void* to, const void* from, size_t bytes, int, void* stream) {
  return CopyOnStream(to, from, bytes, stream);
}
int cudaMemsetAsync(void* to, int value, size_t bytes, void* stream) {
  StreamOf(stream)->Push([=] { std::memset(to, value, bytes); });
  return kSuccess;
}
int cudaStreamSynchronize(void* stream) { return cuStreamSynchronize(stream); }
int cudaGetFuncBySymbol(void** function, const void*) {
  return *function = &context_object, kSuccess;
}
void** __cudaRegisterFatBinary(void*) {
  static void* handle = nullptr;
  return &handle;
}
unsigned __cudaPushCallConfiguration(uint64_t, uint32_t, uint64_t, uint32_t, size_t, void* stream) {
  launch_streams.push_back(stream);
  return 0;
}
int __cudaPopCallConfiguration(uint32_t* grid, uint32_t* block, size_t* shared, void** stream) {
  std::fill_n(grid, 3, 1);
  std::fill_n(block, 3, 1);
  *shared = 0;
  *stream = launch_streams.back();
  launch_streams.pop_back();
  return kSuccess;
}

// Libraries: just enough for TensorFlow to accept them.

int cublasCreate_v2(void** handle) { return *handle = &context_object, kSuccess; }
int cublasLtCreate(void** handle) { return *handle = &context_object, kSuccess; }
int cublasGetVersion_v2(void*, int* version) { return *version = 120500, kSuccess; }

}  // extern "C"
