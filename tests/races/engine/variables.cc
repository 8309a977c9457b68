#include "engine/variables.h"

#include <atomic>
#include <utility>

#include "pattern.h"
#include "tensorflow/core/framework/node_def_builder.h"
#include "tensorflow/core/framework/resource_var.h"

namespace races {

using ::tensorflow::NodeDef;
using ::tensorflow::NodeDefBuilder;
using ::tensorflow::ResourceHandle;
using ::tensorflow::Tensor;
using ::tensorflow::TensorShape;
using ::tensorflow::Var;

namespace {

constexpr int kVariables = 6;

NodeDef OnVariable(const char* op) {
  NodeDef node;
  TF_CHECK_OK(NodeDefBuilder(op, op)
                  .Input("variable", 0, tensorflow::DT_RESOURCE)
                  .Finalize(&node, /*consume=*/true));
  return node;
}

NodeDef ReadOp() {
  NodeDef node;
  TF_CHECK_OK(NodeDefBuilder("read", "ReadVariableOp")
                  .Input("variable", 0, tensorflow::DT_RESOURCE)
                  .Attr("dtype", tensorflow::DT_FLOAT)
                  .Finalize(&node));
  return node;
}

NodeDef AssignOp() {
  NodeDef node;
  TF_CHECK_OK(NodeDefBuilder("assign", "AssignVariableOp")
                  .Input("variable", 0, tensorflow::DT_RESOURCE)
                  .Input("value", 0, tensorflow::DT_FLOAT)
                  .Finalize(&node));
  return node;
}

bool IsShort(const OpRun& run) {
  return run.status().code() == absl::StatusCode::kResourceExhausted;
}

}  // namespace

Variables::Variables(Rig* rig) : rig_(rig) {
  Dice dice(7);
  for (int i = 0; i < kVariables; ++i) variables_.push_back(Make(&dice));
}

Variables::Variable Variables::Make(Dice* dice) {
  static std::atomic<uint32_t> made{1000};
  Variable variable{Tensor(tensorflow::DT_RESOURCE, TensorShape({})), ++made,
                    Between(dice, 64, 600) * 1024};
  variable.handle.scalar<ResourceHandle>()() = ResourceHandle::MakeRefCountingHandle(
      new Var(tensorflow::DT_FLOAT), rig_->device()->name());
  while (!Assign(variable)) {
  }
  return variable;
}

Variables::Variable Variables::Any(Dice* dice) {
  std::lock_guard<std::mutex> lock(mu_);
  return variables_[Between(dice, 0, kVariables - 1)];
}

bool Variables::Assign(const Variable& variable) {
  Tensor value = rig_->Make(variable.bytes, variable.owner);
  if (!value.IsInitialized()) return false;
  OpRun assign(rig_->device(), rig_->Kernel(AssignOp()), {variable.handle, std::move(value)});
  assign.Run();
  Require(assign.status().ok() || IsShort(assign), assign.status().ToString());
  return assign.status().ok();
}

void Variables::Read(Dice* dice) {
  const Variable variable = Any(dice);
  OpRun read(rig_->device(), rig_->Kernel(ReadOp()), {variable.handle});
  read.Run();
  if (IsShort(read)) return;
  Require(read.status().ok(), read.status().ToString());
  const Tensor value = read.TakeOutput();
  Require(Holds(value.data(), static_cast<int64_t>(value.TotalBytes()), variable.owner),
          "a variable has another value");
}

void Variables::Write(Dice* dice) { Assign(Any(dice)); }

void Variables::Leave(Dice* dice) {
  OpRun out(rig_->device(), rig_->Kernel(OnVariable("_VariableToHost")), {Any(dice).handle});
  out.Run();
  Require(out.status().ok(), out.status().ToString());
}

void Variables::Return(Dice* dice) {
  OpRun in(rig_->device(), rig_->Kernel(OnVariable("_VariableFromHost")), {Any(dice).handle});
  in.Run();
  Require(in.status().ok(), in.status().ToString());
}

void Variables::Switch(Dice* dice) {
  std::lock_guard<std::mutex> one(switch_mu_);
  // What finds no room yet stays away, and is fetched by whoever looks at it.
  rig_->engine()->variables()->SetOn(Between(dice, 0, 3) > 0);
}

void Variables::Renew(Dice* dice) {
  Variable made = Make(dice);
  std::lock_guard<std::mutex> lock(mu_);
  std::swap(made, variables_[Between(dice, 0, kVariables - 1)]);
}

void Variables::End() {
  variables_.clear();
  rig_->engine()->variables()->SetOn(false);
}

}  // namespace races
