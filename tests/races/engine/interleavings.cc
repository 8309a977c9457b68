// Small programs of swaps, in all interleavings of the copy engine's threads and the step's
// threads, through the kernels and the device that TensorFlow's executor would call.

#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/rig.h"
#include "engine/variable.h"
#include "far/far_file.h"
#include "interleaving/explore.h"
#include "kernels/thread_copy_engine.h"
#include "pattern.h"

namespace {

using interleaving::Pause;
using interleaving::Program;
using interleaving::Require;
using races::Event;
using races::OpRun;
using races::Rig;
using races::Swap;
using races::Variable;
using tensorflow::CancellationManager;
using tensorflow::Tensor;

// Smaller tensors are copied by the thread that needs them, larger ones by another.
constexpr int64_t kSmallBytes = 16 * 1024, kBytes = 80 * 1024;
constexpr int64_t kBytesOfVariables = kBytes;
static_assert(kBytesOfVariables >= tfswap::StreamedVariables::kMinBytes);
constexpr int64_t kBytesInSections = int64_t{32} << 20;
constexpr int64_t kSlack = 4096;  // for handles

// State that a run shares: created again for each run.
struct Shared {
  Event x_left, y_left;
  Tensor x, y;  // handles
  std::unique_ptr<Variable> v, w;
  std::unique_ptr<CancellationManager> cancellation = std::make_unique<CancellationManager>();
  int64_t run = 0;
};

using Act = std::function<void(Shared*)>;
void Nothing(Shared*) {}

// A step on a device that has room for that many tensors of that size.
class Step {
 public:
  Step(Rig* rig, std::string name, double room, int64_t bytes = kBytes)
      : rig_(rig), room_bytes_(static_cast<int64_t>(room * bytes)), bytes_(bytes) {
    program_.name = std::move(name);
    program_.begin = [this] { Begin(); };
    program_.check = [this] { End(); };
    program_.seen = [this] { return Seen(); };
  }

  // Tensors that are evictable when the run begins: x of owner 1, and y of owner 2.
  Step& Evictable(const Swap& x) {
    evictable_x_ = std::make_unique<Swap>(x);
    return *this;
  }
  Step& Evictable(const Swap& x, const Swap& y) {
    evictable_y_ = std::make_unique<Swap>(y);
    return Evictable(x);
  }
  // Variables v and w of owners 1 and 2, with values when the run begins.
  Step& HasVariables() {
    has_variables_ = true;
    return *this;
  }
  // And streamed.
  Step& Streams() {
    streams_ = true;
    return HasVariables();
  }
  Step& HostLimit(double tensors) {
    host_limit_ = static_cast<int64_t>(tensors * bytes_);
    return *this;
  }
  // From here on, tensors without room go to a file in this folder.
  Step& WithFile() {
    with_file_ = true;
    return *this;
  }
  Step& InSlab() {
    in_slab_ = true;
    return *this;
  }
  // Threads that swap in wait for memory themselves.
  Step& InKernels() {
    in_kernels_ = true;
    return *this;
  }

  // A kernel that needs memory for that many tensors, and has it to itself.
  Step& Computes(int tensors, const Act& before = Nothing) {
    return Does("kernel", [this, tensors, before](Shared* shared) {
      before(shared);
      Compute(tensors);
    });
  }
  void Compute(int tensors) {
    const int64_t bytes = tensors * bytes_;
    rig_->Compute(bytes, [&](void* block) {
      races::Fill(block, bytes, 9);
      Pause();
      Require(races::Holds(block, bytes, 9), "a kernel's memory is somebody else's too");
    });
  }
  // A swap-in of x or y; the last reader drops the handle.
  Step& Reads(Tensor Shared::* handle, uint32_t owner, bool last = true,
              const Act& before = Nothing, int64_t place = 0) {
    return Does("reader " + std::to_string(program_.threads.size()), [=](Shared* shared) {
      before(shared);
      Tensor held = shared->*handle;
      if (last) shared->*handle = Tensor();
      Read(held, owner, shared->cancellation.get(), place);
    });
  }
  void Read(const Tensor& handle, uint32_t owner, CancellationManager* cancellation = nullptr,
            int64_t place = 0) {
    bool came = false;
    const std::string wrong = rig_->SwapIn(handle, owner, &came, cancellation, place, in_kernels_);
    Require(wrong.empty(), wrong);
    if (!came) ++not_come_;
  }
  Tensor SwapOut(const Swap& swap, uint32_t owner) { return rig_->SwapOut(swap, bytes_, owner); }
  Step& Does(const std::string& name, const Act& does) {
    program_.threads.push_back({name, [this, does] { does(shared_.get()); }});
    return *this;
  }

  Program Done() { return program_; }

 private:
  std::string Seen() const {
    std::string text;
    const auto add = [&text](const char* name, int64_t number) {
      text += std::string(", \"") + name + "\": " + std::to_string(number);
    };
    const tfswap::CopyStats stats = rig_->engine()->Stats();
    add("copies_out", stats.copies_out);
    add("copies_in", stats.copies_in);
    add("declined", stats.copies_declined);
    add("not_come", not_come_);
    return text;
  }
  void Begin() {
    if (runs_++ == 0) {
      rig_->engine()->ClearStats();
      const std::string problem = with_file_ ? tfswap::FarFile::Get()->Open(".", 0) : "";
      if (!problem.empty()) std::fprintf(stderr, "without a file: %s\n", problem.c_str());
    }
    rig_->allocator()->slab()->SetAlways(in_slab_).IgnoreError();
    rig_->allocator()->budget()->SetBudget(room_bytes_ + kSlack);
    rig_->engine()->host_memory()->SetLimit(host_limit_);
    shared_ = std::make_unique<Shared>();
    shared_->run = runs_;
    if (streams_) rig_->engine()->variables()->SetOn(true);
    if (has_variables_) {
      shared_->v = std::make_unique<Variable>(rig_, bytes_, 1);
      shared_->w = std::make_unique<Variable>(rig_, bytes_, 2);
      Require(shared_->v->Assign() && shared_->w->Assign(), "no memory for variables");
    }
    if (evictable_x_ != nullptr) shared_->x = SwapOut(*evictable_x_, 1);
    if (evictable_y_ != nullptr) shared_->y = SwapOut(*evictable_y_, 2);
  }
  void End() {
    shared_.reset();
    if (has_variables_) {
      const std::string problem = rig_->engine()->variables()->SetOn(false);
      Require(problem.empty(), problem);
    }
    const std::string left = rig_->Leftovers();
    Require(left.empty(), left);
  }

  Rig* const rig_;
  const int64_t room_bytes_;
  const int64_t bytes_;
  bool in_slab_ = false, in_kernels_ = false, with_file_ = false;
  bool has_variables_ = false, streams_ = false;
  int64_t host_limit_ = 0;
  std::unique_ptr<Swap> evictable_x_, evictable_y_;
  std::unique_ptr<Shared> shared_;
  int64_t runs_ = 0, not_come_ = 0;
  Program program_;
};

Swap Lazy(int returns = 1, int64_t next_use = 5) {
  Swap swap;
  swap.lazy = true;
  swap.returns = returns;
  swap.next_use = next_use;
  return swap;
}

// Room for that many tensors, then for that many.
void GiveBudget(Rig* rig, int first, int then) {
  tfswap::BudgetAllocator* budget = rig->allocator()->budget();
  budget->SetBudget(first * kBytes + kSlack);
  budget->MakeRoom();
  Pause();
  budget->SetBudget(then * kBytes + kSlack);
}

std::vector<Program> Make() {
  static auto* rig = new Rig();
  std::vector<Program> programs;
  const auto step = [](const char* name, double room, int64_t bytes = kBytes) {
    return new Step(rig, name, room, bytes);  // as long as its program
  };
  const Act x_left = [](Shared* shared) { shared->x_left.Wait(); };
  const Act y_left = [](Shared* shared) { shared->y_left.Wait(); };
  Swap encoded = Lazy();
  encoded.tier = "compressed";
  encoded.codec = "zvc";
  encoded.threads = 2;

  // A tensor that is being evicted is needed while it leaves.
  programs.push_back(
      step("wanted back", 3)->Evictable(Lazy()).Computes(3).Reads(&Shared::x, 1).Done());
  programs.push_back(step("wanted back by a kernel", 3)
                         ->InKernels()
                         .Evictable(Lazy())
                         .Computes(3)
                         .Reads(&Shared::x, 1)
                         .Done());
  programs.push_back(
      step("encoded", 3)->Evictable(encoded).Computes(3).Reads(&Shared::x, 1).Done());
  programs.push_back(
      step("in the slab", 3)->InSlab().Evictable(Lazy()).Computes(3).Reads(&Shared::x, 1).Done());
  // The same, and there is room for it at once.
  programs.push_back(step("made to leave", 3)
                         ->Evictable(Lazy())
                         .Does("broker", [](Shared*) { GiveBudget(rig, 0, 3); })
                         .Reads(&Shared::x, 1)
                         .Done());
  programs.push_back(step("two readers", 3)
                         ->Evictable(Lazy(2))
                         .Computes(3)
                         .Reads(&Shared::x, 1, /*last=*/false)
                         .Reads(&Shared::x, 1, /*last=*/false)
                         .Done());
  // The gate: an op that needs the memory of a planned swap runs after the swap-out.
  Step* gate = step("gate", 3);
  const auto leaves = [](Step* step, const Swap& swap) {
    return [step, swap](Shared* shared) {
      shared->x = step->SwapOut(swap, 1);
      shared->x_left.Notify();
    };
  };
  programs.push_back(gate->Does("producer", leaves(gate, Swap()))
                         .Computes(3, x_left)
                         .Reads(&Shared::x, 1, /*last=*/true, x_left)
                         .Done());
  // The step ends early: no op will read the tensor.
  programs.push_back(step("freed while it leaves", 3)
                         ->Evictable(Lazy())
                         .Computes(3)
                         .Does("dropper", [](Shared* shared) { shared->x = Tensor(); })
                         .Done());
  programs.push_back(
      step("cancelled", 3)
          ->Evictable(Lazy())
          .Computes(3)
          .Reads(&Shared::x, 1)
          .Does("canceller", [](Shared* shared) { shared->cancellation->StartCancel(); })
          .Done());
  // Of two tensors, one finds no room in far memory, and stays.
  programs.push_back(step("far memory is full", 3)
                         ->Evictable(Lazy(1, 5), Lazy(1, 6))
                         .HostLimit(1)
                         .Computes(3)
                         .Reads(&Shared::x, 1, /*last=*/true, Nothing, 5)
                         .Reads(&Shared::y, 2, /*last=*/true, Nothing, 6)
                         .Done());
  // A host block that one tensor releases is reused for the next one.
  programs.push_back(step("two tensors", 3)
                         ->Evictable(Lazy(1, 5), Lazy(1, 6))
                         .Computes(3)
                         .Reads(&Shared::x, 1)
                         .Reads(&Shared::y, 2)
                         .Done());
  programs.push_back(step("two tensors for kernels", 3)
                         ->InKernels()
                         .Evictable(Lazy(1, 5), Lazy(1, 6))
                         .Computes(3)
                         .Reads(&Shared::x, 1)
                         .Reads(&Shared::y, 2)
                         .Done());
  programs.push_back(step("two small tensors", 3, kSmallBytes)
                         ->Evictable(Lazy(1, 5), Lazy(1, 6))
                         .Computes(3)
                         .Reads(&Shared::x, 1)
                         .Reads(&Shared::y, 2)
                         .Done());
  programs.push_back(step("the budget changes", 3)
                         ->Evictable(Lazy())
                         .Computes(2)
                         .Reads(&Shared::x, 1)
                         .Does("broker", [](Shared*) { GiveBudget(rig, 2, 3); })
                         .Done());
  // A plan swaps a variable's value out and in, while other ops use it.
  const auto reads = [](std::unique_ptr<Variable> Shared::* variable) {
    return [variable](Shared* shared) {
      const std::string wrong = (shared->*variable)->Read();
      Require(wrong.empty(), wrong);
    };
  };
  programs.push_back(step("a variable leaves", 3, kBytesOfVariables)
                         ->Streams()
                         .Does("plan",
                               [](Shared* shared) {
                                 shared->v->SwapOut();
                                 shared->v->Return();
                               })
                         .Does("reader", reads(&Shared::v))
                         .Does("writer", [](Shared* shared) { shared->v->Assign(); })
                         .Done());
  programs.push_back(step("variables make room", 3, kBytesOfVariables)
                         ->Streams()
                         .Computes(2)
                         .Does("reader of v", reads(&Shared::v))
                         .Does("reader of w", reads(&Shared::w))
                         .Done());
  // One training ends during its last step's swaps; another one begins while kernels run.
  programs.push_back(step("streaming ends", 3, kBytesOfVariables)
                         ->Streams()
                         .Does("plan", [](Shared* shared) { shared->v->SwapOut(); })
                         .Does("end",
                               [](Shared*) {
                                 const auto problem = rig->engine()->variables()->SetOn(false);
                                 Require(problem.empty(), problem);
                               })
                         .Does("reader", reads(&Shared::v))
                         .Done());
  programs.push_back(
      step("streaming begins", 3, kBytesOfVariables)
          ->HasVariables()
          .Does("begin", [](Shared*) { rig->engine()->variables()->SetOn(true); })
          .Does("make room",
                [](Shared*) { rig->engine()->variables()->Reclaim(2 * kBytesOfVariables); })
          .Does("reader", reads(&Shared::v))
          .Does("another one", reads(&Shared::v))
          .Done());
  // A tensor enters memory that another one leaves, section by section. Of the third, one half
  // finds room in far memory, and the other half stays.
  for (const char* name : {"in sections", "sections of the slab", "sections that stay"}) {
    Step* sections = step(name, 1.7, kBytesInSections);
    if (name == std::string("sections of the slab")) sections->InSlab();
    if (name == std::string("sections that stay")) sections->HostLimit(0.6);
    programs.push_back(sections
                           ->Does("producer",
                                  [sections](Shared* shared) {
                                    shared->y = sections->SwapOut(Swap(), 2);
                                    shared->y_left.Notify();
                                    shared->x = sections->SwapOut(Swap(), 1);
                                    shared->x_left.Notify();
                                  })
                           .Reads(&Shared::y, 2, /*last=*/true, y_left)
                           .Reads(&Shared::x, 1, /*last=*/true, x_left)
                           .Done());
  }
  // The last program, because the file stays.
  Swap to_file;
  to_file.tier = "file";
  Step* file = step("in the file", 3);
  programs.push_back(file->WithFile()
                         .Does("producer", leaves(file, to_file))
                         .Computes(3, x_left)
                         .Reads(&Shared::x, 1, /*last=*/true, x_left)
                         .Done());
  return programs;
}

}  // namespace

int main(int argc, char** argv) { return interleaving::Main(argc, argv, Make); }
