#include "grappler/swap_spec.h"

#include "absl/strings/str_cat.h"
#include "google/protobuf/struct.pb.h"
#include "google/protobuf/util/json_util.h"

namespace tfswap {

namespace {

using ::google::protobuf::ListValue;
using ::google::protobuf::Struct;
using ::google::protobuf::Value;

constexpr int kVersion = 1;

const Value* Field(const Struct& object, const std::string& key) {
  auto it = object.fields().find(key);
  return it == object.fields().end() ? nullptr : &it->second;
}

std::string Text(const Struct& object, const std::string& key) {
  const Value* value = Field(object, key);
  return value == nullptr ? "" : value->string_value();
}

int64_t Number(const Struct& object, const std::string& key, int64_t otherwise) {
  const Value* value = Field(object, key);
  return value == nullptr ? otherwise : static_cast<int64_t>(value->number_value());
}

bool Truth(const Struct& object, const std::string& key) {
  const Value* value = Field(object, key);
  return value != nullptr && value->bool_value();
}

const ListValue& List(const Struct& object, const std::string& key) {
  const Value* value = Field(object, key);
  return value == nullptr ? ListValue::default_instance() : value->list_value();
}

std::vector<std::string> Texts(const Struct& object, const std::string& key) {
  std::vector<std::string> texts;
  for (const Value& value : List(object, key).values()) texts.push_back(value.string_value());
  return texts;
}

SwapSpec ReadSwap(const Struct& object) {
  SwapSpec swap;
  swap.tensor = Text(object, "tensor");
  swap.lazy = Truth(object, "lazy");
  swap.next_use = Number(object, "next_use", 0);
  if (const std::string tier = Text(object, "tier"); !tier.empty()) swap.tier = tier;
  swap.codec = Text(object, "codec");
  swap.rate_percent = Number(object, "rate_percent", 100);
  swap.threads = Number(object, "threads", 1);
  swap.gates = Texts(object, "gates");
  swap.after = Texts(object, "after");
  swap.returns_in_step = Truth(object, "returns_in_step");
  for (const Value& value : List(object, "returns").values()) {
    const Struct& from = value.struct_value();
    swap.returns.push_back(
        {Text(from, "trigger"), Texts(from, "consumers"), Number(from, "next_use", 0)});
  }
  return swap;
}

}  // namespace

absl::StatusOr<PlanSpec> ParsePlan(absl::string_view json) {
  Struct object;
  const absl::Status parsed = google::protobuf::util::JsonStringToMessage(json, &object);
  if (!parsed.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the plan is not the JSON that tfswap writes: ", parsed.message()));
  }
  const int64_t version = Number(object, "version", 0);
  if (version != kVersion) {
    return absl::InvalidArgumentError(
        absl::StrCat("the plan has version ", version, ", this tfswap reads version ", kVersion));
  }
  PlanSpec plan;
  plan.unmatched =
      Text(object, "unmatched") == "bootstrap" ? Unmatched::kBootstrap : Unmatched::kLeave;
  plan.min_bytes = Number(object, "min_bytes", plan.min_bytes);
  plan.describe = Truth(object, "describe");
  plan.asks = Field(object, "asks") != nullptr;
  plan.label = Text(object, "label");
  plan.sections = Number(object, "sections", plan.sections);
  plan.batch = Number(object, "batch", plan.batch);
  plan.chooses = Truth(object, "chooses");
  plan.stream_weights = Truth(object, "stream_weights");
  for (const Value& value : List(object, "functions").values()) {
    const Struct& from = value.struct_value();
    FunctionSpec function;
    function.fingerprint = Text(from, "fingerprint");
    function.reserve = Truth(from, "reserve");
    for (const Value& each : List(from, "recomputes").values()) {
      const Struct& again = each.struct_value();
      function.recomputes.push_back({Text(again, "tensor"), Texts(again, "nodes"),
                                     Text(again, "trigger"), Texts(again, "consumers")});
    }
    for (const Value& swap : List(from, "swaps").values()) {
      function.swaps.push_back(ReadSwap(swap.struct_value()));
    }
    for (const Value& edge : List(from, "order").values()) {
      const ListValue& ends = edge.list_value();
      if (ends.values_size() == 2) {
        function.order.emplace_back(ends.values(0).string_value(), ends.values(1).string_value());
      }
    }
    plan.functions.push_back(std::move(function));
  }
  return plan;
}

}  // namespace tfswap
