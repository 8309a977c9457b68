#ifndef TFSWAP_CC_DEVICE_SWAP_DEVICE_H_
#define TFSWAP_CC_DEVICE_SWAP_DEVICE_H_

#include <memory>
#include <string>
#include <vector>

#include "allocator/device_allocator.h"
#include "tensorflow/core/common_runtime/threadpool_device.h"

namespace tfswap {

// TensorFlow's CPU device with a memory budget and a recorder. Placement and stock kernels are
// unchanged.
class SwapDevice : public tensorflow::ThreadPoolDevice {
 public:
  SwapDevice(const tensorflow::SessionOptions& options, const std::string& name,
             DeviceAllocator* allocator);

  tensorflow::Allocator* GetAllocator(tensorflow::AllocatorAttributes attributes) override;
  void Compute(tensorflow::OpKernel* kernel, tensorflow::OpKernelContext* context) override;
  void ComputeAsync(tensorflow::AsyncOpKernel* kernel, tensorflow::OpKernelContext* context,
                    tensorflow::AsyncOpKernel::DoneCallback done) override;

 private:
  void Run(tensorflow::OpKernel* kernel, tensorflow::OpKernelContext* context);
  void RunAsync(tensorflow::AsyncOpKernel* kernel, tensorflow::OpKernelContext* context,
                tensorflow::AsyncOpKernel::DoneCallback done);

  DeviceAllocator* const allocator_;
  const bool force_gpu_compatible_;
};

}  // namespace tfswap

#endif  // TFSWAP_CC_DEVICE_SWAP_DEVICE_H_
