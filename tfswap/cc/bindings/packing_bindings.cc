#include "bindings/packing_bindings.h"

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "packing/exact.h"
#include "packing/fit.h"
#include "packing/improve.h"
#include "packing/pack.h"
#include "packing/validator.h"

namespace py = pybind11;

namespace tfswap {
namespace {

using packing::ExactRules;
using packing::Fit;
using packing::Outcome;
using packing::Packing;
using packing::Problem;

using Ints = py::array_t<int64_t, py::array::c_style | py::array::forcecast>;

Problem MakeProblem(const Ints& size, const Ints& lower, const Ints& upper, const Ints& alignment,
                    const Ints& fixed, const Ints& gaps) {
  const py::ssize_t count = size.size();
  for (const Ints* field : {&size, &lower, &upper, &alignment, &fixed}) {
    if (field->ndim() != 1 || field->size() != count) {
      throw std::invalid_argument("sizes, lifetimes, alignments and offsets: one each a buffer");
    }
  }
  if (gaps.ndim() != 2 || gaps.shape(1) != 3) {
    throw std::invalid_argument("gaps: rows of (buffer, lower, upper) are needed");
  }
  Problem problem;
  problem.buffers.resize(static_cast<size_t>(count));
  for (py::ssize_t b = 0; b < count; ++b) {
    packing::Buffer& buffer = problem.buffers[static_cast<size_t>(b)];
    buffer.size = size.at(b);
    buffer.lower = lower.at(b);
    buffer.upper = upper.at(b);
    buffer.alignment = alignment.at(b);
    if (fixed.at(b) >= 0) buffer.fixed = fixed.at(b);
  }
  for (py::ssize_t i = 0; i < gaps.shape(0); ++i) {
    if (gaps.at(i, 0) < 0 || gaps.at(i, 0) >= count) {
      throw std::invalid_argument("a gap names buffer " + std::to_string(gaps.at(i, 0)) +
                                  ", but there are " + std::to_string(count));
    }
    problem.buffers[static_cast<size_t>(gaps.at(i, 0))].gaps.push_back(
        {gaps.at(i, 1), gaps.at(i, 2)});
  }
  packing::Check(problem);
  return problem;
}

py::array_t<int64_t> Offsets(const Packing& packing) {
  return py::array_t<int64_t>(static_cast<py::ssize_t>(packing.offsets.size()),
                              packing.offsets.data());
}

const char* NameOf(Outcome outcome) {
  switch (outcome) {
    case Outcome::kSolved:
      return "solved";
    case Outcome::kImpossible:
      return "impossible";
    case Outcome::kOutOfTime:
      return "out of time";
  }
  return "out of time";
}

ExactRules MakeRules(const std::vector<std::string>& without) {
  ExactRules rules;
  for (const std::string& name : without) {
    if (name == "moments") {
      rules.moments = false;
    } else if (name == "not_first") {
      rules.not_first = false;
    } else if (name == "dominance") {
      rules.dominance = false;
    } else if (name == "support") {
      rules.support = false;
    } else if (name == "decomposition") {
      rules.decomposition = false;
    } else if (name == "memory") {
      rules.memory = false;
    } else {
      throw std::invalid_argument("unknown rule '" + name + "'");
    }
  }
  return rules;
}

}  // namespace

void BindPacking(py::module_& module) {
  py::class_<Problem>(module, "PackingProblem")
      .def(py::init(&MakeProblem), py::arg("size"), py::arg("lower"), py::arg("upper"),
           py::arg("alignment"), py::arg("fixed"), py::arg("gaps"))
      .def("max_live", &packing::MaxLive)
      .def(
          "find_fault",
          [](const Problem& problem, const Ints& offsets, int64_t height) {
            Packing packing;
            packing.offsets.assign(offsets.data(), offsets.data() + offsets.size());
            packing.height = height;
            return packing::FindFault(problem, packing);
          },
          py::arg("offsets"), py::arg("height"))
      .def(
          "place_by_size",
          [](const Problem& problem, bool best_fit) {
            return Offsets(packing::PlaceBySize(problem, best_fit ? Fit::kBest : Fit::kFirst));
          },
          py::arg("best_fit"))
      .def(
          "improve",
          [](const Problem& problem, double seconds, int64_t enough, uint64_t seed) {
            packing::ImproveOptions options;
            options.seconds = seconds;
            options.enough = enough;
            options.seed = seed;
            Packing packing;
            {
              py::gil_scoped_release without_gil;
              packing = packing::Improve(problem, packing::PlaceInSeveralOrders(problem), options);
            }
            return Offsets(packing);
          },
          py::arg("seconds"), py::arg("enough"), py::arg("seed"))
      .def(
          "solve",
          [](const Problem& problem, int64_t capacity, double seconds,
             const std::vector<std::string>& without, uint64_t seed) {
            packing::ExactOptions options;
            options.seconds = seconds;
            options.rules = MakeRules(without);
            options.seed = seed;
            packing::ExactAnswer answer;
            {
              py::gil_scoped_release without_gil;
              answer = packing::SolveExactly(problem, capacity, options);
            }
            return py::make_tuple(NameOf(answer.outcome), Offsets(answer.packing), answer.nodes);
          },
          py::arg("capacity"), py::arg("seconds"), py::arg("without"), py::arg("seed"))
      .def(
          "pack",
          [](const Problem& problem, double seconds, const std::vector<int64_t>& capacities,
             uint64_t seed) {
            packing::PackOptions options;
            options.seconds = seconds;
            options.capacities = capacities;
            options.seed = seed;
            packing::Packed packed;
            {
              py::gil_scoped_release without_gil;
              packed = packing::Pack(problem, options);
            }
            return py::make_tuple(Offsets(packed.packing), packed.lower_bound, packed.nodes);
          },
          py::arg("seconds"), py::arg("capacities"), py::arg("seed"));
}

}  // namespace tfswap
