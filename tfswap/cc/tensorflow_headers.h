// Precompiled, for all files that are compiled with TensorFlow: reading these headers takes most of
// their time. Files include what they use nevertheless.
#ifndef TFSWAP_CC_TENSORFLOW_HEADERS_H_
#define TFSWAP_CC_TENSORFLOW_HEADERS_H_

#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/grappler/grappler_item.h"
#include "tensorflow/core/grappler/optimizers/custom_graph_optimizer.h"

#endif  // TFSWAP_CC_TENSORFLOW_HEADERS_H_
