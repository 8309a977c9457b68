#ifndef TFSWAP_TESTS_RACES_INTERLEAVING_CHOICES_H_
#define TFSWAP_TESTS_RACES_INTERLEAVING_CHOICES_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace interleaving {

// Chooses the next thread, at each point of a run where several could run; and from run to run,
// all choices. A preemption is when a thread that could continue does not, or when a deadline
// expires although threads could run.
class Choices {
 public:
  virtual ~Choices() = default;
  virtual void BeginRun() = 0;
  // Choose one of `threads`, at least two: the first one is the running thread if `can_go_on`;
  // after the first `enabled` there may be one that waits for a deadline.
  virtual int Next(const std::vector<int>& threads, bool can_go_on, size_t enabled) = 0;
};

// Every run with at most that many preemptions (Musuvathi and Qadeer, PLDI 2007: most bugs need
// few), depth first. A run that does not repeat (another address, another lock) is counted, and the
// search continues from there.
class AllChoices : public Choices {
 public:
  explicit AllChoices(int preemptions) : preemptions_(preemptions) {}

  void BeginRun() override;
  int Next(const std::vector<int>& threads, bool can_go_on, size_t enabled) override;
  // Return whether there is another run.
  bool Advance();
  int64_t diverged() const { return diverged_; }

 private:
  struct Choice {
    std::vector<int> threads;
    size_t chosen;
  };

  const int preemptions_;
  std::vector<Choice> path_;
  size_t at_ = 0;
  int used_ = 0;
  int64_t diverged_ = 0;
};

// Any number of preemptions, at random.
class RandomChoices : public Choices {
 public:
  explicit RandomChoices(uint64_t seed) : state_(seed * 2 + 1) {}

  void BeginRun() override;
  int Next(const std::vector<int>& threads, bool can_go_on, size_t enabled) override;

 private:
  uint64_t Dice();

  uint64_t state_;
  uint64_t patience_ = 2;  // one of that many points is a preemption; another number in each run
};

}  // namespace interleaving

#endif  // TFSWAP_TESTS_RACES_INTERLEAVING_CHOICES_H_
