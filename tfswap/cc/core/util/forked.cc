#include "core/util/forked.h"

#include <pthread.h>

namespace tfswap {

std::atomic<bool> is_forked{false};

namespace {

[[maybe_unused]] const int registered =
    pthread_atfork(nullptr, nullptr, [] { is_forked.store(true); });

}  // namespace
}  // namespace tfswap
