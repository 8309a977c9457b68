#ifndef TFSWAP_CORE_CARD_H_
#define TFSWAP_CORE_CARD_H_

#include <cstdint>

namespace tfswap {

// A queue of a card's commands: they run in order, those of different queues at once. CUDA calls it
// a stream.
enum class Queue : int { kCompute = 0, kOut = 1, kIn = 2 };
inline constexpr int kQueues = 3;

// Orders and copies on a card, without waiting on the host: CUDA's streams and events, or a model
// of them. Thread-safe.
class Card {
 public:
  using Event = void*;

  virtual ~Card() = default;

  // An event that happens when all that `queue` was given so far has ended.
  virtual Event Record(Queue queue) = 0;
  // What `queue` is given from now on starts after the event.
  virtual void Wait(Queue queue, Event event) = 0;
  virtual bool HasHappened(Event event) = 0;
  // Nobody will name the event again. Waits for it that were given stay.
  virtual void Recycle(Event event) = 0;
  // Copies between the card (`to` of kIn, `from` of kOut) and pinned host memory. Whether the card
  // took the command.
  virtual bool Copy(Queue queue, void* to, const void* from, int64_t bytes) = 0;
};

}  // namespace tfswap

#endif  // TFSWAP_CORE_CARD_H_
