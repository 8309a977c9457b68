// Kernels of the stage "ordering". After a change:
//   nvcc -ptx -arch=compute_75 ordering.cu, then .version 7.0 and .target sm_60, for older drivers.
// Writes a value into each word, or counts the words that differ from it, `spin_ns` later.
__device__ unsigned long long now() { unsigned long long t; asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t)); return t; }
extern "C" __global__ void fill(unsigned* block, unsigned long long words, unsigned value, unsigned long long spin_ns) {
  const unsigned long long begin = now();
  while (now() - begin < spin_ns) {}
  for (unsigned long long i = threadIdx.x; i < words; i += blockDim.x) block[i] = value + (unsigned)i;
}
extern "C" __global__ void count(const unsigned* block, unsigned long long words, unsigned value, unsigned long long spin_ns, unsigned* wrong) {
  const unsigned long long begin = now();
  while (now() - begin < spin_ns) {}
  unsigned mine = 0;
  for (unsigned long long i = threadIdx.x; i < words; i += blockDim.x) mine += block[i] != value + (unsigned)i;
  if (mine) atomicAdd(wrong, mine);
}
