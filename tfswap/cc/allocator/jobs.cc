#include "allocator/jobs.h"

#include "allocator/kernel_scope.h"
#include "core/util/graph_mark.h"
#include "tensorflow/core/framework/node_def.pb.h"

namespace tfswap {

namespace {

thread_local int threads_job = 0;
thread_local int latest_job = 0;

}  // namespace

Jobs* Jobs::Get() {
  static auto* jobs = new Jobs();
  return jobs;
}

void Jobs::Begin(int job) {
  std::lock_guard<std::mutex> lock(mu_);
  if (slots_[SlotOf(job)].exchange(job) == 0) count_.fetch_add(1);
  changes_.fetch_add(1);
}

void Jobs::End(int job) {
  std::lock_guard<std::mutex> lock(mu_);
  if (!Has(job)) return;
  slots_[SlotOf(job)].store(0);
  count_.fetch_sub(1);
  changes_.fetch_add(1);
}

void Jobs::SetLabel(const std::string& label, int job) {
  std::lock_guard<std::mutex> lock(mu_);
  if (job == 0) {
    labels_.erase(label);
  } else {
    labels_[label] = job;
  }
  changes_.fetch_add(1);
}

int Jobs::Of(const tensorflow::OpKernel& kernel, int64_t step_id) {
  if (!any()) return 0;
  // Threads go from one job's ops to the other's and back.
  struct Known {
    int64_t step_id = 0;
    int64_t changes = -1;
    int job = 0;
  };
  thread_local std::array<Known, 4> known;
  const int64_t changes = changes_.load(std::memory_order_acquire);
  Known& mine = known[static_cast<uint64_t>(step_id) % known.size()];
  const bool in_step = step_id != 0;  // an op outside of functions has 0
  if (in_step && mine.step_id == step_id && mine.changes == changes) return latest_job = mine.job;
  const int labelled = OfLabel(kernel);
  const int job = in_step ? OfStep(step_id, labelled) : labelled;
  if (in_step && job != 0) mine = {step_id, changes, job};
  if (Has(job)) return latest_job = job;
  return Has(threads_job) ? threads_job : 0;
}

int Jobs::OfLabel(const tensorflow::OpKernel& kernel) {
  const auto& attributes = kernel.def().attr();
  const auto mark = attributes.find(kLabelAttribute);
  if (mark == attributes.end()) return 0;
  std::lock_guard<std::mutex> lock(mu_);
  const auto known = labels_.find(mark->second.s());
  return known == labels_.end() ? 0 : known->second;
}

int Jobs::OfStep(int64_t step_id, int labelled) {
  std::lock_guard<std::mutex> lock(mu_);
  for (const auto& [step, job] : steps_) {
    if (step == step_id) return job;
  }
  if (labelled != 0) steps_[next_step_++ % kSteps] = {step_id, labelled};
  return labelled;
}

int Jobs::Current() {
  const Jobs* jobs = Get();
  if (!jobs->any()) return 0;
  if (KernelScope::current != nullptr) return KernelScope::current->job;
  return jobs->Has(threads_job) ? threads_job : 0;
}

int Jobs::Latest() {
  const int job = Current();
  return job == 0 && KernelScope::current == nullptr && Get()->Has(latest_job) ? latest_job : job;
}

void Jobs::SetThreads(int job) { threads_job = job; }

}  // namespace tfswap
