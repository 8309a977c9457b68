#include "grappler/swap_spec.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "codecs/codec.h"
#include "google/protobuf/struct.pb.h"
#include "google/protobuf/util/json_util.h"

namespace tfswap {

namespace {

using ::google::protobuf::ListValue;
using ::google::protobuf::Struct;
using ::google::protobuf::Value;

constexpr int64_t kVersion = 1;

// Limits beyond any real plan (tfswap/plan has the same).
constexpr int64_t kMaxValues = int64_t{1} << 21;
constexpr int64_t kMaxSections = 4096;
constexpr int64_t kMaxThreads = 1024;
// Numbers in JSON are doubles; up to here they represent each integer exactly.
constexpr int64_t kMaxInteger = int64_t{1} << 53;

const char* KindName(Value::KindCase kind) {
  switch (kind) {
    case Value::kNullValue:
      return "null";
    case Value::kNumberValue:
      return "a number";
    case Value::kStringValue:
      return "a string";
    case Value::kBoolValue:
      return "true or false";
    case Value::kStructValue:
      return "an object";
    case Value::kListValue:
      return "a list";
    default:
      return "nothing";
  }
}

// Typed access to the fields of an object. Stores the first error in `status`.
class Fields {
 public:
  Fields(const Struct& object, absl::Status* status) : object_(object), status_(status) {}

  std::string Text(const char* key) const {
    const Value* value = Get(key, Value::kStringValue);
    return value == nullptr ? "" : value->string_value();
  }

  bool Truth(const char* key) const {
    const Value* value = Get(key, Value::kBoolValue);
    return value != nullptr && value->bool_value();
  }

  int64_t Integer(const char* key, int64_t otherwise, int64_t least, int64_t most) const {
    const Value* value = Get(key, Value::kNumberValue);
    if (value == nullptr) return otherwise;
    const double number = value->number_value();
    // NaN fails this test, too.
    const bool fits = number >= static_cast<double>(least) && number <= static_cast<double>(most);
    if (fits && number == std::floor(number)) return static_cast<int64_t>(number);
    Note(absl::StrCat("'", key, "' is ", number, "; it must be an integer from ", least, " to ",
                      most));
    return otherwise;
  }

  std::vector<std::string> Texts(const char* key) const {
    std::vector<std::string> texts;
    for (const Value& value : List(key).values()) {
      if (Is(value, Value::kStringValue, key)) texts.push_back(value.string_value());
    }
    return texts;
  }

  // Call `read` with each object of a list.
  template <typename Read>
  void Objects(const char* key, const Read& read) const {
    for (const Value& value : List(key).values()) {
      if (Is(value, Value::kStructValue, key)) read(Fields(value.struct_value(), status_));
    }
  }

  std::vector<std::pair<std::string, std::string>> Pairs(const char* key) const {
    std::vector<std::pair<std::string, std::string>> pairs;
    for (const Value& value : List(key).values()) {
      if (!Is(value, Value::kListValue, key)) break;
      const auto& ends = value.list_value().values();
      if (ends.size() != 2) Note(absl::StrCat("'", key, "' holds a list that is not a pair"));
      if (ends.size() != 2 || !Is(ends[0], Value::kStringValue, key) ||
          !Is(ends[1], Value::kStringValue, key)) {
        break;
      }
      pairs.emplace_back(ends[0].string_value(), ends[1].string_value());
    }
    return pairs;
  }

  // An object whose values are all texts.
  std::map<std::string, std::string> TextsByName(const char* key) const {
    std::map<std::string, std::string> texts;
    for (const auto& [name, value] : Object(key).fields()) {
      if (Is(value, Value::kStringValue, key)) texts.emplace(name, value.string_value());
    }
    return texts;
  }

  void Note(const std::string& problem) const {
    if (status_->ok()) *status_ = absl::InvalidArgumentError(absl::StrCat("the plan: ", problem));
  }

 private:
  const Value* Get(const char* key, Value::KindCase kind) const {
    const auto found = object_.fields().find(key);
    if (found == object_.fields().end() || !Is(found->second, kind, key)) return nullptr;
    return &found->second;
  }

  const ListValue& List(const char* key) const {
    const Value* value = Get(key, Value::kListValue);
    return value == nullptr ? ListValue::default_instance() : value->list_value();
  }

  const Struct& Object(const char* key) const {
    const Value* value = Get(key, Value::kStructValue);
    return value == nullptr ? Struct::default_instance() : value->struct_value();
  }

  bool Is(const Value& value, Value::KindCase kind, const char* key) const {
    if (value.kind_case() == kind) return true;
    Note(absl::StrCat("'", key, "' is or holds ", KindName(value.kind_case()), ", not ",
                      KindName(kind)));
    return false;
  }

  const Struct& object_;
  absl::Status* const status_;
};

bool IsTier(const std::string& tier) {
  return tier == "host" || tier == "compressed" || tier == "file";
}

SwapSpec ReadSwap(const Fields& from) {
  SwapSpec swap;
  swap.tensor = from.Text("tensor");
  swap.lazy = from.Truth("lazy");
  swap.next_use = from.Integer("next_use", 0, -kMaxInteger, kMaxInteger);
  if (const std::string tier = from.Text("tier"); !tier.empty()) swap.tier = tier;
  if (!IsTier(swap.tier)) from.Note(absl::StrCat("there is no tier '", swap.tier, "'"));
  swap.codec = from.Text("codec");
  if (!swap.codec.empty() && !ParseCodec(swap.codec)) {
    from.Note(absl::StrCat("there is no codec '", swap.codec, "'"));
  }
  swap.rate_percent = from.Integer("rate_percent", 100, 1, 100);
  swap.threads = from.Integer("threads", 1, 0, kMaxThreads);
  swap.gates = from.Texts("gates");
  swap.after = from.Texts("after");
  swap.returns_in_step = from.Truth("returns_in_step");
  from.Objects("returns", [&](const Fields& back) {
    swap.returns.push_back({back.Text("trigger"), back.Texts("consumers"),
                            back.Integer("next_use", 0, -kMaxInteger, kMaxInteger)});
  });
  return swap;
}

FunctionSpec ReadFunction(const Fields& from) {
  FunctionSpec function;
  function.fingerprint = from.Text("fingerprint");
  function.reserve = from.Truth("reserve");
  from.Objects("recomputes", [&](const Fields& again) {
    function.recomputes.push_back({again.Text("tensor"), again.Texts("nodes"),
                                   again.Text("trigger"), again.Texts("consumers")});
  });
  from.Objects("swaps", [&](const Fields& swap) { function.swaps.push_back(ReadSwap(swap)); });
  function.order = from.Pairs("order");
  return function;
}

// Limit the memory of the parser: each value except the first follows one of these characters.
absl::Status CheckAmount(absl::string_view json) {
  if (json.size() > static_cast<size_t>(kMaxPlanBytes)) {
    return absl::InvalidArgumentError(
        absl::StrCat("a plan of ", json.size(), " bytes is larger than ", kMaxPlanBytes));
  }
  const auto values = std::count_if(json.begin(), json.end(),
                                    [](char c) { return c == ',' || c == '[' || c == '{'; });
  if (values <= kMaxValues) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("a plan of ", values, " values has more than ", kMaxValues));
}

absl::StatusOr<Struct> ParseObject(absl::string_view json) {
  absl::Status status = CheckAmount(json);
  if (!status.ok()) return status;
  Struct object;
  status = google::protobuf::util::JsonStringToMessage(json, &object);
  if (status.ok()) return object;
  return absl::InvalidArgumentError(
      absl::StrCat("the plan is not the JSON that tfswap writes: ", status.message()));
}

absl::StatusOr<PlanSpec> ReadPlan(const Struct& object, std::string* label) {
  absl::Status status;
  const Fields from(object, &status);
  PlanSpec plan;
  plan.label = from.Text("label");
  if (label != nullptr) *label = plan.label;
  const int64_t version = from.Integer("version", 0, 0, kMaxInteger);
  if (status.ok() && version != kVersion) {
    return absl::InvalidArgumentError(
        absl::StrCat("the plan has version ", version, ", this tfswap reads version ", kVersion));
  }
  plan.unmatched =
      from.Text("unmatched") == "bootstrap" ? Unmatched::kBootstrap : Unmatched::kLeave;
  plan.min_bytes = from.Integer("min_bytes", plan.min_bytes, 0, kMaxInteger);
  plan.describe = from.Truth("describe");
  plan.sections = from.Integer("sections", plan.sections, 1, kMaxSections);
  plan.batch = from.Integer("batch", plan.batch, 0, kMaxInteger);
  plan.chooses = from.Truth("chooses");
  plan.stream_weights = from.Truth("stream_weights");
  plan.leaves_fitting = from.Truth("leaves_fitting");
  plan.examples = from.Integer("examples", plan.examples, 0, kMaxInteger);
  plan.remembered = from.TextsByName("remembered");
  from.Objects("functions",
               [&](const Fields& function) { plan.functions.push_back(ReadFunction(function)); });
  if (!status.ok()) return status;
  return plan;
}

}  // namespace

absl::StatusOr<PlanSpec> ParsePlan(absl::string_view json, std::string* label) {
  const absl::StatusOr<Struct> object = ParseObject(json);
  if (!object.ok()) return object.status();
  return ReadPlan(*object, label);
}

absl::StatusOr<FunctionSpec> ParseRemembered(absl::string_view json,
                                             const std::string& fingerprint) {
  const absl::StatusOr<Struct> object = ParseObject(json);
  if (!object.ok()) return object.status();
  const auto found = object->fields().find("plan");
  if (found == object->fields().end() || !found->second.has_struct_value()) {
    return absl::InvalidArgumentError("the file has no object 'plan'");
  }
  absl::StatusOr<PlanSpec> plan = ReadPlan(found->second.struct_value(), nullptr);
  if (!plan.ok()) return plan.status();
  for (FunctionSpec& function : plan->functions) {
    if (function.fingerprint == fingerprint) return std::move(function);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("the plan in the file has no entry for the graph ", fingerprint));
}

}  // namespace tfswap
