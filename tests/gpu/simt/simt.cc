#include "simt.h"

#include <setjmp.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <memory>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "cuda_on_cpu.h"

#ifdef SIMT_FINDS_RACES  // the kernels are compiled with -fsanitize=thread, this file is not
extern "C" {
void* __tsan_get_current_fiber();
void* __tsan_create_fiber(unsigned flags);
void __tsan_switch_to_fiber(void* fiber, unsigned flags);
void __tsan_acquire(void* where);
void __tsan_release(void* where);
}
#endif

__thread SimtIndex threadIdx, blockIdx, blockDim, gridDim;

namespace simt {

namespace {

constexpr uint32_t kLanes = 32;
constexpr size_t kStackBytes = 256 << 10;

[[noreturn]] void Fail(const char* what) {
  std::fprintf(stderr, "simt: block %u, thread %u: %s\n", blockIdx.x, threadIdx.x, what);
  std::abort();
}

struct Copy {
  void* to;
  const void* from;
  size_t bytes;
};

struct Fiber {
  uint32_t thread = 0;
  ucontext_t context;
  jmp_buf point;
  bool begun = false;
  void* race_finder = nullptr;
  uint32_t warp_turn = 0;                   // the number of its exchanges
  std::deque<std::vector<Copy>> committed;  // groups of copies that may be pending
  std::vector<Copy> copies;
};

struct WarpState {
  SimtExchange what = kSimtBallot;
  uint64_t values[2][kLanes];  // of this exchange and of the previous one
  std::vector<Fiber*> waiting;
};

// Runs blocks one after the other on one host thread.
class Runner {
 public:
  // Keeps as many fibers as its largest block has needed.
  static Runner& OfThisThread() {
    static thread_local Runner runner;
    return runner;
  }

  void Run(const std::function<void()>& body, uint32_t threads, uint32_t seed) {
    body_ = &body;
    dice_.seed(seed);
    while (fibers_.size() < threads) fibers_.push_back(MakeFiber());
    if (warps_.size() < threads / kLanes) warps_.resize(threads / kLanes);
    for (WarpState& warp : warps_) warp.waiting.reserve(kLanes);
    at_barrier_.reserve(threads);
    ready_.reserve(threads);
    left_ = threads;
    for (uint32_t i = 0; i < threads; ++i) {
      Fiber* fiber = fibers_[i].get();
      fiber->thread = i;
      fiber->warp_turn = 0;
      ready_.push_back(fiber);
    }
    std::shuffle(ready_.begin(), ready_.end(), dice_);
#ifdef SIMT_FINDS_RACES
    main_race_finder_ = __tsan_get_current_fiber();
    __tsan_release(this);
#endif
    GoOn(nullptr);
#ifdef SIMT_FINDS_RACES
    __tsan_acquire(this);
#endif
    if (left_ != 0) Fail("threads wait for others that wait elsewhere, or have ended");
  }

  void BlockBarrier() {
    Fiber* self = current_;
    if (!self->committed.empty() && Chance()) DoOldest(self);
#ifdef SIMT_FINDS_RACES
    __tsan_release(&at_barrier_);
#endif
    at_barrier_.push_back(self);
    if (at_barrier_.size() == left_) {
      LetGo(&at_barrier_);
    }
    GoOn(self);
#ifdef SIMT_FINDS_RACES
    __tsan_acquire(&at_barrier_);
#endif
  }

  const uint64_t* Exchange(SimtExchange what, uint32_t lanes, uint64_t value) {
    Fiber* self = current_;
    WarpState& warp = warps_[self->thread / kLanes];
    if (lanes != 0xffffffffu) Fail("only whole warps are known here");
    if (warp.waiting.empty()) warp.what = what;
    if (warp.what != what) Fail("lanes of a warp meet at different places");
    const uint32_t turn = self->warp_turn++;
    uint64_t* values = warp.values[turn % 2];
    values[self->thread % kLanes] = value;
#ifdef SIMT_FINDS_RACES  // an exchange of numbers does not order memory accesses
    if (what == kSimtWarpBarrier) __tsan_release(&warp);
#endif
    warp.waiting.push_back(self);
    if (warp.waiting.size() == kLanes) {
      LetGo(&warp.waiting);
    }
    GoOn(self);
#ifdef SIMT_FINDS_RACES
    if (what == kSimtWarpBarrier) __tsan_acquire(&warp);
#endif
    return values;
  }

  void CopyLater(const Copy& copy) {
    if (reinterpret_cast<uintptr_t>(copy.to) % copy.bytes != 0 ||
        reinterpret_cast<uintptr_t>(copy.from) % copy.bytes != 0 ||
        (copy.bytes != 4 && copy.bytes != 8 && copy.bytes != 16)) {
      Fail("an asynchronous copy is of 4, 8 or 16 bytes at a multiple of that");
    }
    current_->copies.push_back(copy);
  }
  void Commit() {
    current_->committed.push_back(std::move(current_->copies));
    current_->copies.clear();
    if (Chance()) DoOldest(current_);
  }
  void WaitForCopies(size_t groups_left) {
    while (current_->committed.size() > groups_left) DoOldest(current_);
  }

 private:
  std::unique_ptr<Fiber> MakeFiber() {
    auto fiber = std::make_unique<Fiber>();
    void* stack = mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (stack == MAP_FAILED) Fail("no memory for a thread");
    getcontext(&fiber->context);
    fiber->context.uc_stack.ss_sp = stack;
    fiber->context.uc_stack.ss_size = kStackBytes;
    fiber->context.uc_link = nullptr;
    makecontext(&fiber->context, reinterpret_cast<void (*)()>(&Runner::FiberMain), 0);
#ifdef SIMT_FINDS_RACES
    fiber->race_finder = __tsan_create_fiber(0);
#endif
    return fiber;
  }

  static void FiberMain() {
    Runner* runner = &OfThisThread();
    for (;;) {
      Fiber* self = runner->current_;
#ifdef SIMT_FINDS_RACES
      __tsan_acquire(runner);
#endif
      (*runner->body_)();
      if (!self->copies.empty() || !self->committed.empty()) {
        runner->WaitForCopies(0);
        self->copies.clear();
      }
#ifdef SIMT_FINDS_RACES
      __tsan_release(runner);
#endif
      --runner->left_;
      runner->GoOn(self);
    }
  }

  // Switch from `self` (null: the host thread) to a ready fiber, or to the host thread if none is
  // ready. Returns when `self` is chosen again.
  void GoOn(Fiber* self) {
    Fiber* next = nullptr;
    if (!ready_.empty()) {
      if (dice_() % 16 == 0) std::swap(ready_[dice_() % ready_.size()], ready_.back());
      next = ready_.back();
      ready_.pop_back();
    }
    if (next == self) return;
    current_ = next;
    if (next != nullptr) threadIdx.x = next->thread;
#ifdef SIMT_FINDS_RACES
    constexpr unsigned kWithoutOrder = 1;
    __tsan_switch_to_fiber(next == nullptr ? main_race_finder_ : next->race_finder, kWithoutOrder);
    swapcontext(self == nullptr ? &main_context_ : &self->context,
                next == nullptr ? &main_context_ : &next->context);
#else
    // Switching contexts needs system calls, so use it only for the start.
    if (_setjmp(self == nullptr ? main_point_ : self->point) != 0) return;
    if (next == nullptr) _longjmp(main_point_, 1);
    if (next->begun) _longjmp(next->point, 1);
    next->begun = true;
    setcontext(&next->context);
#endif
  }

  bool Chance() { return dice_() % 2 == 0; }
  // Do not allocate or move memory here: the race detector would attribute it to fibers.
  void LetGo(std::vector<Fiber*>* waiting) {
    std::shuffle(waiting->begin(), waiting->end(), dice_);
    for (Fiber* fiber : *waiting) ready_.push_back(fiber);
    waiting->clear();
  }

  static void DoOldest(Fiber* fiber) {
    for (const Copy& copy : fiber->committed.front()) {
      std::memcpy(copy.to, copy.from, copy.bytes);
    }
    fiber->committed.pop_front();
  }

  const std::function<void()>* body_ = nullptr;
  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::vector<WarpState> warps_;
  std::vector<Fiber*> ready_;
  std::vector<Fiber*> at_barrier_;
  Fiber* current_ = nullptr;
  uint32_t left_ = 0;
  std::minstd_rand dice_;
  ucontext_t main_context_;
  jmp_buf main_point_;
  void* main_race_finder_ = nullptr;
};

}  // namespace

void Launch(const std::function<void()>& body, uint32_t blocks, uint32_t threads, uint32_t seed,
            int host_threads) {
  if (threads == 0 || threads % kLanes != 0 || threads > 1024 || blocks == 0) {
    Fail("a block has 32 to 1024 threads, in whole warps");
  }
  std::vector<uint32_t> order(blocks);
  for (uint32_t i = 0; i < blocks; ++i) order[i] = i;
  std::shuffle(order.begin(), order.end(), std::minstd_rand(seed));
  std::atomic<uint32_t> begun{0};
  const auto work = [&] {
    for (uint32_t i = begun++; i < blocks; i = begun++) {
      blockIdx = {order[i], 0, 0};
      blockDim = {threads, 1, 1};
      gridDim = {blocks, 1, 1};
      Runner::OfThisThread().Run(body, threads, seed * 7919 + i + 1);
    }
  };
  std::vector<std::thread> others;
  for (int i = 1; i < host_threads; ++i) others.emplace_back(work);
  work();
  for (std::thread& each : others) each.join();
}

}  // namespace simt

const uint64_t* SimtExchangeValues(SimtExchange what, uint32_t lanes, uint64_t value) {
  return simt::Runner::OfThisThread().Exchange(what, lanes, value);
}
void SimtBlockBarrier() { simt::Runner::OfThisThread().BlockBarrier(); }
void SimtCopyLater(void* to, const void* from, size_t bytes) {
  simt::Runner::OfThisThread().CopyLater({to, from, bytes});
}
void SimtCommitCopies() { simt::Runner::OfThisThread().Commit(); }
void SimtWaitForCopies(size_t groups_left) {
  simt::Runner::OfThisThread().WaitForCopies(groups_left);
}

// Called by ctypes. Return 0, or 1 if there is no such kernel.
extern "C" int simt_launch(const char* name, uint32_t blocks, uint32_t threads, uint32_t seed,
                           int host_threads, void** arguments) {
  const simt::Kernel* kernel = simt::Find(name);
  if (kernel == nullptr) return 1;
  simt::Launch(kernel->bind(arguments), blocks, threads, seed, host_threads);
  return 0;
}
