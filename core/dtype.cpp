#include "dtype.h"

namespace spillway {

std::string_view name_of(DType type) {
  switch (type) {
    case DType::bf16:
      return "bf16";
    case DType::fp16:
      return "fp16";
    case DType::fp32:
      return "fp32";
  }
  return "?";
}

}  // namespace spillway
