#include "allocator/shortage.h"

#include "core/util/readable_bytes.h"

namespace tfswap {

namespace {

constexpr char kItem[] = "\n  - ";

}  // namespace

// With active swaps, less than the bytes in use and this request could not have worked. Without
// swaps: the bytes that no swap can move.
int64_t Shortage::Smallest() const { return swapping ? in_use + bytes : staying + own; }

std::string Shortage::Text() const { return WhatHappened() + " What to do:" + WhatToDo(); }

std::string Shortage::WhatHappened() const {
  std::string text =
      (budget > 0 ? "tfswap: the memory budget of " + ReadableBytes(budget) + " is exceeded"
                  : std::string("tfswap: the device has no memory left")) +
      ": op '" + op + "' asks for " + ReadableBytes(bytes) + " while " + ReadableBytes(in_use) +
      " are in use" + (in_pieces ? " and what is free is in smaller pieces" : "") +
      ". Largest holders:";
  for (const Holder& holder : holders) {
    text += (&holder == holders.data() ? " " : ", ") + ReadableBytes(holder.bytes) + " " +
            (holder.op.empty() ? "(made outside of any op)"
                               : "'" + holder.op + "' (" + holder.kind + ")");
  }
  text += ". ";
  if (!swapping) {
    text += ReadableBytes(staying) + " stay (weights, optimiser state, batch), and this op needs " +
            ReadableBytes(own) + " at once.";
  } else if (why_blocked.empty()) {
    text += "Nothing of what is in use can be moved while this op runs.";
  } else {
    text += why_blocked;
  }
  return picture.empty() ? text : text + " " + picture;
}

std::string Shortage::WhatToDo() const {
  std::string text;
  if (!why_blocked.empty()) {
    text += std::string(kItem) +
            "More room in far memory, see above. Or recompute activations of " +
            ReadableNeed(missing_far_bytes) + " or more (tf.recompute_grad), which needs none.";
  }
  if (!swapping && Smallest() <= budget) {
    text += std::string(kItem) +
            "Train with tfswap.AutoSwap(budget=...): within this budget it "
            "can move what is not needed out of the way.";
  } else {
    text += std::string(kItem) + (budget > 0 ? "A budget" : "A device") + " of " +
            ReadableNeed(Smallest()) + " or more, the least with room for this op.";
  }
  return text + kItem + SmallerBatch();
}

std::string Shortage::SmallerBatch() const {
  const int64_t end = budget > 0 ? budget : in_use;
  const int64_t growing = Smallest() - staying;
  if (end <= staying || growing <= 0) {
    return "A smaller batch alone does not help: " + ReadableBytes(staying) +
           " stay through the whole step (weights, optimiser state).";
  }
  const int64_t percent = 100 * (end - staying) / growing;
  if (percent >= 100 || percent < 1) return "A smaller batch.";
  return "A batch of " + std::to_string(percent) +
         " % of this one, if what this op needs grows "
         "with it. With gradient accumulation, " +
         std::to_string((99 + percent) / percent) +
         " such sections of the batch train as all of it.";
}

}  // namespace tfswap
