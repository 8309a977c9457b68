// A card that is none: NVIDIA's driver and runtime as far as TensorFlow's GPU device calls them, on
// the host. Memory is host memory, streams are threads, copies copy, and kernels compute nothing.
//
// So TensorFlow makes its GPU devices on a machine without a GPU, and what tfswap puts around them
// (allocator, hazards, copies) really runs: only the numbers that kernels would make are missing.
// Streams fall behind and overtake one another at random (FAKE_CUDA_DELAY_US at most a command), so
// that a wait that is missing shows as wrong bytes. Everything that is not here answers "success"
// (stubs.py), and is named if FAKE_CUDA_VERBOSE is set.

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
#include <string>
#include <thread>

namespace {

constexpr int kSuccess = 0;
constexpr int kOutOfMemory = 2;
constexpr int kNotReady = 600;

int64_t Setting(const char* name, int64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::atoll(text);
}

const int64_t total_bytes = Setting("FAKE_CUDA_MEMORY_MIB", 4096) << 20;
const int64_t most_delay_us = Setting("FAKE_CUDA_DELAY_US", 200);
const int device_count = static_cast<int>(Setting("FAKE_CUDA_DEVICES", 1));

class FakeStream {
 public:
  FakeStream() : thread_([this] { Run(); }) { thread_.detach(); }

  void Push(std::function<void()> command) {
    std::lock_guard<std::mutex> lock(mu_);
    commands_.push_back(std::move(command));
    ++given_;
    changed_.notify_all();
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
  void Run() {
    std::mt19937 dice(static_cast<unsigned>(reinterpret_cast<uintptr_t>(this) >> 4));
    for (;;) {
      std::function<void()> command;
      {
        std::unique_lock<std::mutex> lock(mu_);
        changed_.wait(lock, [this] { return !commands_.empty(); });
        command = std::move(commands_.front());
        commands_.pop_front();
      }
      if (most_delay_us > 0 && dice() % 4 == 0) {
        std::this_thread::sleep_for(std::chrono::microseconds(dice() % most_delay_us));
      }
      command();
      std::lock_guard<std::mutex> lock(mu_);
      ++done_;
      changed_.notify_all();
    }
  }

  std::mutex mu_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> commands_;
  int64_t given_ = 0;
  int64_t done_ = 0;
  std::thread thread_;
};

// Recorded so often; happened up to which time.
struct FakeEvent {
  std::mutex mu;
  std::condition_variable changed;
  int64_t recorded = 0;
  int64_t happened = 0;
  std::chrono::steady_clock::time_point when;
};

FakeStream* StreamOf(void* handle) {
  static auto* legacy = new FakeStream();
  return handle == nullptr || reinterpret_cast<uintptr_t>(handle) <= 2
             ? legacy
             : static_cast<FakeStream*>(handle);
}

struct Card {
  std::mutex mu;
  std::map<void*, size_t> blocks;
  int64_t in_use = 0;
  std::set<FakeStream*> streams;
};
Card& TheCard() {
  static auto* card = new Card();
  return *card;
}

void* AllocateOnCard(size_t bytes) {
  Card& card = TheCard();
  std::lock_guard<std::mutex> lock(card.mu);
  if (card.in_use + static_cast<int64_t>(bytes) > total_bytes) return nullptr;
  void* block = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (block == MAP_FAILED) return nullptr;
  card.blocks[block] = bytes;
  card.in_use += static_cast<int64_t>(bytes);
  return block;
}

void FreeOnCard(void* block) {
  Card& card = TheCard();
  std::lock_guard<std::mutex> lock(card.mu);
  auto it = card.blocks.find(block);
  if (it == card.blocks.end()) return;
  munmap(block, it->second);
  card.in_use -= static_cast<int64_t>(it->second);
  card.blocks.erase(it);
}

void FinishAll() {
  std::set<FakeStream*> streams;
  {
    Card& card = TheCard();
    std::lock_guard<std::mutex> lock(card.mu);
    streams = card.streams;
  }
  StreamOf(nullptr)->Finish();
  for (FakeStream* stream : streams) stream->Finish();
}

int MakeStream(void** stream) {
  auto* made = new FakeStream();
  Card& card = TheCard();
  std::lock_guard<std::mutex> lock(card.mu);
  card.streams.insert(made);
  *stream = made;
  return kSuccess;
}

int DestroyStream(void* stream) {
  StreamOf(stream)->Finish();
  Card& card = TheCard();
  std::lock_guard<std::mutex> lock(card.mu);
  card.streams.erase(static_cast<FakeStream*>(stream));  // its thread stays, and sleeps
  return kSuccess;
}

int RecordEvent(void* event, void* stream) {
  auto* recorded = static_cast<FakeEvent*>(event);
  // At once, as far as other threads see: one that waits for it must find it on its stream.
  std::lock_guard<std::mutex> at_once(recorded->mu);
  const int64_t number = ++recorded->recorded;
  StreamOf(stream)->Push([recorded, number] {
    std::lock_guard<std::mutex> lock(recorded->mu);
    recorded->happened = number;
    recorded->when = std::chrono::steady_clock::now();
    recorded->changed.notify_all();
  });
  return kSuccess;
}

int WaitEvent(void* stream, void* event) {
  auto* awaited = static_cast<FakeEvent*>(event);
  std::lock_guard<std::mutex> at_once(awaited->mu);
  const int64_t number = awaited->recorded;
  StreamOf(stream)->Push([awaited, number] {
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
  auto* asked = static_cast<FakeEvent*>(event);
  std::lock_guard<std::mutex> lock(asked->mu);
  return asked->happened >= asked->recorded ? kSuccess : kNotReady;
}

int CopyOnStream(void* to, const void* from, size_t bytes, void* stream) {
  StreamOf(stream)->Push([to, from, bytes] {
    // In two halves: whoever touches it meanwhile is seen.
    const size_t half = bytes / 2;
    std::memcpy(to, from, half);
    if (most_delay_us > 0) std::this_thread::sleep_for(std::chrono::microseconds(50));
    std::memcpy(static_cast<char*>(to) + half, static_cast<const char*>(from) + half, bytes - half);
  });
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
    default:
      return 0;
  }
}

int context_object;
thread_local std::deque<void*> contexts;
thread_local std::deque<void*> launch_streams;  // of kernels that are being launched

}  // namespace

extern "C" {

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

// The driver.

int cuInit(unsigned) { return kSuccess; }
int cuDriverGetVersion(int* version) { return *version = 12050, kSuccess; }
int cuDeviceGetCount(int* count) { return *count = device_count, kSuccess; }
int cuDeviceGet(int* device, int ordinal) { return *device = ordinal, kSuccess; }
int cuDeviceGetName(char* name, int size, int) {
  std::snprintf(name, size, "NVIDIA FAKE");
  return kSuccess;
}
int cuDeviceTotalMem_v2(size_t* bytes, int) { return *bytes = total_bytes, kSuccess; }
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
int cuDevicePrimaryCtxRetain(void** context, int) { return *context = &context_object, kSuccess; }
int cuDevicePrimaryCtxGetState(int, unsigned* flags, int* active) {
  return *flags = 0, *active = 1, kSuccess;
}
int cuCtxGetCurrent(void** context) {
  return *context = contexts.empty() ? nullptr : contexts.back(), kSuccess;
}
int cuCtxSetCurrent(void* context) {
  if (!contexts.empty()) contexts.pop_back();
  if (context != nullptr) contexts.push_back(context);
  return kSuccess;
}
int cuCtxPushCurrent_v2(void* context) { return contexts.push_back(context), kSuccess; }
int cuCtxPopCurrent_v2(void** context) {
  if (contexts.empty()) return 201;
  *context = contexts.back();
  contexts.pop_back();
  return kSuccess;
}
int cuCtxGetDevice(int* device) { return *device = 0, kSuccess; }
int cuCtxGetApiVersion(void*, unsigned* version) { return *version = 12050, kSuccess; }
int cuCtxSynchronize() { return FinishAll(), kSuccess; }
int cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  return *least = 0, *greatest = -5, kSuccess;
}
int cuMemGetInfo_v2(size_t* free_bytes, size_t* total) {
  Card& card = TheCard();
  std::lock_guard<std::mutex> lock(card.mu);
  *free_bytes = total_bytes - card.in_use;
  *total = total_bytes;
  return kSuccess;
}
int cuMemAlloc_v2(void** block, size_t bytes) {
  *block = AllocateOnCard(bytes);
  return *block == nullptr ? kOutOfMemory : kSuccess;
}
int cuMemFree_v2(void* block) { return FinishAll(), FreeOnCard(block), kSuccess; }
int cuMemAllocAsync(void** block, size_t bytes, void*) { return cuMemAlloc_v2(block, bytes); }
int cuMemAllocFromPoolAsync(void** block, size_t bytes, void*, void*) {
  return cuMemAlloc_v2(block, bytes);
}
// The memory is gone when the stream gets there: whoever still reads it is seen.
int cuMemFreeAsync(void* block, void* stream) {
  StreamOf(stream)->Push([block] { FreeOnCard(block); });
  return kSuccess;
}
int cuMemHostAlloc(void** block, size_t bytes, unsigned) {
  return posix_memalign(block, 4096, bytes) == 0 ? kSuccess : kOutOfMemory;
}
int cuMemFreeHost(void* block) { return std::free(block), kSuccess; }
int cuMemHostRegister_v2(void*, size_t, unsigned) { return kSuccess; }
int cuMemHostUnregister(void*) { return kSuccess; }
int cuPointerGetAttribute(void* value, int attribute, void* pointer) {
  if (attribute == 1) *static_cast<void**>(value) = &context_object;
  if (attribute == 2) *static_cast<unsigned*>(value) = 2;  // device
  if (attribute == 9) *static_cast<int*>(value) = 0;
  return kSuccess;
}
int cuStreamCreate(void** stream, unsigned) { return MakeStream(stream); }
int cuStreamCreateWithPriority(void** stream, unsigned, int) { return MakeStream(stream); }
int cuStreamDestroy_v2(void* stream) { return DestroyStream(stream); }
int cuStreamSynchronize(void* stream) { return StreamOf(stream)->Finish(), kSuccess; }
int cuStreamQuery(void* stream) { return StreamOf(stream)->Idle() ? kSuccess : kNotReady; }
int cuStreamGetCtx(void*, void** context) { return *context = &context_object, kSuccess; }
int cuStreamWaitEvent(void* stream, void* event, unsigned) { return WaitEvent(stream, event); }
int cuStreamIsCapturing(void*, int* status) { return *status = 0, kSuccess; }
int cuEventCreate(void** event, unsigned) { return *event = new FakeEvent(), kSuccess; }
int cuEventDestroy_v2(void* event) { return kSuccess; }  // what is under way may name it
int cuEventRecord(void* event, void* stream) { return RecordEvent(event, stream); }
int cuEventQuery(void* event) { return QueryEvent(event); }
int cuEventSynchronize(void* event) {
  auto* awaited = static_cast<FakeEvent*>(event);
  std::unique_lock<std::mutex> lock(awaited->mu);
  awaited->changed.wait(lock, [&] { return awaited->happened >= awaited->recorded; });
  return kSuccess;
}
int cuEventElapsedTime(float* ms, void* begin, void* end) {
  auto* first = static_cast<FakeEvent*>(begin);
  auto* last = static_cast<FakeEvent*>(end);
  *ms = std::chrono::duration<float, std::milli>(last->when - first->when).count();
  return kSuccess;
}
int cuMemcpyHtoDAsync_v2(void* to, const void* from, size_t bytes, void* stream) {
  return CopyOnStream(to, from, bytes, stream);
}
int cuMemcpyDtoHAsync_v2(void* to, const void* from, size_t bytes, void* stream) {
  return CopyOnStream(to, from, bytes, stream);
}
int cuMemcpyDtoDAsync_v2(void* to, const void* from, size_t bytes, void* stream) {
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
// Kernels take their place in the stream and do nothing.
int cuLaunchKernel(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                   void* stream, void**, void**) {
  StreamOf(stream)->Push([] {});
  return kSuccess;
}
int cuLaunchKernelEx(const void*, void*, void**, void**) { return kSuccess; }
int cuModuleLoadData(void** module, const void*) { return *module = &context_object, kSuccess; }
int cuModuleLoadDataEx(void** module, const void*, unsigned, void*, void*) {
  return *module = &context_object, kSuccess;
}
int cuModuleLoadFatBinary(void** module, const void*) {
  return *module = &context_object, kSuccess;
}
int cuModuleGetFunction(void** function, void*, const char*) {
  return *function = &context_object, kSuccess;
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
  return *text = "an error of the fake card", kSuccess;
}
int cuDeviceCanAccessPeer(int* can, int, int) { return *can = 0, kSuccess; }
int cuDeviceGetDefaultMemPool(void** pool, int) { return *pool = &context_object, kSuccess; }
int cuMemPoolCreate(void** pool, const void*) { return *pool = &context_object, kSuccess; }

// The runtime.

int cudaRuntimeGetVersion(int* version) { return *version = 12050, kSuccess; }
int cudaDriverGetVersion(int* version) { return *version = 12050, kSuccess; }
int cudaGetDeviceCount(int* count) { return *count = device_count, kSuccess; }
int cudaGetDevice(int* device) { return *device = 0, kSuccess; }
// cudaDeviceProp of CUDA 12: what TensorFlow reads, by offset.
int cudaGetDeviceProperties_v2(char* properties, int) {
  std::memset(properties, 0, 1032);
  const auto set = [&](size_t offset, auto value) {
    std::memcpy(properties + offset, &value, sizeof(value));
  };
  set(288, static_cast<size_t>(total_bytes));  // totalGlobalMem
  set(296, size_t{49152});                     // sharedMemPerBlock
  set(304, 65536);                             // regsPerBlock
  set(308, 32);                                // warpSize
  set(320, 1024);                              // maxThreadsPerBlock
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
const char* cudaGetErrorString(int) { return "an error of the fake card"; }
const char* cudaGetErrorName(int) { return "FAKE"; }
int cudaLaunchKernel(const void*, uint64_t, uint32_t, uint64_t, uint32_t, void**, size_t,
                     void* stream) {
  StreamOf(stream)->Push([] {});
  return kSuccess;
}
int cudaMemcpyAsync(void* to, const void* from, size_t bytes, int, void* stream) {
  return CopyOnStream(to, from, bytes, stream);
}
int cudaMemsetAsync(void* to, int value, size_t bytes, void* stream) {
  StreamOf(stream)->Push([=] { std::memset(to, value, bytes); });
  return kSuccess;
}
int cudaStreamSynchronize(void* stream) { return StreamOf(stream)->Finish(), kSuccess; }
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

// Libraries: enough to be believed.

size_t cudnnGetVersion() { return 91000; }
int cudnnGetProperty(int type, int* value) {
  return *value = type == 0 ? 9 : type == 1 ? 10 : 0, 0;
}
size_t cudnnGetCudartVersion() { return 12050; }
const char* cudnnGetErrorString(int) { return "an error of the fake card"; }
int cudnnCreate(void** handle) { return *handle = &context_object, kSuccess; }
int cublasCreate_v2(void** handle) { return *handle = &context_object, kSuccess; }
int cublasLtCreate(void** handle) { return *handle = &context_object, kSuccess; }
int cublasGetVersion_v2(void*, int* version) { return *version = 120500, kSuccess; }

}  // extern "C"
