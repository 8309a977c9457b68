#include "interleaving/choices.h"

#include <algorithm>

namespace interleaving {

void AllChoices::BeginRun() {
  at_ = 0;
  used_ = 0;
}

int AllChoices::Next(const std::vector<int>& threads, bool can_go_on, size_t enabled) {
  // Without another preemption, the running thread continues if it can, else any that can.
  std::vector<int> left = threads;
  if (used_ >= preemptions_) left.resize(can_go_on ? 1 : std::max<size_t>(enabled, 1));
  if (left.size() == 1) return left[0];
  if (at_ < path_.size() && path_[at_].threads != left) {
    ++diverged_;
    path_.resize(at_);
  }
  if (at_ == path_.size()) path_.push_back({left, 0});
  const size_t chosen = path_[at_++].chosen;
  if (chosen >= enabled || (can_go_on && chosen > 0)) ++used_;
  return left[chosen];
}

bool AllChoices::Advance() {
  while (!path_.empty()) {
    if (++path_.back().chosen < path_.back().threads.size()) return true;
    path_.pop_back();
  }
  return false;
}

void RandomChoices::BeginRun() { patience_ = 2 + Dice() % 30; }

int RandomChoices::Next(const std::vector<int>& threads, bool can_go_on, size_t enabled) {
  if (can_go_on && Dice() % patience_ != 0) return threads[0];
  // Deadlines rarely expire.
  const bool passes = enabled == 0 || Dice() % patience_ == 0;
  return threads[Dice() % (passes ? threads.size() : enabled)];
}

uint64_t RandomChoices::Dice() {  // xorshift64*
  state_ ^= state_ >> 12;
  state_ ^= state_ << 25;
  state_ ^= state_ >> 27;
  return state_ * 0x2545F4914F6CDD1DULL >> 33;
}

}  // namespace interleaving
