// Small programs of swaps, in all interleavings of what the copy engine's threads and the step's
// do: through the kernels and the device that TensorFlow's executor would call.

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "engine/rig.h"
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
using tensorflow::CancellationManager;
using tensorflow::Tensor;

constexpr int64_t kBytes = 16 * 1024;
constexpr int64_t kSlack = 4096;  // for handles

// What a run shares: made anew for each.
struct Shared {
  Event swapped_out, ended;
  Tensor x, y;  // handles
  std::unique_ptr<CancellationManager> cancellation = std::make_unique<CancellationManager>();
};

// A step on a device that has room for so many tensors.
class Step {
 public:
  Step(Rig* rig, std::string name, int room) : rig_(rig), room_(room) {
    program_.name = std::move(name);
    program_.begin = [this] { Begin(); };
    program_.check = [this] { End(); };
    program_.seen = [this] { return Seen(); };
  }

  // Tensors that are parked when the run begins: x of owner 1, and y of owner 2.
  Step& Parked(const Swap& x) {
    parked_x_ = std::make_unique<Swap>(x);
    return *this;
  }
  Step& Parked(const Swap& x, const Swap& y) {
    parked_y_ = std::make_unique<Swap>(y);
    return Parked(x);
  }
  Step& HostLimit(int64_t tensors) {
    host_limit_ = tensors * kBytes;
    return *this;
  }

  // A kernel that needs memory for so many tensors, and has it to itself.
  Step& Computes(int tensors, const std::function<void(Shared*)>& before = [](Shared*) {}) {
    return Does("kernel", [this, tensors, before](Shared* shared) {
      before(shared);
      rig_->Compute(tensors * kBytes, [&](void* block) {
        races::Fill(block, tensors * kBytes, 9);
        Pause();
        Require(races::Holds(block, tensors * kBytes, 9),
                "a kernel's memory is somebody else's too");
      });
    });
  }
  // A swap-in of x or y; if it is the last reader, the handle goes.
  Step& Reads(Tensor Shared::* handle, uint32_t owner, bool last = true,
              const std::function<void(Shared*)>& before = [](Shared*) {}, int64_t place = 0) {
    return Does("reader", [=](Shared* shared) {
      before(shared);
      Tensor held = shared->*handle;
      if (last) shared->*handle = Tensor();
      bool came = false;
      const std::string wrong =
          rig_->SwapIn(held, owner, &came, shared->cancellation.get(), place);
      Require(wrong.empty(), wrong);
      if (!came) ++cancelled_;
    });
  }
  Step& Does(const std::string& name, const std::function<void(Shared*)>& does) {
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
    add("cancelled", cancelled_);
    return text;
  }
  void Begin() {
    if (runs_++ == 0) rig_->engine()->ClearStats();
    rig_->allocator()->budget()->SetBudget(room_ * kBytes + kSlack);
    rig_->engine()->host_memory()->SetLimit(host_limit_);
    shared_ = std::make_unique<Shared>();
    if (parked_x_ != nullptr) shared_->x = rig_->SwapOut(*parked_x_, kBytes, 1);
    if (parked_y_ != nullptr) shared_->y = rig_->SwapOut(*parked_y_, kBytes, 2);
  }
  void End() {
    shared_.reset();
    const std::string left = rig_->Leftovers();
    Require(left.empty(), left);
  }

  Rig* const rig_;
  const int64_t room_;
  int64_t host_limit_ = 0;
  std::unique_ptr<Swap> parked_x_, parked_y_;
  std::unique_ptr<Shared> shared_;
  int64_t runs_ = 0, cancelled_ = 0;
  Program program_;
};

Swap Lazy(int returns = 1, int64_t next_use = 5) {
  Swap swap;
  swap.lazy = true;
  swap.returns = returns;
  swap.next_use = next_use;
  return swap;
}

// Room for so many tensors, then for so many.
void GiveBudget(Rig* rig, int first, int then) {
  tfswap::BudgetAllocator* budget = rig->allocator()->budget();
  budget->SetBudget(first * kBytes + kSlack);
  budget->MakeRoom();
  Pause();
  budget->SetBudget(then * kBytes + kSlack);
}

std::vector<Program> Make() {
  static auto* rig = new Rig();
  const auto step = [](const char* name, int room) -> Step& {
    return *new Step(rig, name, room);  // as long as the program
  };
  const auto swapped_out = [](Shared* shared) { shared->swapped_out.Wait(); };
  const auto leaves = [](const Swap& swap) {
    return [swap](Shared* shared) {
      shared->x = rig->SwapOut(swap, kBytes, 1);
      shared->swapped_out.Notify();
    };
  };
  Swap encoded = Lazy();
  encoded.tier = "compressed";
  encoded.codec = "zvc";
  encoded.threads = 2;

  std::vector<Program> programs;
  // A tensor whose memory somebody needs is wanted back while it leaves.
  programs.push_back(step("wanted back", 3).Parked(Lazy()).Computes(3).Reads(&Shared::x, 1).Done());
  // The same, and there is room for it at once.
  programs.push_back(step("made to leave", 3)
                         .Parked(Lazy())
                         .Does("broker", [](Shared*) { GiveBudget(rig, 0, 3); })
                         .Reads(&Shared::x, 1)
                         .Done());
  programs.push_back(step("two readers", 3)
                         .Parked(Lazy(2))
                         .Computes(3)
                         .Reads(&Shared::x, 1, false)
                         .Reads(&Shared::x, 1, false)
                         .Done());
  programs.push_back(
      step("encoded", 3).Parked(encoded).Computes(3).Reads(&Shared::x, 1).Done());
  // The gate: what needs the memory of a planned swap runs when that has left.
  programs.push_back(step("gate", 3)
                         .Does("producer", leaves(Swap()))
                         .Computes(3, swapped_out)
                         .Reads(&Shared::x, 1, true, swapped_out)
                         .Done());
  // The step ends early: nobody will read it.
  programs.push_back(step("freed while it leaves", 3)
                         .Parked(Lazy())
                         .Computes(3)
                         .Does("dropper", [](Shared* shared) { shared->x = Tensor(); })
                         .Done());
  programs.push_back(step("cancelled", 3)
                         .Parked(Lazy())
                         .Computes(3)
                         .Reads(&Shared::x, 1)
                         .Does("canceller", [](Shared* shared) {
                           shared->cancellation->StartCancel();
                         })
                         .Done());
  // Of two, one finds no room in far memory, and stays.
  programs.push_back(step("far memory is full", 3)
                         .Parked(Lazy(1, 5), Lazy(1, 6))
                         .HostLimit(1)
                         .Computes(3)
                         .Reads(&Shared::x, 1, true, [](Shared*) {}, 5)
                         .Reads(&Shared::y, 2, true, [](Shared*) {}, 6)
                         .Done());
  // Host blocks that one tensor gives back are the next one's.
  programs.push_back(step("two tensors", 3)
                         .Parked(Lazy(1, 5), Lazy(1, 6))
                         .Computes(3)
                         .Reads(&Shared::x, 1)
                         .Reads(&Shared::y, 2)
                         .Done());
  programs.push_back(step("the budget changes", 3)
                         .Parked(Lazy())
                         .Computes(2)
                         .Reads(&Shared::x, 1)
                         .Does("broker", [](Shared*) { GiveBudget(rig, 2, 3); })
                         .Done());
  return programs;
}

}  // namespace

int main(int argc, char** argv) { return interleaving::Main(argc, argv, Make); }
