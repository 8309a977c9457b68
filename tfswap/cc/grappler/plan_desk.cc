#include "grappler/plan_desk.h"

#include <chrono>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <utility>

namespace tfswap {

namespace {

struct Desks {
  std::mutex mu;
  std::condition_variable asked, answered;
  std::map<std::string, DeskTerms> open;
  int64_t last_number = 0;
  // By number, as long as somebody waits for their answers.
  std::map<int64_t, PlanQuestion> questions;
  std::map<int64_t, std::string> answers;
  std::deque<int64_t> not_taken_up;
};

// Never destroyed: threads may wait in it when the process ends.
Desks& All() {
  static auto* desks = new Desks();
  return *desks;
}

}  // namespace

void OpenDesk(const std::string& label, const DeskTerms& terms) {
  std::lock_guard<std::mutex> lock(All().mu);
  All().open[label] = terms;
}

void CloseDesk(const std::string& label) {
  std::lock_guard<std::mutex> lock(All().mu);
  All().open.erase(label);
}

bool DeskIsOpen(const std::string& label, DeskTerms* terms) {
  std::lock_guard<std::mutex> lock(All().mu);
  auto it = All().open.find(label);
  if (it == All().open.end()) return false;
  *terms = it->second;
  return true;
}

std::string AskDesk(PlanQuestion question, double patience_s) {
  Desks& desks = All();
  std::unique_lock<std::mutex> lock(desks.mu);
  const int64_t number = ++desks.last_number;
  desks.questions[number] = std::move(question);
  desks.not_taken_up.push_back(number);
  desks.asked.notify_one();
  desks.answered.wait_for(lock, std::chrono::duration<double>(patience_s),
                          [&] { return desks.answers.count(number) > 0; });
  std::string plan = std::move(desks.answers[number]);
  desks.answers.erase(number);
  desks.questions.erase(number);
  return plan;
}

int64_t NextQuestion(PlanQuestion* question) {
  Desks& desks = All();
  std::unique_lock<std::mutex> lock(desks.mu);
  while (true) {
    desks.asked.wait(lock, [&] { return !desks.not_taken_up.empty(); });
    const int64_t number = desks.not_taken_up.front();
    desks.not_taken_up.pop_front();
    auto it = desks.questions.find(number);
    if (it == desks.questions.end()) continue;  // nobody waits any more
    *question = it->second;
    return number;
  }
}

void AnswerQuestion(int64_t number, std::string plan) {
  Desks& desks = All();
  std::lock_guard<std::mutex> lock(desks.mu);
  if (desks.questions.count(number) == 0) return;
  desks.answers[number] = std::move(plan);
  desks.answered.notify_all();
}

}  // namespace tfswap
