#ifndef TFSWAP_CC_GRAPPLER_PLAN_DESK_H_
#define TFSWAP_CC_GRAPPLER_PLAN_DESK_H_

#include <cstdint>
#include <string>

#include "grappler/index/op_costs.h"

namespace tfswap {

// Who has plans of graphs that the pass meets for the first time: it asks, a thread of Python's
// answers, before the graph runs.
//
//    pass, in a thread of TensorFlow's            Python's thread
//    AskDesk() ------------ question ---------->  NextQuestion()
//      waits, so long at most                     remembers a plan, or makes one
//    a plan, or "" <------- answer ------------   AnswerQuestion()
//
// TensorFlow may optimise a graph while somebody holds Python's lock and waits for it: then there
// is no answer in time, and the graph goes by lazy swaps.

// A graph without a plan.
struct PlanQuestion {
  std::string label;  // of the training
  std::string fingerprint;
  std::string portable;
  std::string description;  // with the order edges of the pass
  std::string costs;        // of its ops, as of OpCosts(); "": they are not known
  int64_t examples = 0;     // that were taken for those of a batch of unknown size; 0: it is known
};

// What a training's desk can be told.
struct DeskTerms {
  DeviceSpeed speed;         // to foretell with; all 0: costs are not asked for
  int64_t examples = 0;      // of a batch whose size graphs leave open; 0: not known
  double patience_s = 10.0;  // of the pass
};

// Opens a training's desk, or changes its terms; closes it.
void OpenDesk(const std::string& label, const DeskTerms& terms);
void CloseDesk(const std::string& label);
// Whether it is open; then `terms` are its.
bool DeskIsOpen(const std::string& label, DeskTerms* terms);

// The plan, as JSON, of a graph of a training whose desk is open; "": there is none.
std::string AskDesk(PlanQuestion question, double patience_s);

// Waits for a question of any desk; answers its number, above 0. One thread calls this.
int64_t NextQuestion(PlanQuestion* question);
// Answers it; of no effect if nobody waits any more.
void AnswerQuestion(int64_t number, std::string plan);

}  // namespace tfswap

#endif  // TFSWAP_CC_GRAPPLER_PLAN_DESK_H_
