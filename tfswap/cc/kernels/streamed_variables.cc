#include "kernels/streamed_variables.h"

#include <algorithm>
#include <unordered_set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "allocator/kernel_scope.h"
#include "allocator/variable_inputs.h"
#include "core/util/readable_bytes.h"
#include "kernels/copy_engine.h"
#include "tensorflow/core/common_runtime/dma_helper.h"

namespace tfswap {

using ::tensorflow::OpKernel;
using ::tensorflow::OpKernelContext;
using ::tensorflow::Tensor;
using ::tensorflow::Var;

namespace {

// How many variables are fetched ahead of their kernels.
constexpr int kAhead = 2;

// Leave the value as it is.
bool OnlyReads(absl::string_view op) {
  static const auto* ops = new std::unordered_set<absl::string_view>{
      "ReadVariableOp",     "ResourceGather", "ResourceGatherNd",
      "VarIsInitializedOp", "VariableShape",  "_ReadVariablesOp"};
  return ops->count(op) > 0;
}

// Of its value; 0 while somebody writes or moves that.
int64_t BytesOf(Var* var) {
  if (!var->mu()->try_lock_shared()) return 0;
  const auto bytes = static_cast<int64_t>(var->tensor()->TotalBytes());
  var->mu()->unlock_shared();
  return bytes;
}

}  // namespace

StreamedVariables::StreamedVariables(DeviceAllocator* allocator, CopyEngine* engine)
    : allocator_(allocator), engine_(engine) {}

std::string StreamedVariables::SetOn(bool on) {
  planned_.store(false);
  // Nothing leaves before kernels are seen that may look at it.
  if (on) allocator_->guard()->Set(this);
  on_.store(on);
  if (on) return "";
  std::vector<VarPtr> away;  // and what is on its way: from here on nothing leaves any more
  {
    std::lock_guard<std::mutex> lock(mu_);
    for (auto& [var, entry] : entries_) {
      if (entry.state == State::kHome) continue;
      if (VarPtr held = entry.var.GetNewRef()) away.push_back(std::move(held));
    }
  }
  std::string problem;
  for (const VarPtr& var : away) {
    std::unique_lock<std::mutex> lock(mu_);
    const absl::Status status = BringHome(var.get(), AllocationWaitPolicy::kNeeded, &lock);
    if (!status.ok()) problem = std::string(status.message());
  }
  // Otherwise what is still away must still be fetched before it is looked at.
  if (problem.empty()) {
    allocator_->guard()->Set(nullptr);
    std::vector<std::unordered_map<Var*, Entry>::node_type> forgotten;  // outlives the lock
    std::lock_guard<std::mutex> lock(mu_);
    for (auto known = entries_.begin(); known != entries_.end();) {
      const auto at = known++;
      Entry* entry = &at->second;
      engine_->DropFarCopy(&entry->far_copy);
      if (entry->filled != nullptr) {
        engine_->BeforeVariableUse(std::exchange(entry->filled, nullptr));
      }
      entry->next = nullptr;
      // What a kernel still looks at must not leave as soon as values may again.
      if (entry->readers == 0) forgotten.push_back(entries_.extract(at));
    }
    last_used_ = nullptr;
  }
  return problem;
}

absl::Status StreamedVariables::Before(OpKernelContext* context, Held* held) {
  const bool only_reads = OnlyReads(context->op_kernel().type_string_view());
  Var* last = nullptr;
  for (auto& [input, var] : VariableInputs(context)) {
    Var* const raw = var.get();
    std::unique_lock<std::mutex> lock(mu_);
    Entry* entry = KnowLocked(raw);
    ++entry->readers;
    held->push_back(std::move(var));
    absl::Status status = BringHome(raw, AllocationWaitPolicy::kNeeded, &lock);
    if (!status.ok()) return status;
    entry->last_use = ++uses_;
    if (last_used_ != nullptr && last_used_ != raw) entries_[last_used_].next = raw;
    last_used_ = last = raw;
    if (!only_reads) engine_->DropFarCopy(&entry->far_copy);
    if (entry->filled != nullptr) {
      engine_->BeforeVariableUse(std::exchange(entry->filled, nullptr));
    }
  }
  if (last != nullptr && !engine_->MovesAtOnce(FarTier::kHost)) {
    HaveFetchedAheadOf(tsl::core::GetNewRef(last));
  }
  return absl::OkStatus();
}

void StreamedVariables::HaveFetchedAheadOf(VarPtr var) {
  if (!on() || planned_.load() || fetching_ahead_.exchange(true)) return;
  ahead_.Schedule(0, [this, raw = var.release()] {
    const VarPtr from(raw);
    FetchAheadOf(raw, /*at_once=*/false);
    fetching_ahead_.store(false);
  });
}

void StreamedVariables::After(const Held& held) {
  {
    std::lock_guard<std::mutex> lock(mu_);
    for (const VarPtr& var : held) {
      const auto known = entries_.find(var.get());
      if (known != entries_.end() && known->second.readers > 0) --known->second.readers;
    }
  }
  // The kernel has its memory by now.
  if (!held.empty() && on() && !planned_.load() && engine_->MovesAtOnce(FarTier::kHost)) {
    FetchAheadOf(held.back().get(), /*at_once=*/true);
  }
}

StreamedVariables::Entry* StreamedVariables::KnowLocked(Var* var) {
  const auto [known, is_new] = entries_.try_emplace(var);
  if (is_new) {
    known->second.var =
        tensorflow::core::WeakPtr<Var>(var, /*notify_fn=*/[this, var] { Forget(var); });
  }
  return &known->second;
}

void StreamedVariables::Forget(Var* var) {
  std::unordered_map<Var*, Entry>::node_type gone;  // outlives the lock
  std::lock_guard<std::mutex> lock(mu_);
  gone = entries_.extract(var);
  if (gone.empty()) return;
  engine_->DropFarCopy(&gone.mapped().far_copy);
  if (last_used_ == var) last_used_ = nullptr;
  for (auto& [other, entry] : entries_) {
    if (entry.next == var) entry.next = nullptr;
  }
}

absl::Status StreamedVariables::BringHome(Var* var, AllocationWaitPolicy patience,
                                          std::unique_lock<std::mutex>* lock) {
  Entry* entry = nullptr;
  moved_.wait(*lock, [&] {
    const auto known = entries_.find(var);  // may have been forgotten meanwhile, being home
    entry = known == entries_.end() ? nullptr : &known->second;
    return entry == nullptr || entry->state == State::kHome || entry->state == State::kAway;
  });
  if (entry == nullptr || entry->state == State::kHome) return absl::OkStatus();
  entry->state = State::kComing;
  lock->unlock();
  const absl::Status status = Fetch(var, entry, patience);
  lock->lock();
  entry->state = status.ok() ? State::kHome : State::kAway;
  moved_.notify_all();
  return status;
}

absl::Status StreamedVariables::Fetch(Var* var, Entry* entry, AllocationWaitPolicy patience) {
  Tensor value;
  {
    const bool needed = patience == AllocationWaitPolicy::kNeeded;
    KernelScope scope(needed ? KernelScope::Role::kKernel : KernelScope::Role::kSwapIn, nullptr);
    scope.now_or_never = patience == AllocationWaitPolicy::kNone;
    value = Tensor(allocator_, var->tensor()->dtype(), entry->shape);
  }
  if (!value.IsInitialized()) {
    const std::string why = allocator_->budget()->TakeUntold();
    return absl::ResourceExhaustedError(absl::StrCat(
        "tfswap: no room for a variable of ", ReadableBytes(entry->bytes), " that is away. ", why));
  }
  const absl::Status status = engine_->CopyVariableIn(entry->far_copy, entry->request, value.data());
  if (!status.ok()) return status;
  entry->filled = value.data();
  tensorflow::mutex_lock writing(*var->mu());
  *var->tensor() = value;
  return absl::OkStatus();
}

int64_t StreamedVariables::Reclaim(int64_t bytes) { return on() ? Evict(bytes, 0) : 0; }

int64_t StreamedVariables::Evict(int64_t bytes, int64_t used_after) {
  std::vector<std::pair<int64_t, VarPtr>>
      by_use;  // outlives the lock: last references may be in it
  int64_t freed = 0;
  std::unique_lock<std::mutex> lock(mu_);
  for (auto& [var, entry] : entries_) {
    if (entry.state != State::kHome || entry.readers > 0 || entry.last_use <= used_after) continue;
    if (VarPtr held = entry.var.GetNewRef()) by_use.emplace_back(entry.last_use, std::move(held));
  }
  std::sort(by_use.begin(), by_use.end(),
            [](const auto& a, const auto& b) { return a.first > b.first; });
  for (const auto& [use, var] : by_use) {
    if (freed >= bytes) break;
    // Of a copy that failed, the memory that is missing tells.
    const absl::StatusOr<int64_t> given_up = GiveUp(var.get(), PlacementRequest(), &lock);
    if (!given_up.ok() || *given_up < 0) break;
    freed += *given_up;
  }
  return freed;
}

bool StreamedVariables::IsHere(const Tensor& value) const {
  auto* memory = const_cast<tensorflow::TensorBuffer*>(tensorflow::DMAHelper::buffer(&value));
  return allocator_->recording()->Lists(memory->root_buffer()->data());
}

absl::StatusOr<int64_t> StreamedVariables::GiveUp(Var* var, const PlacementRequest& request,
                                                  std::unique_lock<std::mutex>* lock) {
  if (!on()) return 0;  // or it would be away when nobody looks for it any more
  Entry* const entry = KnowLocked(var);
  if (entry->state != State::kHome || entry->readers > 0 || !var->mu()->try_lock()) return 0;
  Tensor* value = var->tensor();
  if (!var->is_initialized || value->TotalBytes() < kLeastBytes || !value->RefCountIsOne() ||
      !tensorflow::DataTypeCanUseMemcpy(value->dtype()) || !IsHere(*value)) {
    var->mu()->unlock();
    return 0;
  }
  entry->state = State::kLeaving;
  entry->shape = value->shape();
  entry->bytes = static_cast<int64_t>(value->TotalBytes());
  lock->unlock();
  absl::StatusOr<bool> copied = true;
  if (!entry->far_copy.held()) {
    entry->request = request;
    entry->request.codec.element_bytes = tensorflow::DataTypeSize(value->dtype());
    copied = engine_->CopyVariableOut(value->data(), entry->bytes, entry->request, &entry->far_copy);
  }
  const bool leaves = copied.ok() && *copied;
  if (leaves) Tensor gone = std::exchange(*value, Tensor(value->dtype()));
  var->mu()->unlock();
  lock->lock();
  entry->state = leaves ? State::kAway : State::kHome;
  if (leaves) entry->filled = nullptr;
  moved_.notify_all();
  if (!copied.ok()) return copied.status();
  return leaves ? entry->bytes : -1;
}

void StreamedVariables::Leave(VarPtr var, const PlacementRequest& request, bool detached, Done done) {
  planned_.store(true);
  const int64_t bytes = on() ? BytesOf(var.get()) : 0;
  if (bytes < kLeastBytes) return done(absl::OkStatus());
  const bool at_once = detached && !engine_->MovesAtOnce(request.tier);
  const auto give_up = [this, request](Var* leaving) {
    const VarPtr held(leaving);
    std::unique_lock<std::mutex> lock(mu_);
    return GiveUp(leaving, request, &lock).status();
  };
  // std::function wants what can be copied.
  Done at_end = at_once ? nullptr : done;
  engine_->HaveVariableLeave(bytes, request.tier,
                             [give_up, at_end = std::move(at_end), raw = var.release()] {
                               const absl::Status status = give_up(raw);
                               if (at_end) at_end(status);
                             });
  if (at_once) done(absl::OkStatus());
}

void StreamedVariables::Return(VarPtr var, std::function<void()> done) {
  {
    std::unique_lock<std::mutex> lock(mu_);
    const auto known = entries_.find(var.get());
    const bool is_home = known == entries_.end() || known->second.state == State::kHome;
    // In the order of the host. What finds no memory then is fetched when a kernel needs it.
    const bool at_once = !is_home && known->second.state == State::kAway &&
                         engine_->MovesAtOnce(known->second.far_copy.tier);
    if (at_once) BringHome(var.get(), AllocationWaitPolicy::kNone, &lock).IgnoreError();
    if (is_home || at_once) {
      lock.unlock();
      var.reset();
    }
  }
  if (var == nullptr) return done();
  engine_->HaveVariableReturn([this, done = std::move(done), raw = var.release()] {
    const VarPtr held(raw);
    {
      std::unique_lock<std::mutex> lock(mu_);
      // Who looks at it tries again, and says what is wrong.
      if (entries_.count(raw) > 0)
        BringHome(raw, AllocationWaitPolicy::kPlanned, &lock).IgnoreError();
    }
    done();
  });
}

int64_t StreamedVariables::FreeBytes() const {
  const BudgetStats stats = allocator_->budget()->Stats();
  return stats.budget_bytes - stats.bytes_in_use;
}

void StreamedVariables::FetchAheadOf(Var* var, bool at_once) {
  std::vector<VarPtr> seen;  // outlives the lock
  std::unique_lock<std::mutex> lock(mu_);
  Var* at = var;
  for (int i = 0; i < kAhead && on(); ++i) {
    const auto known = entries_.find(at);
    if (known == entries_.end() || known->second.next == nullptr) return;
    at = known->second.next;
    Entry* entry = &entries_.at(at);
    if (entry->state != State::kAway) continue;
    VarPtr held = entry->var.GetNewRef();
    if (held == nullptr) return;
    seen.push_back(std::move(held));
    if (at_once && !engine_->MovesAtOnce(entry->far_copy.tier)) {
      lock.unlock();
      return HaveFetchedAheadOf(tsl::core::GetNewRef(var));
    }
    entry->state = State::kComing;
    const int64_t bytes = entry->bytes, used = entry->last_use;
    lock.unlock();
    int64_t missing = bytes - FreeBytes();
    if (missing > 0) Evict(missing, used);
    const bool fetched = bytes <= FreeBytes() && Fetch(at, entry, AllocationWaitPolicy::kNone).ok();
    lock.lock();
    entry->state = fetched ? State::kHome : State::kAway;
    moved_.notify_all();
    if (!fetched) return;
  }
}

}  // namespace tfswap
