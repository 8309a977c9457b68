#include "grappler/index/op_kinds.h"

namespace tfswap {

const OpNames& Milestones() {
  static const auto* ops = new OpNames{"Conv1D",
                                       "Conv2D",
                                       "_FusedConv2D",
                                       "Conv2DBackpropInput",
                                       "Conv2DBackpropFilter",
                                       "Conv3D",
                                       "_FusedConv3D",
                                       "Conv3DBackpropInputV2",
                                       "Conv3DBackpropFilterV2",
                                       "DepthwiseConv2dNative",
                                       "_FusedDepthwiseConv2dNative",
                                       "DepthwiseConv2dNativeBackpropInput",
                                       "DepthwiseConv2dNativeBackpropFilter",
                                       "MatMul",
                                       "_FusedMatMul",
                                       "BatchMatMul",
                                       "BatchMatMulV2",
                                       "BatchMatMulV3",
                                       "Einsum",
                                       "SparseMatMul",
                                       "CudnnRNN",
                                       "CudnnRNNV3"};
  return *ops;
}

const OpNames& OtherGateable() {
  static const auto* ops = new OpNames{"AddN",
                                       "AvgPool",
                                       "AvgPoolGrad",
                                       "BroadcastTo",
                                       "ConcatV2",
                                       "FusedBatchNormGradV3",
                                       "FusedBatchNormV3",
                                       "MaxPool",
                                       "MaxPoolGrad",
                                       "Mean",
                                       "ReluGrad",
                                       "Relu6Grad",
                                       "SoftmaxCrossEntropyWithLogits",
                                       "SparseSoftmaxCrossEntropyWithLogits",
                                       "SquaredDifference",
                                       "Sub",
                                       "Sum",
                                       "Tile",
                                       "UnsortedSegmentSum"};
  return *ops;
}

const OpNames& Unfolding() {
  static const auto* ops = new OpNames{"AvgPoolGrad", "AvgPool3DGrad", "MaxPoolGrad",
                                       "MaxPool3DGrad", "MaxPoolGradWithArgmax"};
  return *ops;
}

const OpNames& MayBeFused() {
  static const auto* ops = new OpNames{"BiasAdd", "BiasAddGrad", "Pad", "PadV2", "Transpose"};
  return *ops;
}

const OpNames& TakeNoTime() {
  static const auto* ops =
      new OpNames{"Const", "HostConst", "Placeholder", "VarHandleOp", "_Arg", "_DeviceArg"};
  return *ops;
}

const OpNames& Aliases() {
  static const auto* ops =
      new OpNames{"Identity",        "Reshape",     "Squeeze", "ExpandDims", "StopGradient",
                  "PreventGradient", "EnsureShape", "Bitcast", "Snapshot",   "CheckNumerics"};
  return *ops;
}

const OpNames& ExternallyOwned() {
  static const auto* ops = new OpNames{"_Arg",
                                       "_DeviceArg",
                                       "Placeholder",
                                       "PlaceholderWithDefault",
                                       "Const",
                                       "VarHandleOp",
                                       "VariableV2",
                                       "Variable",
                                       "ReadVariableOp",
                                       "Enter",
                                       "Exit",
                                       "Switch",
                                       "Merge",
                                       "NextIteration",
                                       "LoopCond",
                                       "RefEnter",
                                       "RefExit",
                                       "RefSwitch",
                                       "RefMerge",
                                       "RefNextIteration",
                                       "_SwitchN",
                                       "_Recv",
                                       "_HostRecv",
                                       "StackPopV2",
                                       "TensorListGetItem",
                                       "GetSessionTensor",
                                       "_CopyFromHost",
                                       "_CopyToHost",
                                       "HostConst",
                                       "OptionalGetValue"};
  return *ops;
}

const OpNames& NotRewirable() {
  static const auto* ops = new OpNames{
      "_Retval",  "_DeviceRetval", "Enter",    "Exit",        "Switch",          "Merge",
      "LoopCond", "NextIteration", "RefEnter", "RefExit",     "RefSwitch",       "RefMerge",
      "_Send",    "_HostSend",     "_SwitchN", "_CopyToHost", "RefNextIteration"};
  return *ops;
}

}  // namespace tfswap
