#include "core/simulate/repetition.h"

#include <algorithm>

namespace tfswap {
namespace {

using Symbols = std::vector<int64_t>;

// z[i]: the number of symbols from i on that equal those from 0 on; z[0] is the whole length.
std::vector<int64_t> ZFunction(const Symbols& s) {
  const auto n = static_cast<int64_t>(s.size());
  std::vector<int64_t> z(s.size(), 0);
  if (n > 0) z[0] = n;
  for (int64_t i = 1, left = 0, right = 0; i < n; ++i) {
    if (i < right) z[i] = std::min(right - i, z[i - left]);
    while (i + z[i] < n && s[z[i]] == s[i + z[i]]) ++z[i];
    if (i + z[i] > right) {
      left = i;
      right = i + z[i];
    }
  }
  return z;
}

void Keep(Repetition found, Repetition* best) {
  if (found.length > best->length ||
      (found.length == best->length && found.length > 0 && found.start < best->start)) {
    *best = found;
  }
}

// Find squares that overlap both halves of [from, to); the second half starts at `middle`.
//
//   u = s[from, middle)   v = s[middle, to)
//   A square of half length l whose centre lies in u: the part of u before its last l symbols ends
//   with what u ends with, and v begins with what u's last l symbols begin with.
void CrossingSquares(const Symbols& s, int64_t from, int64_t middle, int64_t to, Repetition* best) {
  const int64_t u_length = middle - from;
  const int64_t v_length = to - middle;
  const Symbols u_reversed(s.rend() - middle, s.rend() - from);
  Symbols v_then_u(s.begin() + middle, s.begin() + to);
  v_then_u.push_back(-1);  // no symbol is negative
  v_then_u.insert(v_then_u.end(), s.begin() + from, s.begin() + middle);
  const std::vector<int64_t> z_u = ZFunction(u_reversed);
  const std::vector<int64_t> z_vu = ZFunction(v_then_u);

  Symbols u_then_v(u_reversed);
  u_then_v.push_back(-1);
  u_then_v.insert(u_then_v.end(), s.rend() - to, s.rend() - middle);
  const Symbols v(s.begin() + middle, s.begin() + to);
  const std::vector<int64_t> z_v = ZFunction(v);
  const std::vector<int64_t> z_uv = ZFunction(u_then_v);

  // Centre in u: the square's halves meet `length` symbols before the middle.
  for (int64_t length = 1; length <= u_length; ++length) {
    // Common to the end of u and to what ends `length` before it; common to v and to the last
    // `length` symbols of u.
    const int64_t back = length < u_length ? z_u[length] : 0;
    const int64_t ahead = std::min(z_vu[v_length + 1 + u_length - length], length);
    if (back + ahead < length) continue;
    const int64_t start = middle - length - std::min(back, length);
    Keep({start, length}, best);
  }
  // Centre in v.
  for (int64_t length = 1; length <= v_length; ++length) {
    const int64_t ahead = length < v_length ? z_v[length] : 0;
    const int64_t back = std::min(z_uv[u_length + 1 + v_length - length], length);
    if (back + ahead < length) continue;
    Keep({middle - std::min(back, length), length}, best);
  }
}

void Search(const Symbols& s, int64_t from, int64_t to, Repetition* best) {
  // Skip a part that is too short for a longer square.
  if (to - from < 2 || (to - from) / 2 <= best->length) return;
  const int64_t middle = from + (to - from) / 2;
  CrossingSquares(s, from, middle, to, best);
  Search(s, from, middle, best);
  Search(s, middle, to, best);
}

}  // namespace

Repetition LongestRepetition(const Symbols& symbols, int64_t min_length) {
  // Use ranks instead of values, so that no symbol is negative.
  Symbols values = symbols;
  std::sort(values.begin(), values.end());
  values.erase(std::unique(values.begin(), values.end()), values.end());
  Symbols ranks(symbols.size());
  for (size_t i = 0; i < symbols.size(); ++i) {
    ranks[i] = std::lower_bound(values.begin(), values.end(), symbols[i]) - values.begin();
  }
  Repetition best;
  Search(ranks, 0, static_cast<int64_t>(ranks.size()), &best);
  if (best.length < std::max<int64_t>(min_length, 1)) return {};
  // The smallest period of the whole square.
  const Symbols square(ranks.begin() + best.start, ranks.begin() + best.start + 2 * best.length);
  const std::vector<int64_t> z = ZFunction(square);
  for (int64_t period = std::max<int64_t>(min_length, 1); period < best.length; ++period) {
    if (best.length % period == 0 && z[period] == 2 * best.length - period) {
      return {best.start, period};
    }
  }
  return best;
}

}  // namespace tfswap
