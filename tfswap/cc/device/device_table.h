#ifndef TFSWAP_CC_DEVICE_DEVICE_TABLE_H_
#define TFSWAP_CC_DEVICE_DEVICE_TABLE_H_

#include "allocator/device_allocator.h"

namespace tfswap {

// The devices by number, for Python: CPU:n is n, GPU:n is kFirstGpu + n. Devices of the same number
// in the process share an allocator, which is never destroyed (each session and the eager runtime
// create their own devices).
inline constexpr int kFirstGpu = 1000;

// Return the allocator of a device. Those of CPUs are created on first use; null for a GPU that
// tfswap does not manage.
DeviceAllocator* AllocatorOf(int device);
// Register a new device; `allocator` is null for a CPU.
void RegisterDevice(int device, DeviceAllocator* allocator);

// Pinned host memory, which libtfswap_gpu provides; null if TensorFlow has created no GPU.
using PinnedMemory = tensorflow::Allocator* (*)();
void SetPinnedMemory(PinnedMemory memory);
tensorflow::Allocator* PinnedMemoryIfAny();

// The number of tfswap devices that TensorFlow has created in this process, and the largest numbers
// of CPUs and GPUs at once.
int DevicesMade();
int CpuCount();
int GpuCount();

}  // namespace tfswap

#endif  // TFSWAP_CC_DEVICE_DEVICE_TABLE_H_
