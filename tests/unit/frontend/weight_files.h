// Checkpoint folders of a few named tensors, for the tests of weights.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "frontend/checkpoint.h"
#include "tests/unit/frontend/model_files.h"

namespace xjit::testing {

struct FileTensor {
  std::string name, dtype;
  std::vector<int64_t> shape;
  std::string data;
};

template <typename T>
FileTensor Of(std::string name, std::string dtype, std::vector<int64_t> shape, const std::vector<T>& values) {
  return {std::move(name), std::move(dtype), std::move(shape),
          std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T))};
}
inline FileTensor F32(std::string name, std::vector<int64_t> shape, const std::vector<float>& values) {
  return Of(std::move(name), "F32", std::move(shape), values);
}
// first, first + 1, ...
inline FileTensor Counting(std::string name, std::vector<int64_t> shape, float first = 0) {
  int64_t count = 1;
  for (int64_t d : shape) count *= d;
  std::vector<float> values;
  for (int64_t i = 0; i < count; ++i) values.push_back(first + static_cast<float>(i));
  return F32(std::move(name), std::move(shape), values);
}
// Zero bytes.
inline FileTensor Zeros(std::string name, std::string dtype, std::vector<int64_t> shape, size_t bytes) {
  return {std::move(name), std::move(dtype), std::move(shape), std::string(bytes, '\0')};
}

inline std::string SafetensorsFile(const std::vector<FileTensor>& tensors) {
  std::string header = "{", data;
  for (const FileTensor& t : tensors) {
    header +=
        fmt::format(R"({}"{}":{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})", header.size() == 1 ? "" : ",",
                    t.name, t.dtype, fmt::join(t.shape, ","), data.size(), data.size() + t.data.size());
    data += t.data;
  }
  return Safetensors(header + "}", data);
}

// A folder with config.json and those tensors, open.
class WeightFolder {
 public:
  explicit WeightFolder(const std::vector<FileTensor>& tensors, std::string_view config = kTinyConfig)
      : WeightFolder(SafetensorsFile(tensors), config) {}
  explicit WeightFolder(const std::string& file, std::string_view config = kTinyConfig) {
    folder_.Write("config.json", config);
    folder_.Write("model.safetensors", file);
    auto checkpoint = OpenCheckpoint(folder_.path());
    EXPECT_TRUE(checkpoint.ok()) << checkpoint.status();
    if (checkpoint.ok()) checkpoint_ = *std::move(checkpoint);
  }
  const Checkpoint& operator*() const { return *checkpoint_; }
  const Checkpoint* operator->() const { return checkpoint_.get(); }
  const std::string& path() const { return folder_.path(); }

 private:
  TempFolder folder_;
  std::unique_ptr<Checkpoint> checkpoint_;
};

}  // namespace xjit::testing
