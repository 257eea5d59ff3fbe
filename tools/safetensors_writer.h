// Writes f32 and i32 tensors as a safetensors file, streaming: shapes first, then data in the same order.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "ir/support/status.h"

namespace xjit::tools {

class SafetensorsWriter {
 public:
  void Metadata(const std::string& key, const std::string& value) { metadata_[key] = value; }
  void AddF32(const std::string& name, std::vector<int64_t> shape, std::vector<float> data);
  void AddI32(const std::string& name, const std::vector<int32_t>& data);
  absl::Status Write(const std::string& path) const;

 private:
  struct Tensor {
    std::string name, dtype;
    std::vector<int64_t> shape;
    std::string bytes;
  };
  std::map<std::string, std::string> metadata_;
  std::vector<Tensor> tensors_;
};

}  // namespace xjit::tools
