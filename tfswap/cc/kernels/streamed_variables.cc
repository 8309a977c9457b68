#include "kernels/streamed_variables.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <tuple>
#include <unordered_set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "allocator/kernel_scope.h"
#include "allocator/variable_inputs.h"
#include "core/memory/copy.h"
#include "core/util/readable_bytes.h"
#include "kernels/copy_engine.h"
#include "tensorflow/core/common_runtime/dma_helper.h"
#include "tsl/profiler/lib/scoped_memory_debug_annotation.h"

namespace tfswap {

using ::tensorflow::OpKernel;
using ::tensorflow::OpKernelContext;
using ::tensorflow::Tensor;
using ::tensorflow::Var;

namespace {

// Name of the memory of a value that came back, in recordings and messages (plan/node_names.py).
constexpr char kRestoredVariable[] = "tfswap/variable";

// Prefetch variables of the next uses (most are small and stay), at least two and up to this part
// of the budget: more would take the memory of the ops in between.
constexpr int kPrefetchCount = 2;
constexpr int kPrefetchUses = 16;
constexpr int64_t kPrefetchPart = 4;

// The memory of a value that is about to be replaced: none.
class NoMemory : public tensorflow::TensorBuffer {
 public:
  NoMemory() : TensorBuffer(nullptr) {}
  size_t size() const override { return 0; }
  TensorBuffer* root_buffer() override { return this; }
  void FillAllocationDescription(tensorflow::AllocationDescription*) const override {}
};

// Return whether the op does not write the value.
bool OnlyReads(absl::string_view op) {
  static const auto* ops = new std::unordered_set<absl::string_view>{
      "ReadVariableOp", "ResourceGather", "ResourceGatherNd", "VariableShape", "_ReadVariablesOp"};
  return ops->count(op) > 0;
}

// Return the bytes of the value; 0 while it is written or moved.
int64_t BytesOf(Var* var) {
  if (!var->mu()->try_lock_shared()) return 0;
  const auto bytes = static_cast<int64_t>(var->tensor()->TotalBytes());
  var->mu()->unlock_shared();
  return bytes;
}

}  // namespace

StreamedVariables::StreamedVariables(DeviceAllocator* allocator, CopyEngine* engine)
    : allocator_(allocator), engine_(engine) {}

thread_local bool StreamedVariables::defers_placing = false;

std::string StreamedVariables::SetOn(bool on) {
  planned_.store(false);
  // Install the guard first, so that no value is evicted unseen by kernels.
  if (on) allocator_->guard()->Set(this);
  on_.store(on);
  if (on) return "";
  std::vector<VarPtr> away;  // also those in transit; nothing is evicted any more
  {
    std::lock_guard<std::mutex> lock(mu_);
    for (auto& [var, entry] : entries_) {
      if (entry.state == State::kOnDevice) continue;
      if (VarPtr held = entry.var.GetNewRef()) away.push_back(std::move(held));
    }
  }
  std::string problem;
  for (const VarPtr& var : away) {
    std::unique_lock<std::mutex> lock(mu_);
    const absl::Status status = EnsureOnDevice(var.get(), Role::kKernel, Effort::kWait, &lock);
    if (!status.ok()) problem = std::string(status.message());
  }
  // If a value could not be restored, the guard must still fetch it before a kernel.
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
      // An entry in use stays, so that it is not evicted if swapping is enabled again.
      if (entry->readers == 0) forgotten.push_back(entries_.extract(at));
    }
    order_.Clear();
  }
  return problem;
}

absl::Status StreamedVariables::Before(OpKernelContext* context, Held* held) {
  const auto op = context->op_kernel().type_string_view();
  const bool only_reads = OnlyReads(op), needs_value = op != "VarIsInitializedOp";
  bool uses = false;
  for (auto& [input, var] : VariableInputs(context)) {
    Var* const raw = var.get();
    std::unique_lock<std::mutex> lock(mu_);
    Entry* entry = EntryForLocked(raw);
    if (!needs_value) {
      if (entry->last_use == 0) entry->last_use = ++uses_;
      continue;
    }
    ++entry->readers;
    held->push_back(std::move(var));
    const bool assigns = op == "AssignVariableOp";
    if (assigns) entry->is_placed = false;
    const bool skips_fetch = assigns && BeginAssign(raw, context->input(1), &lock);
    if (!skips_fetch) {
      absl::Status status = EnsureOnDevice(raw, Role::kKernel, Effort::kWait, &lock);
      if (!status.ok()) return status;
      if (!assigns && !entry->is_placed) Place(raw, entry, /*needed=*/true, &lock);
    }
    entry->last_use = ++uses_;
    order_.Add(raw);
    uses = true;
    if (!only_reads && !skips_fetch) {
      engine_->DropFarCopy(&entry->far_copy);
      entry->checkpoint.reset();
    }
    if (entry->filled != nullptr) {
      engine_->BeforeVariableUse(std::exchange(entry->filled, nullptr));
    }
  }
  if (uses && !engine_->MovesAtOnce(FarTier::kHost)) SchedulePrefetch();
  return absl::OkStatus();
}

void StreamedVariables::SchedulePrefetch() {
  if (!on() || planned_.load() || prefetching_.exchange(true)) return;
  prefetch_worker_.Schedule(0, [this] {
    Prefetch(/*at_once=*/false);
    prefetching_.store(false);
  });
}

bool StreamedVariables::BeginAssign(Var* var, const Tensor& value,
                                    std::unique_lock<std::mutex>* lock) {
  Entry* const entry = WaitForCopyLocked(var, lock);
  // What the kernel checks before it assigns.
  if (entry == nullptr || entry->state != State::kInFarMemory || value.shape() != entry->shape ||
      value.dtype() != var->tensor()->dtype() || var->copy_on_read_mode.load()) {
    return false;
  }
  entry->state = State::kAssigning;
  lock->unlock();
  {
    const tensorflow::core::RefCountPtr<NoMemory> memory(new NoMemory());
    tensorflow::mutex_lock writing(*var->mu());
    *var->tensor() = Tensor(value.dtype(), value.shape(), memory.get());
  }
  lock->lock();
  return true;
}

void StreamedVariables::EndAssign(Var* var, Entry* entry, std::unique_lock<std::mutex>* lock) {
  lock->unlock();
  bool assigned = false;
  {
    tensorflow::mutex_lock writing(*var->mu());
    assigned = var->tensor()->IsInitialized();
    if (!assigned) *var->tensor() = Tensor(var->tensor()->dtype());
  }
  lock->lock();
  entry->state = assigned ? State::kOnDevice : State::kInFarMemory;
  if (assigned) {
    engine_->DropFarCopy(&entry->far_copy);
    entry->checkpoint.reset();
  }
  moved_.notify_all();
}

void StreamedVariables::After(const Held& held) {
  {
    std::unique_lock<std::mutex> lock(mu_);
    for (const VarPtr& var : held) {
      const auto known = entries_.find(var.get());
      if (known == entries_.end()) continue;
      if (known->second.state == State::kAssigning) EndAssign(var.get(), &known->second, &lock);
      if (!known->second.is_placed && !defers_placing) {
        Place(var.get(), &known->second, /*needed=*/false, &lock);
      }
      if (known->second.readers > 0) --known->second.readers;
    }
  }
  // The kernel has allocated its memory by now.
  if (!held.empty() && on() && !planned_.load() && engine_->MovesAtOnce(FarTier::kHost)) {
    Prefetch(/*at_once=*/true);
  }
}

int64_t StreamedVariables::BytesAway() {
  std::lock_guard<std::mutex> lock(mu_);
  int64_t bytes = 0;
  for (const auto& [var, entry] : entries_) {
    if (entry.state != State::kOnDevice) bytes += entry.bytes;
  }
  return bytes;
}

StreamedVariables::Entry* StreamedVariables::EntryForLocked(Var* var) {
  const auto [known, is_new] = entries_.try_emplace(var);
  if (is_new) {
    known->second.var =
        tensorflow::core::WeakPtr<Var>(var, /*notify_fn=*/[this, var] { RemoveEntry(var); });
  }
  return &known->second;
}

void StreamedVariables::RemoveEntry(Var* var) {
  std::unordered_map<Var*, Entry>::node_type gone;  // outlives the lock
  std::lock_guard<std::mutex> lock(mu_);
  gone = entries_.extract(var);
  if (gone.empty()) return;
  engine_->DropFarCopy(&gone.mapped().far_copy);
  order_.Remove(var);
}

void StreamedVariables::Place(Var* var, Entry* entry, bool needed,
                              std::unique_lock<std::mutex>* lock) {
  if (entry->state != State::kOnDevice) return;
  entry->is_placed = true;
  entry->state = State::kFetching;
  lock->unlock();
  Tensor value;
  {
    tensorflow::tf_shared_lock reading(*var->mu());
    value = *var->tensor();
  }
  const bool is_elsewhere = allocator_->OnHost() && value.IsInitialized() &&
                            static_cast<int64_t>(value.TotalBytes()) >= kMinBytes &&
                            tensorflow::DataTypeCanUseMemcpy(value.dtype()) && !IsOnDevice(value);
  bool is_away = false;
  if (is_elsewhere) {
    const auto placed_with = [&](Role role, Effort effort) {
      return Allocate(value.dtype(), value.shape(), role, effort);
    };
    Tensor placed = needed ? placed_with(Role::kKernel, Effort::kWait)
                           : placed_with(Role::kSwapIn, Effort::kTakeIdle);
    if (!placed.IsInitialized() && !needed) {
      const auto copied = CopyOut(value, PlacementRequest(), entry);
      is_away = copied.ok() && *copied;
      if (!is_away) placed = placed_with(Role::kKernel, Effort::kWait);
    }
    if (placed.IsInitialized()) {
      CopyPastCache(placed.data(), value.data(), static_cast<int64_t>(value.TotalBytes()));
    }
    if (placed.IsInitialized() || is_away) {
      tensorflow::mutex_lock writing(*var->mu());
      *var->tensor() = is_away ? Tensor(value.dtype()) : std::move(placed);
    }
  }
  value = Tensor();
  lock->lock();
  entry->state = is_away ? State::kInFarMemory : State::kOnDevice;
  moved_.notify_all();
}

StreamedVariables::Entry* StreamedVariables::WaitForCopyLocked(Var* var,
                                                               std::unique_lock<std::mutex>* lock) {
  Entry* entry = nullptr;
  moved_.wait(*lock, [&] {
    const auto known = entries_.find(var);  // may have been removed meanwhile, while on the device
    entry = known == entries_.end() ? nullptr : &known->second;
    return entry == nullptr || entry->state == State::kOnDevice ||
           entry->state == State::kInFarMemory;
  });
  return entry;
}

absl::Status StreamedVariables::EnsureOnDevice(Var* var, Role role, Effort effort,
                                               std::unique_lock<std::mutex>* lock) {
  Entry* const entry = WaitForCopyLocked(var, lock);
  if (entry == nullptr || entry->state == State::kOnDevice) return absl::OkStatus();
  entry->state = State::kFetching;
  lock->unlock();
  const absl::Status status = Fetch(var, entry, role, effort);
  lock->lock();
  entry->state = status.ok() ? State::kOnDevice : State::kInFarMemory;
  moved_.notify_all();
  return status;
}

Tensor StreamedVariables::Allocate(tensorflow::DataType dtype, const tensorflow::TensorShape& shape,
                                   Role role, Effort effort) {
  KernelScope scope(role, nullptr);
  scope.effort = effort;
  tsl::profiler::ScopedMemoryDebugAnnotation annotation(kRestoredVariable);
  return Tensor(allocator_, dtype, shape);
}

absl::Status StreamedVariables::Fetch(Var* var, Entry* entry, Role role, Effort effort) {
  const Tensor value = Allocate(var->tensor()->dtype(), entry->shape, role, effort);
  if (value.IsInitialized()) return Fill(var, entry, value);
  const std::string why = allocator_->budget()->TakeUnreportedShortage();
  return absl::ResourceExhaustedError(
      absl::StrCat("tfswap: not enough memory to restore a variable of ",
                   ReadableBytes(entry->bytes), ". ", why));
}

absl::Status StreamedVariables::Fill(Var* var, Entry* entry, const Tensor& value) {
  const absl::Status status =
      engine_->CopyVariableIn(entry->far_copy, entry->request, value.data());
  if (!status.ok()) return status;
  entry->filled = value.data();
  tensorflow::mutex_lock writing(*var->mu());
  *var->tensor() = value;
  return absl::OkStatus();
}

int64_t StreamedVariables::Reclaim(int64_t bytes) { return on() ? Evict(bytes, 0) : 0; }

int64_t StreamedVariables::Evict(int64_t bytes, int64_t distance) {
  struct Candidate {
    int64_t distance, last_use;
    VarPtr var;
  };
  std::vector<Candidate> candidates;  // outlives the lock: last references may be in it
  int64_t freed = 0;
  std::unique_lock<std::mutex> lock(mu_);
  const auto distances = order_.Distances();
  for (auto& [var, entry] : entries_) {
    if (entry.state != State::kOnDevice || entry.readers > 0 || entry.last_use == 0) continue;
    const auto known = distances.find(var);
    const int64_t next_use =
        known == distances.end() ? std::numeric_limits<int64_t>::max() : known->second;
    if (next_use <= distance) continue;
    if (VarPtr held = entry.var.GetNewRef()) {
      candidates.push_back({next_use, entry.last_use, std::move(held)});
    }
  }
  std::sort(candidates.begin(), candidates.end(), [](const Candidate& a, const Candidate& b) {
    return std::tie(a.distance, a.last_use) > std::tie(b.distance, b.last_use);
  });
  for (const Candidate& candidate : candidates) {
    if (freed >= bytes) break;
    // A failed copy leads to an out-of-memory error elsewhere.
    const auto evicted = TryEvict(candidate.var.get(), PlacementRequest(), &lock);
    if (!evicted.ok() || *evicted < 0) break;
    freed += *evicted;
  }
  return freed;
}

bool StreamedVariables::IsOnDevice(const Tensor& value) const {
  auto* memory = const_cast<tensorflow::TensorBuffer*>(tensorflow::DMAHelper::buffer(&value));
  return allocator_->recording()->Lists(memory->root_buffer()->data());
}

// Make a far copy of the value, unless there is one, without the lock. Return whether there was
// space.
absl::StatusOr<bool> StreamedVariables::CopyOut(const Tensor& value,
                                                const PlacementRequest& request, Entry* entry) {
  entry->shape = value.shape();
  entry->bytes = static_cast<int64_t>(value.TotalBytes());
  const bool is_in_checkpoint = entry->far_copy.extent.checkpoint != nullptr;
  if (entry->far_copy.held() && !is_in_checkpoint) return true;
  engine_->DropFarCopy(&entry->far_copy);  // there may be faster far memory
  entry->request = request;
  entry->request.checkpoint = entry->checkpoint;
  entry->request.codec.element_bytes = tensorflow::DataTypeSize(value.dtype());
  return engine_->CopyVariableOut(value.data(), entry->bytes, entry->request, &entry->far_copy);
}

absl::StatusOr<int64_t> StreamedVariables::TryEvict(Var* var, const PlacementRequest& request,
                                                    std::unique_lock<std::mutex>* lock) {
  if (!on()) return 0;  // otherwise nothing would restore it
  Entry* const entry = EntryForLocked(var);
  if (entry->state != State::kOnDevice || entry->readers > 0 || !var->mu()->try_lock()) return 0;
  Tensor* value = var->tensor();
  if (!var->is_initialized || value->TotalBytes() < kMinBytes || !value->RefCountIsOne() ||
      !tensorflow::DataTypeCanUseMemcpy(value->dtype()) || !IsOnDevice(*value)) {
    var->mu()->unlock();
    return 0;
  }
  entry->state = State::kEvicting;
  lock->unlock();
  const absl::StatusOr<bool> copied = CopyOut(*value, request, entry);
  const bool leaves = copied.ok() && *copied;
  if (leaves) Tensor gone = std::exchange(*value, Tensor(value->dtype()));
  var->mu()->unlock();
  lock->lock();
  entry->state = leaves ? State::kInFarMemory : State::kOnDevice;
  if (leaves) entry->filled = nullptr;
  moved_.notify_all();
  if (!copied.ok()) return copied.status();
  return leaves ? entry->bytes : -1;
}

void StreamedVariables::SetCheckpoint(VarPtr var,
                                      std::shared_ptr<const CheckpointValue> checkpoint) {
  if (!on()) return;
  std::unique_lock<std::mutex> lock(mu_);
  EntryForLocked(var.get())->last_use = ++uses_;
  Entry* const entry = WaitForCopyLocked(var.get(), &lock);
  if (entry == nullptr) return;
  const int64_t bytes = BytesOf(var.get());
  if (checkpoint != nullptr && bytes == checkpoint->bytes()) {
    entry->checkpoint = std::move(checkpoint);
  }
  if (!entry->is_placed) Place(var.get(), entry, /*needed=*/false, &lock);
}

bool StreamedVariables::ReplaceByCheckpoint(VarPtr var,
                                            std::shared_ptr<const CheckpointValue> checkpoint) {
  if (!on()) return false;
  std::unique_lock<std::mutex> lock(mu_);
  EntryForLocked(var.get())->last_use = ++uses_;
  Entry* const entry = WaitForCopyLocked(var.get(), &lock);
  if (entry == nullptr || entry->readers > 0 || !var->mu()->try_lock()) return false;
  Tensor* value = var->tensor();
  const bool is_away = entry->state == State::kInFarMemory;
  const int64_t bytes = is_away ? entry->bytes : static_cast<int64_t>(value->TotalBytes());
  const bool replaces = var->is_initialized && bytes == checkpoint->bytes() && bytes >= kMinBytes &&
                        tensorflow::DataTypeCanUseMemcpy(value->dtype());
  Tensor replaced;  // freed after the locks
  if (replaces) {
    engine_->DropFarCopy(&entry->far_copy);
    entry->checkpoint = std::move(checkpoint);
    if (!is_away) entry->shape = value->shape();
    entry->bytes = bytes;
    entry->request = PlacementRequest();
    entry->far_copy = InCheckpoint(entry->checkpoint);
    entry->filled = nullptr;
    entry->is_placed = true;
    entry->state = State::kInFarMemory;
    replaced = std::exchange(*value, Tensor(value->dtype()));
  }
  var->mu()->unlock();
  lock.unlock();
  return replaces;
}

tensorflow::TensorShape StreamedVariables::ShapeOf(Var* var) {
  {
    std::unique_lock<std::mutex> lock(mu_);
    const Entry* entry = WaitForCopyLocked(var, &lock);
    if (entry != nullptr && entry->state == State::kInFarMemory) return entry->shape;
  }
  tensorflow::tf_shared_lock reading(*var->mu());
  return var->tensor()->shape();
}

absl::Status StreamedVariables::GatherRows(VarPtr var, const tensorflow::TensorShape& shape,
                                           const std::vector<int64_t>& rows, char* output) {
  const int64_t row_bytes =
      shape.num_elements() / shape.dim_size(0) * tensorflow::DataTypeSize(var->tensor()->dtype());
  std::unique_lock<std::mutex> lock(mu_);
  if (on()) EntryForLocked(var.get())->last_use = ++uses_;
  Entry* entry = WaitForCopyLocked(var.get(), &lock);
  if (entry != nullptr && entry->state == State::kInFarMemory && entry->shape == shape &&
      entry->far_copy.tier != FarTier::kCompressed) {
    entry->state = State::kFetching;
    lock.unlock();
    absl::Status status = engine_->CopyVariableRowsIn(entry->far_copy, row_bytes, rows, output);
    lock.lock();
    entry->state = State::kInFarMemory;
    moved_.notify_all();
    return status;
  }
  absl::Status status = EnsureOnDevice(var.get(), Role::kKernel, Effort::kWait, &lock);
  if (!status.ok()) return status;
  Tensor value;  // a second reference, so that the value stays
  {
    tensorflow::tf_shared_lock reading(*var->mu());
    value = *var->tensor();
  }
  lock.unlock();
  if (value.shape() != shape) {
    return absl::FailedPreconditionError("tfswap: a variable was assigned while it was read");
  }
  const auto* table = static_cast<const char*>(value.data());
  for (const int64_t row : rows) {
    std::memcpy(output, table + row * row_bytes, static_cast<size_t>(row_bytes));
    output += row_bytes;
  }
  return absl::OkStatus();
}

void StreamedVariables::SwapOut(VarPtr var, const PlacementRequest& request, bool detached,
                                Done done) {
  planned_.store(true);
  const int64_t bytes = on() ? BytesOf(var.get()) : 0;
  if (bytes < kMinBytes) return done(absl::OkStatus());
  const bool at_once = detached && !engine_->MovesAtOnce(request.tier);
  const auto give_up = [this, request](Var* leaving) {
    const VarPtr held(leaving);
    std::unique_lock<std::mutex> lock(mu_);
    return TryEvict(leaving, request, &lock).status();
  };
  // std::function requires copyable captures.
  Done at_end = at_once ? nullptr : done;
  engine_->ScheduleVariableSwapOut(bytes, request.tier,
                                   [give_up, at_end = std::move(at_end), raw = var.release()] {
                                     const absl::Status status = give_up(raw);
                                     if (at_end) at_end(status);
                                   });
  if (at_once) done(absl::OkStatus());
}

void StreamedVariables::SwapIn(VarPtr var, std::function<void()> done) {
  {
    std::unique_lock<std::mutex> lock(mu_);
    const auto known = entries_.find(var.get());
    const bool on_device = known == entries_.end() || known->second.state == State::kOnDevice;
    // In host order. Without memory now, the value is fetched when a kernel needs it.
    const bool at_once = !on_device && known->second.state == State::kInFarMemory &&
                         engine_->MovesAtOnce(known->second.far_copy.tier);
    if (at_once) EnsureOnDevice(var.get(), Role::kSwapIn, Effort::kEvict, &lock).IgnoreError();
    if (on_device || at_once) {
      lock.unlock();
      var.reset();
    }
  }
  if (var == nullptr) return done();
  engine_->ScheduleVariableSwapIn([this, done = std::move(done), raw = var.release()] {
    const VarPtr held(raw);
    {
      std::unique_lock<std::mutex> lock(mu_);
      // A later use tries again and reports the error.
      if (entries_.count(raw) > 0)
        EnsureOnDevice(raw, Role::kSwapIn, Effort::kWait, &lock).IgnoreError();
    }
    done();
  });
}

std::pair<StreamedVariables::VarPtr, int64_t> StreamedVariables::NextAwayLocked() const {
  const int64_t window_bytes = allocator_->budget()->Stats().budget_bytes / kPrefetchPart;
  int ahead = 0;
  int64_t ahead_bytes = 0;
  for (const auto& [key, distance] : order_.Next(kPrefetchUses)) {
    const auto known = entries_.find(static_cast<Var*>(const_cast<void*>(key)));
    const bool leaves = known != entries_.end() && known->second.bytes > 0;
    if (!leaves) continue;
    ahead_bytes += known->second.bytes;
    if (++ahead > kPrefetchCount && ahead_bytes > window_bytes) break;
    if (known->second.state == State::kInFarMemory) {
      return {known->second.var.GetNewRef(), distance};
    }
  }
  return {nullptr, 0};
}

void StreamedVariables::Prefetch(bool at_once) {
  std::vector<VarPtr> seen;  // outlives the lock: last references may be in it
  std::unique_lock<std::mutex> lock(mu_);
  while (on()) {
    auto [next, distance] = NextAwayLocked();
    if (next == nullptr) return;
    Var* const var = next.get();
    seen.push_back(std::move(next));
    Entry* entry = &entries_.at(var);
    if (at_once && !engine_->MovesAtOnce(entry->far_copy.tier)) {
      lock.unlock();
      return SchedulePrefetch();
    }
    entry->state = State::kFetching;
    const int64_t bytes = entry->bytes;
    lock.unlock();
    Tensor value = Allocate(var->tensor()->dtype(), entry->shape, Role::kSwapIn, Effort::kTakeFree);
    if (!value.IsInitialized() && Evict(bytes, distance) > 0) {
      value = Allocate(var->tensor()->dtype(), entry->shape, Role::kSwapIn, Effort::kTakeIdle);
    }
    const bool fetched = value.IsInitialized() && Fill(var, entry, value).ok();
    value = Tensor();
    lock.lock();
    entry->state = fetched ? State::kOnDevice : State::kInFarMemory;
    moved_.notify_all();
    if (!fetched) return;
  }
}

}  // namespace tfswap
