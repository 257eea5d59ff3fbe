#include "frontend/safetensors.h"

#include <simdjson.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <optional>
#include <unordered_set>

#include "frontend/json.h"
#include "frontend/printable.h"
#include "ir/support/status.h"

namespace xjit {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors data are little-endian and are read in place");

namespace dom = simdjson::dom;

constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the reference implementation's bound

struct SafetensorsType {
  std::string_view name;
  int bits;
  std::optional<DType> type;
};
constexpr std::array kTypes = {
    SafetensorsType{"F32", 32, DType::kF32},     SafetensorsType{"F16", 16, DType::kF16},
    SafetensorsType{"BF16", 16, DType::kBF16},   SafetensorsType{"F64", 64, std::nullopt},
    SafetensorsType{"I64", 64, std::nullopt},    SafetensorsType{"U64", 64, std::nullopt},
    SafetensorsType{"I32", 32, DType::kI32},     SafetensorsType{"U32", 32, std::nullopt},
    SafetensorsType{"I16", 16, std::nullopt},    SafetensorsType{"U16", 16, std::nullopt},
    SafetensorsType{"I8", 8, DType::kI8},        SafetensorsType{"U8", 8, std::nullopt},
    SafetensorsType{"BOOL", 8, std::nullopt},    SafetensorsType{"F8_E4M3", 8, DType::kF8E4M3},
    SafetensorsType{"F8_E5M2", 8, std::nullopt}, SafetensorsType{"F8_E8M0", 8, std::nullopt},
    SafetensorsType{"F6_E2M3", 6, std::nullopt}, SafetensorsType{"F6_E3M2", 6, std::nullopt},
    SafetensorsType{"F4", 4, std::nullopt},      SafetensorsType{"C64", 64, std::nullopt},
};

const SafetensorsType* FindType(std::string_view name) {
  for (const SafetensorsType& row : kTypes) {
    if (row.name == name) return &row;
  }
  return nullptr;
}

// simdjson does not say where a document is wrong; the slower parser does, and sees it the same way but for nesting.
absl::Status JsonError(std::string_view text, std::string_view file, std::string_view place, std::string_view what) {
  if (const auto slow = ParseJson(text, file); !slow.ok()) return slow.status();
  return InvalidArgument("{}: {}: {}", file, place, what);
}

bool IsName(std::string_view name) {
  return !name.empty() && std::none_of(name.begin(), name.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; });
}

// Fills everything but `data`; `begin` and `end` are relative to the data section.
absl::Status ReadEntry(dom::element value, std::string_view file, TensorView& out, uint64_t& begin, uint64_t& end) {
  const auto error = [&](std::string_view what) {
    return InvalidArgument("{}: header: tensor {}: {}", file, Printable(out.name), what);
  };
  dom::object fields;
  if (value.get(fields) != simdjson::SUCCESS) return error("is not an object");
  bool has_dtype = false, has_shape = false, has_offsets = false;
  for (const dom::key_value_pair field : fields) {
    bool* const seen = field.key == "dtype"          ? &has_dtype
                       : field.key == "shape"        ? &has_shape
                       : field.key == "data_offsets" ? &has_offsets
                                                     : nullptr;
    if (seen == nullptr) return error(fmt::format("has unknown key \"{}\"", Printable(field.key)));
    if (*seen) return error(fmt::format("has key \"{}\" twice", field.key));
    *seen = true;
    if (seen == &has_dtype) {
      std::string_view dtype;
      if (field.value.get(dtype) != simdjson::SUCCESS) return error("dtype is not a string");
      out.type_name = Printable(dtype);
      continue;
    }
    dom::array numbers;
    if (field.value.get(numbers) != simdjson::SUCCESS) return error(fmt::format("{} is not a list", field.key));
    std::vector<int64_t> values;
    for (const dom::element number : numbers) {
      int64_t n = 0;
      if (number.get(n) != simdjson::SUCCESS || n < 0) {
        return error(fmt::format("{}[{}] is not an integer from 0 to 2^63 - 1", field.key, values.size()));
      }
      values.push_back(n);
    }
    if (seen == &has_shape) {
      out.shape = std::move(values);
    } else if (values.size() != 2) {
      return error(fmt::format("data_offsets has {} entries, expected 2", values.size()));
    } else {
      begin = static_cast<uint64_t>(values[0]);
      end = static_cast<uint64_t>(values[1]);
    }
  }
  if (!has_dtype || !has_shape || !has_offsets) {
    return error(fmt::format("has no {}", !has_dtype ? "dtype" : !has_shape ? "shape" : "data_offsets"));
  }
  return absl::OkStatus();
}

absl::Status PlaceTensor(TensorView& tensor, uint64_t begin, uint64_t end, uint64_t data_start,
                         std::span<const std::byte> bytes, std::string_view file) {
  const auto error = [&](std::string_view what) {
    return InvalidArgument("{}: tensor {}: {}", file, Printable(tensor.name), what);
  };
  const uint64_t room = bytes.size() - data_start;
  if (begin > end) return error(fmt::format("data_offsets [{}, {}] are not in order", begin, end));
  if (end > room) {
    return error(fmt::format("its data [{}, {}] after byte {} end past the file of {} bytes (is it truncated?)", begin,
                             end, data_start, bytes.size()));
  }
  const std::optional<int64_t> count = CountElements(tensor.shape);
  if (!count) return error("its number of elements passes 2^62");
  if (const SafetensorsType* type = FindType(tensor.type_name); type != nullptr) {
    tensor.type = type->type;
    // In 128 bits, as 2^62 elements of 64 bits do not fit 64.
    const auto bits = static_cast<unsigned __int128>(*count) * static_cast<unsigned>(type->bits);
    if (bits != static_cast<unsigned __int128>(end - begin) * 8) {
      return error(fmt::format("{} bytes of data for {} elements of {}", end - begin, *count, type->name));
    }
  }
  tensor.offset = data_start + begin;
  tensor.data = bytes.subspan(tensor.offset, end - begin);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<TensorView>> ParseSafetensors(std::span<const std::byte> bytes, std::string_view file) {
  uint64_t header_bytes = 0;
  if (bytes.size() < sizeof(header_bytes)) {
    return InvalidArgument("{}: byte 0: the header's length needs 8 bytes, the file has {} (it is truncated)", file,
                           bytes.size());
  }
  std::memcpy(&header_bytes, bytes.data(), sizeof(header_bytes));
  const uint64_t left = bytes.size() - sizeof(header_bytes);
  if (header_bytes > left || header_bytes > kMaxHeaderBytes) {
    return InvalidArgument(
        "{}: byte 0: the header has {} bytes, {} are left and at most {} are read (the file is "
        "truncated or not safetensors)",
        file, header_bytes, left, kMaxHeaderBytes);
  }
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()) + sizeof(header_bytes), header_bytes);
  const uint64_t data_start = sizeof(header_bytes) + header_bytes;

  dom::parser parser;
  dom::object header;
  const simdjson::padded_string padded(text);
  if (const auto code = parser.parse(padded).get(header); code != simdjson::SUCCESS) {
    return JsonError(text, fmt::format("{}: header", file), "byte 8", simdjson::error_message(code));
  }
  std::vector<TensorView> tensors;
  std::unordered_set<std::string_view> names;
  for (const dom::key_value_pair entry : header) {
    if (!names.insert(entry.key).second) {
      return InvalidArgument("{}: header: duplicate key \"{}\"", file, Printable(entry.key));
    }
    if (entry.key == "__metadata__") {
      if (!entry.value.is_object()) return InvalidArgument("{}: header: __metadata__: is not an object", file);
      continue;
    }
    if (!IsName(entry.key)) {
      return InvalidArgument("{}: header: \"{}\" is not a tensor name", file, Printable(entry.key));
    }
    TensorView tensor;
    tensor.name = entry.key;
    tensor.file = file;
    uint64_t begin = 0, end = 0;
    XJIT_RETURN_IF_ERROR(ReadEntry(entry.value, file, tensor, begin, end));
    XJIT_RETURN_IF_ERROR(PlaceTensor(tensor, begin, end, data_start, bytes, file));
    tensors.push_back(std::move(tensor));
  }
  XJIT_RETURN_IF_ERROR(CheckNoOverlap(tensors, file));
  return tensors;
}

absl::StatusOr<std::vector<std::pair<std::string, std::string>>> ParseSafetensorsIndex(std::string_view text,
                                                                                       std::string_view file) {
  dom::parser parser;
  dom::object root, map;
  const simdjson::padded_string padded(text);
  if (const auto code = parser.parse(padded).get(root); code != simdjson::SUCCESS) {
    return JsonError(text, file, "document", simdjson::error_message(code));
  }
  if (root["weight_map"].get(map) != simdjson::SUCCESS) {
    return InvalidArgument("{}: weight_map: missing, or not an object", file);
  }
  std::vector<std::pair<std::string, std::string>> out;
  std::unordered_set<std::string_view> names;
  for (const dom::key_value_pair entry : map) {
    const std::string place = fmt::format("{}: weight_map.{}", file, Printable(entry.key));
    std::string_view shard;
    if (entry.value.get(shard) != simdjson::SUCCESS) return InvalidArgument("{}: is not a string", place);
    if (!IsName(shard) || shard.find('/') != shard.npos || shard == "." || shard == "..") {
      return InvalidArgument("{}: \"{}\" is not the name of a file in this folder", place, Printable(shard));
    }
    if (!names.insert(entry.key).second) return InvalidArgument("{}: duplicate key", place);
    out.emplace_back(entry.key, shard);
  }
  if (out.empty()) return InvalidArgument("{}: weight_map: is empty", file);
  return out;
}

}  // namespace xjit
