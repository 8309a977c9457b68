// Tells ThreadSanitizer about TensorFlow, whose library is not instrumented: that its mutexes
// order accesses, that tensors are read, and that the free of a tensor's memory follows all
// releases of it. Overrides the library's own functions.

#include <sanitizer/tsan_interface.h>

#include "tensorflow/core/framework/tensor.h"
#include "their_mutex.h"

namespace {

const races::TheirMutex& Theirs() { return races::TheirMutex::Get(); }

bool Acquired(absl::Mutex* mutex, bool locked) {
  if (locked) __tsan_acquire(mutex);
  return locked;
}

}  // namespace

namespace absl {
ABSL_NAMESPACE_BEGIN

void Mutex::lock() {
  (this->*Theirs().lock)();
  __tsan_acquire(this);
}

void Mutex::unlock() {
  __tsan_release(this);
  (this->*Theirs().unlock)();
}

bool Mutex::try_lock() { return Acquired(this, (this->*Theirs().try_lock)()); }

void Mutex::lock_shared() {
  (this->*Theirs().lock_shared)();
  __tsan_acquire(this);
}

void Mutex::unlock_shared() {
  __tsan_release(this);
  (this->*Theirs().unlock_shared)();
}

bool Mutex::try_lock_shared() { return Acquired(this, (this->*Theirs().try_lock_shared)()); }

ABSL_NAMESPACE_END
}  // namespace absl

namespace tensorflow {

Tensor::~Tensor() {
  if (buf_ != nullptr) buf_->Unref();
}

size_t Tensor::TotalBytes() const { return shape_.num_elements() == 0 ? 0 : buf_->size(); }

}  // namespace tensorflow
