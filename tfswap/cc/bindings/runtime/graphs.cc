// Bindings for the Grappler pass: its records, and descriptions of graphs.

#include <string_view>

#include "absl/strings/str_cat.h"
#include "bindings/runtime/library.h"
#include "grappler/index/op_costs.h"
#include "grappler/pass_log.h"
#include "grappler/tensorflow_passes.h"

namespace py = pybind11;

namespace tfswap {
namespace {

py::list PassRecordDicts() {
  std::vector<PassRecord> records;
  {
    py::gil_scoped_release without_gil;
    records = PassRecords();
  }
  py::list dicts;
  for (const PassRecord& record : records) {
    py::list floors;
    for (const SectionFloor& each : record.floors) {
      py::dict floor;
      floor["sections"] = each.sections;
      floor["bytes"] = each.floor.bytes;
      floor["op"] = Text{each.floor.op};
      floors.append(floor);
    }
    py::dict dict;
    dict["function"] = Text{record.function};
    dict["fingerprint"] = Text{record.fingerprint};
    dict["portable"] = Text{record.portable};
    dict["label"] = Text{record.label};
    dict["outcome"] = Text{record.outcome};
    dict["reason"] = Text{record.reason};
    dict["nodes"] = record.nodes;
    dict["trains"] = record.trains;
    dict["most_bytes"] = record.most_bytes;
    dict["times"] = record.times;
    dict["swaps"] = record.swaps;
    dict["sectioned_ops"] = record.sectioned_ops;
    dict["sections"] = record.sections;
    dict["examples"] = record.examples;
    dict["floors"] = floors;
    dict["serial"] = record.serial;
    dicts.append(dict);
  }
  return dicts;
}

std::string PortableFingerprint(const std::string& fingerprint) {
  std::string portable;
  for (const PassRecord& record : PassRecords()) {
    if (record.fingerprint == fingerprint) portable = record.portable;
  }
  return portable;
}

Text Estimate(std::string_view graph, const std::vector<std::string>& kept, double ops_per_s,
              double product_ops_per_s, double bytes_per_s) {
  constexpr const char* kWhat = "the training step cannot be estimated: ";
  tensorflow::GraphDef parsed;
  if (!parsed.ParseFromArray(graph.data(), static_cast<int>(graph.size()))) {
    throw std::invalid_argument(absl::StrCat(kWhat, "the graph is not a GraphDef"));
  }
  absl::StatusOr<std::string> text =
      EstimateStep(std::move(parsed), kept, DeviceSpeed{ops_per_s, product_ops_per_s, bytes_per_s});
  if (!text.ok()) throw std::invalid_argument(absl::StrCat(kWhat, text.status().ToString()));
  return {*std::move(text)};
}

}  // namespace

void BindGraphs(Methods* methods) {
  const auto fingerprint = py::arg("fingerprint");
  methods->DefLocked("pass_records", &PassRecordDicts)
      .Def("portable_fingerprint", &PortableFingerprint, fingerprint)
      .Def(
          "describe",
          [](const std::string& fingerprint) { return Text{DescriptionOf(fingerprint)}; },
          fingerprint)
      .Def(
          "describe_under_plan",
          [](const std::string& fingerprint, const std::string& label) {
            return Text{DescriptionUnderPlan(fingerprint, label)};
          },
          fingerprint, py::arg("label") = "")
      .Def("clear_pass_records", &ClearPassRecords)
      .Def("forget_optimized_graphs", &ForgetOptimizedGraphs)
      .Def("estimate_step", &Estimate, py::arg("graph"), py::arg("kept"), py::arg("ops_per_s"),
           py::arg("product_ops_per_s"), py::arg("bytes_per_s"));
}

}  // namespace tfswap
