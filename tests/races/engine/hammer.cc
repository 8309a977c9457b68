// Stress test of a device of tfswap: swaps of all kinds, kernels, budgets and streamed variables,
// under a sanitizer.
//
//     engine_hammer --seconds 5 --folder FOLDER_FOR_THE_FILE

#include "hammer.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/rig.h"
#include "engine/variable.h"
#include "far/far_file.h"
#include "kernels/thread_copy_engine.h"
#include "pattern.h"

namespace {

using races::Between;
using races::Dice;
using races::Event;
using races::OpRun;
using races::Require;
using races::Rig;
using races::Swap;
using tensorflow::CancellationManager;
using tensorflow::Tensor;

constexpr int64_t kKiB = 1024, kMiB = 1024 * kKiB;
constexpr int64_t kBudgetBytes = 6 * kMiB;  // little for five threads and the variables
constexpr int64_t kLargeBytes = 32 * kMiB;  // moves in sections

uint32_t NextOwner() {
  static std::atomic<uint32_t> last{0};
  return ++last;
}

Swap AnySwap(Dice* dice) {
  const char* const tiers[] = {"host", "host", "compressed", "file"};
  const char* const codecs[] = {"zvc", "rle", "csr"};
  Swap swap;
  swap.lazy = Between(dice, 0, 1) == 0;
  swap.returns = static_cast<int>(Between(dice, 1, 2));
  swap.next_use = Between(dice, 1, 8);
  swap.tier = tiers[Between(dice, 0, 3)];
  if (swap.tier == "compressed") swap.codec = codecs[Between(dice, 0, 2)];
  swap.threads = static_cast<int>(Between(dice, 1, 2));
  return swap;
}

// Swaps of a step, and the other users of its device.
class Swaps {
 public:
  explicit Swaps(Rig* rig) : rig_(rig) {}

  void Swap(Dice* dice) { Live(AnySwap(dice), Between(dice, 4, 400) * kKiB, dice); }
  void Large(Dice* dice) {
    std::unique_lock<std::mutex> one(large_mu_, std::try_to_lock);
    if (!one.owns_lock()) return;
    races::Swap swap;
    swap.tier = Between(dice, 0, 1) == 0 ? "host" : "compressed";
    if (swap.tier == "compressed") swap.codec = "zvc";
    tfswap::BudgetAllocator* budget = rig_->allocator()->budget();
    budget->SetBudget(kBudgetBytes + kLargeBytes);
    Live(swap, kLargeBytes, dice);
    budget->SetBudget(kBudgetBytes);
    budget->MakeRoom();
  }
  // A tensor that one thread swaps out, and another one swaps in or drops.
  void HandOver(Dice* dice) {
    races::Swap swap = AnySwap(dice);
    swap.returns = 1;
    const uint32_t owner = NextOwner();
    Tensor handle = rig_->SwapOut(swap, Between(dice, 4, 200) * kKiB, owner);
    std::pair<Tensor, uint32_t> other;
    {
      std::lock_guard<std::mutex> lock(mu_);
      handed_over_.emplace_back(std::move(handle), owner);
      const auto any =
          handed_over_.begin() + Between(dice, 0, static_cast<int64_t>(handed_over_.size()) - 1);
      other = std::move(*any);
      handed_over_.erase(any);
      if (handed_over_.size() < 4 && Between(dice, 0, 1) == 0) {
        handed_over_.push_back(std::move(other));
        other = {};
      }
    }
    if (other.first.NumElements() == 0 || Between(dice, 0, 3) == 0) return;
    Back(other.first, other.second, dice);
  }
  void Cancel(Dice* dice) {
    races::Swap swap = AnySwap(dice);
    swap.returns = 1;
    const uint32_t owner = NextOwner();
    Tensor handle = rig_->SwapOut(swap, Between(dice, 4, 400) * kKiB, owner);
    if (handle.NumElements() == 0) return;
    CancellationManager cancellation;
    Event started;
    std::thread canceller([&] {
      started.Wait();
      cancellation.StartCancel();
    });
    started.Notify();
    Back(handle, owner, dice, &cancellation);
    canceller.join();
  }
  void Compute(Dice* dice) {
    const int64_t bytes = Between(dice, 1, 800) * kKiB;
    const uint32_t owner = NextOwner();
    rig_->Compute(bytes, [&](void* block) {
      races::Fill(block, bytes, owner);
      Require(races::Holds(block, bytes, owner), "a kernel's memory is somebody else's too");
    });
  }
  void End() { handed_over_.clear(); }

 private:
  void Back(const Tensor& handle, uint32_t owner, Dice* dice,
            CancellationManager* cancellation = nullptr) {
    const bool lazy = Between(dice, 0, 1) == 0;
    const std::string wrong = rig_->SwapIn(handle, owner, nullptr, cancellation, 0, lazy);
    Require(wrong.empty(), wrong);
  }
  void Live(const races::Swap& swap, int64_t bytes, Dice* dice) {
    const uint32_t owner = NextOwner();
    const Tensor handle = rig_->SwapOut(swap, bytes, owner);
    if (handle.NumElements() == 0) return;
    if (Between(dice, 0, 1) == 0) Compute(dice);
    for (int i = 0; i < swap.returns; ++i) {
      if (Between(dice, 0, 5) > 0) Back(handle, owner, dice);
    }
  }

  Rig* const rig_;
  std::mutex mu_, large_mu_;
  std::vector<std::pair<Tensor, uint32_t>> handed_over_;
};

// Concurrent calls from Python.
class Controls {
 public:
  explicit Controls(Rig* rig) : rig_(rig) {}

  void Budget(Dice* dice) {
    tfswap::BudgetAllocator* budget = rig_->allocator()->budget();
    budget->SetBudget(kBudgetBytes + Between(dice, -2, 4) * kMiB);
    budget->MakeRoom();
  }
  void Limits(Dice* dice) {
    rig_->engine()->host_memory()->SetLimit(Between(dice, 0, 4) * 2 * kMiB);
    rig_->engine()->EmulateLink(Between(dice, 0, 3) == 0 ? 1e10 : 0, 1000);
    rig_->engine()->SampleCodecs(Between(dice, 0, 1) == 0
                                     ? std::vector<tfswap::Codec>()
                                     : std::vector<tfswap::Codec>{tfswap::Codec::kZvc});
  }
  void Consider(Dice* dice) {
    tfswap::CopyEngine* engine = rig_->engine();
    tfswap::DeviceAllocator* allocator = rig_->allocator();
    engine->Stats();
    engine->FarUse();
    engine->CodecSamples();
    engine->WhyBlocked(kMiB);
    allocator->budget()->Stats();
    allocator->slab()->Stats();
    allocator->recording()->Holders();
    if (Between(dice, 0, 3) > 0) return;
    engine->ClearStats();
    engine->host_memory()->ResetPeak();
    allocator->ClearStats();
    allocator->RestartWindow();
    allocator->slab()->ResetCounts();
  }
  void Record(Dice*) {
    std::unique_lock<std::mutex> one(record_mu_, std::try_to_lock);
    if (!one.owns_lock()) return;
    rig_->allocator()->StartRecording(/*host_times=*/true);
    std::this_thread::sleep_for(std::chrono::milliseconds(3));
    rig_->allocator()->recording()->StopRecording();
  }
  void Slab(Dice* dice) {
    std::unique_lock<std::mutex> one(slab_mu_, std::try_to_lock);
    if (!one.owns_lock()) return;
    Require(rig_->allocator()->slab()->SetAlways(Between(dice, 0, 3) > 0).ok(), "no slab");
  }

 private:
  Rig* const rig_;
  std::mutex record_mu_, slab_mu_;
};

// Some variables, of which one is destroyed and recreated from time to time.
class Variables {
 public:
  explicit Variables(Rig* rig) : rig_(rig) {
    Dice dice(7);
    for (int i = 0; i < kVariables; ++i) variables_.push_back(Make(&dice));
  }

  void Read(Dice* dice) {
    const std::string wrong = Any(dice).Read();
    Require(wrong.empty(), wrong);
  }
  void Write(Dice* dice) { Any(dice).Assign(); }
  void SwapOut(Dice* dice) { Any(dice).SwapOut(); }
  void Return(Dice* dice) { Any(dice).Return(); }
  void Renew(Dice* dice) {
    races::Variable made = Make(dice);
    std::lock_guard<std::mutex> lock(mu_);
    std::swap(made, variables_[Between(dice, 0, kVariables - 1)]);
  }
  void Switch(Dice* dice) {
    std::lock_guard<std::mutex> one(switch_mu_);
    // Values without room stay in far memory, and their readers fetch them.
    rig_->engine()->variables()->SetOn(Between(dice, 0, 3) > 0);
  }
  void End() {
    variables_.clear();
    rig_->engine()->variables()->SetOn(false);
  }

 private:
  static constexpr int kVariables = 3;

  races::Variable Make(Dice* dice) {
    races::Variable made(rig_, Between(dice, 64, 600) * kKiB, NextOwner());
    while (!made.Assign()) {
    }
    return made;
  }
  races::Variable Any(Dice* dice) {
    std::lock_guard<std::mutex> lock(mu_);
    return variables_[Between(dice, 0, kVariables - 1)];
  }

  Rig* const rig_;
  std::mutex mu_, switch_mu_;
  std::vector<races::Variable> variables_;
};

}  // namespace

int main(int argc, char** argv) {
  auto arguments = races::ArgumentsOf(argc, argv);
  auto* rig = new Rig();
  const std::string problem = tfswap::FarFile::Get()->Open(arguments["folder"], int64_t{256} << 20);
  if (!problem.empty()) std::fprintf(stderr, "without a file: %s\n", problem.c_str());
  rig->engine()->SetVerify(true);
  rig->allocator()->budget()->SetBudget(kBudgetBytes);
  Swaps swaps(rig);
  Controls controls(rig);
  auto variables = std::make_unique<Variables>(rig);
  races::Hammer({{"swaps", 100, [&](Dice* dice) { swaps.Swap(dice); }},
                 {"large swaps", 2, [&](Dice* dice) { swaps.Large(dice); }},
                 {"handed over", 100, [&](Dice* dice) { swaps.HandOver(dice); }},
                 {"cancelled", 20, [&](Dice* dice) { swaps.Cancel(dice); }},
                 {"kernels", 100, [&](Dice* dice) { swaps.Compute(dice); }},
                 {"variables read", 60, [&](Dice* dice) { variables->Read(dice); }},
                 {"variables written", 20, [&](Dice* dice) { variables->Write(dice); }},
                 {"variables out", 60, [&](Dice* dice) { variables->SwapOut(dice); }},
                 {"variables in", 40, [&](Dice* dice) { variables->Return(dice); }},
                 {"variables on", 1, [&](Dice* dice) { variables->Switch(dice); }},
                 {"variables new", 3, [&](Dice* dice) { variables->Renew(dice); }},
                 {"budgets", 2, [&](Dice* dice) { controls.Budget(dice); }},
                 {"limits", 2, [&](Dice* dice) { controls.Limits(dice); }},
                 {"looks", 10, [&](Dice* dice) { controls.Consider(dice); }},
                 {"recordings", 1, [&](Dice* dice) { controls.Record(dice); }},
                 {"slabs", 1, [&](Dice* dice) { controls.Slab(dice); }}},
                /*threads=*/5, std::atof(arguments["seconds"].c_str()));
  swaps.End();
  variables->End();
  variables.reset();
  // Its threads may still be about to finish.
  std::string left;
  for (int i = 0; i < 500; ++i) {
    left = rig->Leftovers();
    if (left.empty()) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  Require(left.empty(), left);
  tfswap::FarFile::Get()->Close();
  // TensorFlow's own threads never end.
  std::fflush(stdout);
  std::_Exit(0);
}
