#include "kernels/placement_request_attributes.h"

#include <optional>
#include <string>

#include "absl/strings/str_cat.h"

namespace tfswap {

absl::Status ReadPlacementRequest(tensorflow::OpKernelConstruction* construction,
                                  tensorflow::DataType dtype, PlacementRequest* request) {
  int rate;
  std::string tier, codec;
  TF_RETURN_IF_ERROR(construction->GetAttr("tier", &tier));
  TF_RETURN_IF_ERROR(construction->GetAttr("codec", &codec));
  TF_RETURN_IF_ERROR(construction->GetAttr("rate", &rate));
  TF_RETURN_IF_ERROR(construction->GetAttr("threads", &request->threads));
  request->codec.rate_percent = rate;
  request->codec.element_bytes = DataTypeSize(dtype);
  if (!ParseFarTier(tier, &request->tier)) {
    return absl::InvalidArgumentError(
        absl::StrCat("tfswap: there is no tier '", tier, "'; allowed are host, compressed, file"));
  }
  if (codec.empty()) return absl::OkStatus();
  const std::optional<Codec> parsed = ParseCodec(codec);
  if (!parsed.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat("tfswap: there is no codec '", codec, "' (see tfswap.codecs)"));
  }
  request->codec.codec = *parsed;
  if (IsLossy(*parsed) && dtype != tensorflow::DT_FLOAT) {
    return absl::InvalidArgumentError(
        absl::StrCat("tfswap: codec '", codec, "' is lossy and supports float32 only, but '",
                     construction->def().name(), "' swaps ", DataTypeString(dtype),
                     ": make the plan again, or name a lossless codec in it"));
  }
  // A GPU copies what it cannot encode.
  if (construction->device_type() != tensorflow::DEVICE_CPU) return absl::OkStatus();
  const std::string why_not = WhyUnusable(request->codec);
  if (why_not.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("tfswap: ", why_not));
}

}  // namespace tfswap
