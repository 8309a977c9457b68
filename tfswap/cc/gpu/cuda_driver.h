#ifndef TFSWAP_CC_GPU_CUDA_DRIVER_H_
#define TFSWAP_CC_GPU_CUDA_DRIVER_H_

#include <cstddef>
#include <cstdint>
#include <string>

namespace tfswap {

// The functions of NVIDIA's driver that TensorFlow's interface lacks: streams with priorities,
// timed events, copies, and pinned memory without TensorFlow's locks. Loaded from libcuda.so.1 at
// run time, so neither CUDA's headers nor a GPU is needed to build and load the library. Names,
// arguments and constants are those of cuda.h, whose interface is stable.
struct CudaDriver {
  using Context = struct CUctx_st*;
  using Stream = struct CUstream_st*;
  using Event = struct CUevent_st*;
  using Module = struct CUmod_st*;
  using Function = struct CUfunc_st*;
  using Result = int;
  using DevicePointer = unsigned long long;  // NOLINT: CUdeviceptr

  static constexpr Result kSuccess = 0;
  static constexpr Result kOutOfMemory = 2;
  static constexpr Result kNotReady = 600;
  static constexpr unsigned kStreamNonBlocking = 1;
  static constexpr unsigned kEventDefault = 0;  // with times
  static constexpr unsigned kEventDisableTiming = 2;
  // Of host memory that is registered or allocated: for all contexts, and for kernels.
  static constexpr unsigned kHostPortable = 1;
  static constexpr unsigned kHostDeviceMap = 2;
  static constexpr int kAttributeProcessors = 16;
  static constexpr int kAttributeKernelsUseHostPointers = 91;

  Result (*StreamGetCtx)(Stream stream, Context* context);
  Result (*CtxPushCurrent)(Context context);
  Result (*CtxPopCurrent)(Context* context);
  Result (*CtxGetStreamPriorityRange)(int* least, int* greatest);
  Result (*StreamCreateWithPriority)(Stream* stream, unsigned flags, int priority);
  Result (*StreamSynchronize)(Stream stream);
  Result (*StreamWaitEvent)(Stream stream, Event event, unsigned flags);
  Result (*EventCreate)(Event* event, unsigned flags);
  Result (*EventDestroy)(Event event);
  Result (*EventRecord)(Event event, Stream stream);
  Result (*EventQuery)(Event event);
  Result (*EventSynchronize)(Event event);
  Result (*EventElapsedTime)(float* milliseconds, Event begin, Event end);
  Result (*MemcpyDtoHAsync)(void* to, DevicePointer from, size_t bytes, Stream stream);
  Result (*MemcpyHtoDAsync)(DevicePointer to, const void* from, size_t bytes, Stream stream);
  Result (*MemHostAlloc)(void** begin, size_t bytes, unsigned flags);
  Result (*MemFreeHost)(void* begin);
  Result (*MemHostRegister)(void* begin, size_t bytes, unsigned flags);
  Result (*MemHostUnregister)(void* begin);
  Result (*GetErrorString)(Result result, const char** text);

  // For tfswap's own kernels, which are optional: null if the driver lacks them.
  Result (*DriverGetVersion)(int* version);
  Result (*CtxGetDevice)(int* device);
  Result (*DeviceGetAttribute)(int* value, int attribute, int device);
  Result (*DeviceGetPCIBusId)(char* text, int bytes, int device);
  Result (*DeviceGetName)(char* name, int bytes, int device);
  Result (*DeviceTotalMem)(size_t* bytes, int device);
  Result (*ModuleLoadData)(Module* module, const void* image);
  Result (*ModuleUnload)(Module module);
  Result (*ModuleGetFunction)(Function* function, Module module, const char* name);
  Result (*ModuleGetGlobal)(DevicePointer* begin, size_t* bytes, Module module, const char* name);
  Result (*LaunchKernel)(Function function, unsigned blocks_x, unsigned blocks_y, unsigned blocks_z,
                         unsigned threads_x, unsigned threads_y, unsigned threads_z,
                         unsigned shared_bytes, Stream stream, void** arguments, void** extra);

  // Return null if there is no driver; `why` is set to what is missing.
  static const CudaDriver* Get(std::string* why = nullptr);

  std::string Text(Result result) const;
};

// Makes a context current for the thread within a scope.
class CudaContext {
 public:
  CudaContext(const CudaDriver* driver, CudaDriver::Context context)
      : driver_(driver), pushed_(driver->CtxPushCurrent(context)) {}
  ~CudaContext() {
    CudaDriver::Context context;
    if (pushed_ == CudaDriver::kSuccess) driver_->CtxPopCurrent(&context);
  }
  CudaDriver::Result pushed() const { return pushed_; }
  CudaContext(const CudaContext&) = delete;
  CudaContext& operator=(const CudaContext&) = delete;

 private:
  const CudaDriver* const driver_;
  const CudaDriver::Result pushed_;
};

}  // namespace tfswap

#endif  // TFSWAP_CC_GPU_CUDA_DRIVER_H_
