#ifndef TFSWAP_CC_DEVICE_DEVICE_TABLE_H_
#define TFSWAP_CC_DEVICE_DEVICE_TABLE_H_

#include "allocator/device_allocator.h"

namespace tfswap {

// Devices by number, for Python: CPU:n is n, GPU:n is kFirstGpu + n. Allocators are shared by all
// devices of a number in the process (each session and the eager runtime make their own device) and
// never destroyed.
inline constexpr int kFirstGpu = 1000;

// CPU devices' allocators are made when they are asked for; null for a GPU that is not ours.
DeviceAllocator* AllocatorOf(int device);
// A device was made; `allocator` is null for a CPU's.
void NoteDevice(int device, DeviceAllocator* allocator);

// Host memory that GPUs copy from and to without a detour, which libtfswap_gpu knows; null where
// TensorFlow has made no GPU.
using PinnedMemory = tensorflow::Allocator* (*)();
void SetPinnedMemory(PinnedMemory memory);
tensorflow::Allocator* PinnedMemoryIfAny();

// How many devices of ours TensorFlow has made in this process, and the highest number of CPUs, and
// of GPUs, at once.
int DevicesMade();
int CpuCount();
int GpuCount();

}  // namespace tfswap

#endif  // TFSWAP_CC_DEVICE_DEVICE_TABLE_H_
