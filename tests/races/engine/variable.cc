#include "engine/variable.h"

#include <atomic>
#include <utility>

#include "absl/strings/str_cat.h"
#include "pattern.h"
#include "tensorflow/core/framework/node_def_builder.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/resource_var.h"

namespace races {

using ::tensorflow::NodeDef;
using ::tensorflow::NodeDefBuilder;
using ::tensorflow::ResourceHandle;
using ::tensorflow::Tensor;
using ::tensorflow::TensorShape;
using ::tensorflow::Var;

namespace {

using VarPtr = tensorflow::core::RefCountPtr<Var>;

constexpr char kContainer[] = "races";

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

NodeDef PlansOp(const std::string& op) {
  NodeDef node;
  TF_CHECK_OK(NodeDefBuilder(op, op).Input("variable", 0, tensorflow::DT_RESOURCE).Finalize(&node));
  return node;
}

VarPtr OptionalRule(tensorflow::Device* device, const std::string& name) {
  Var* var = nullptr;
  device->resource_manager()->Lookup(kContainer, name, &var).IgnoreError();
  return VarPtr(var);
}

bool WasShort(const OpRun& run) {
  return run.status().code() == absl::StatusCode::kResourceExhausted;
}

}  // namespace

Variable::Variable(Rig* rig, int64_t bytes, uint32_t owner)
    : rig_(rig), bytes_(bytes), owner_(owner) {
  static std::atomic<int> made{0};
  const std::string name = absl::StrCat("variable ", made.fetch_add(1));
  auto* handle = new Tensor(tensorflow::DT_RESOURCE, TensorShape({}));
  tensorflow::Device* device = rig->device();
  handle->scalar<ResourceHandle>()() =
      tensorflow::MakeResourceHandle(kContainer, name, *device, tensorflow::TypeIndex::Make<Var>());
  // The last reference destroys the object. Drop it here and not in TensorFlow: ThreadSanitizer
  // would not see that the destruction follows all other accesses.
  handle_.reset(handle, [device, name](Tensor* handle) {
    const VarPtr last = OptionalRule(device, name);
    device->resource_manager()->Delete<Var>(kContainer, name).IgnoreError();
    delete handle;
  });
}

Tensor Variable::Now() const {
  const VarPtr var = OptionalRule(rig_->device(), handle_->scalar<ResourceHandle>()().name());
  if (var == nullptr) return Tensor();
  tensorflow::tf_shared_lock reading(*var->mu());
  return *var->tensor();
}

bool Variable::Assign() const {
  Tensor value = rig_->Make(bytes_, owner_);
  if (!value.IsInitialized()) return false;
  const Tensor before = Now();  // freed here: see above
  OpRun assign(rig_->device(), rig_->Kernel("assign", AssignOp), {*handle_, std::move(value)});
  assign.Run();
  if (WasShort(assign)) return false;
  TF_CHECK_OK(assign.status());
  return true;
}

std::string Variable::Read() const {
  OpRun read(rig_->device(), rig_->Kernel("read", ReadOp), {*handle_});
  read.Run();
  if (WasShort(read)) return "";
  if (!read.status().ok()) return std::string(read.status().message());
  const Tensor value = read.TakeOutput();
  if (static_cast<int64_t>(value.TotalBytes()) != bytes_) return "a variable has another size";
  return Holds(value.data(), bytes_, owner_) ? "" : "a variable has another value";
}

void Variable::SwapOut() const {
  OpRun out(rig_->device(),
            rig_->Kernel("_VariableToHost", [] { return PlansOp("_VariableToHost"); }), {*handle_});
  out.Run();
  TF_CHECK_OK(out.status());
}

void Variable::Return() const {
  OpRun in(rig_->device(),
           rig_->Kernel("_VariableFromHost", [] { return PlansOp("_VariableFromHost"); }),
           {*handle_});
  in.Run();
  TF_CHECK_OK(in.status());
}

}  // namespace races
