#include "tools/safetensors_writer.h"

#include <nlohmann/json.hpp>

#include "frontend/output_file.h"
#include "ir/support/align.h"

namespace xjit::tools {

void SafetensorsWriter::AddF32(const std::string& name, std::vector<int64_t> shape, std::vector<float> data) {
  tensors_.push_back(
      {name, "F32", std::move(shape), std::string(reinterpret_cast<const char*>(data.data()), data.size() * 4)});
}

void SafetensorsWriter::AddI32(const std::string& name, const std::vector<int32_t>& data) {
  tensors_.push_back({name,
                      "I32",
                      {static_cast<int64_t>(data.size())},
                      std::string(reinterpret_cast<const char*>(data.data()), data.size() * 4)});
}

absl::Status SafetensorsWriter::Write(const std::string& path) const {
  nlohmann::ordered_json header;
  header["__metadata__"] = metadata_;
  uint64_t offset = 0;
  for (const Tensor& t : tensors_) {
    header[t.name] = {{"dtype", t.dtype}, {"shape", t.shape}, {"data_offsets", {offset, offset + t.bytes.size()}}};
    offset += t.bytes.size();
  }
  std::string text = header.dump();
  text.resize(AlignUp(text.size(), 8u), ' ');
  const uint64_t size = text.size();
  std::string bytes(reinterpret_cast<const char*>(&size), 8);
  bytes += text;
  for (const Tensor& t : tensors_) bytes += t.bytes;
  return WriteFile(path, bytes);
}

}  // namespace xjit::tools
