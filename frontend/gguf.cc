#include "frontend/gguf.h"

#include <simdjson.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <unordered_set>
#include <utility>

#include "frontend/gguf_types.h"
#include "frontend/printable.h"
#include "ir/support/align.h"
#include "ir/support/status.h"

namespace xjit {
namespace {

static_assert(std::endian::native == std::endian::little, "GGUF files are little-endian and are read in place");

constexpr uint64_t kDefaultAlignment = 32;
constexpr uint64_t kMaxAlignment = 1 << 30;
constexpr uint32_t kMaxDims = 4;             // GGML_MAX_DIMS
constexpr uint64_t kMaxNameBytes = 1 << 12;  // ggml itself stops at 64 for tensors, 65535 for keys
constexpr int kMaxArrayDepth = 4;            // no known file nests arrays at all
// The least bytes of a metadata entry (empty key, type, one byte) and of a tensor record (empty name, no dimensions).
constexpr uint64_t kMinEntryBytes = 8 + 4 + 1;
constexpr uint64_t kMinTensorBytes = 8 + 4 + 4 + 8;

constexpr std::string_view kTypeNames[] = {"u8",   "i8",     "u16",   "i16", "u32", "i32", "f32",
                                           "bool", "string", "array", "u64", "i64", "f64"};
constexpr uint64_t kTypeBytes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
constexpr uint32_t kNumTypes = std::size(kTypeBytes);

std::string_view TypeName(GgufType type) { return kTypeNames[static_cast<uint32_t>(type)]; }
uint64_t TypeBytes(GgufType type) { return kTypeBytes[static_cast<uint32_t>(type)]; }

// Walks the header; no read leaves the bytes.
class Reader {
 public:
  Reader(std::span<const std::byte> bytes, std::string_view file) : bytes_(bytes), file_(file) {}

  uint64_t pos() const { return pos_; }
  uint64_t left() const { return bytes_.size() - pos_; }

  template <typename... Args>
  absl::Status Error(fmt::format_string<Args...> format, Args&&... args) const {
    return ErrorAt(pos_, fmt::format(format, std::forward<Args>(args)...));
  }
  absl::Status ErrorAt(uint64_t pos, std::string_view what) const {
    return InvalidArgument("{}: byte {}: {}", file_, pos, what);
  }

  template <typename T>
  absl::Status Read(T& out, std::string_view what) {
    if (left() < sizeof(T)) {
      return Error("{} needs {} bytes, {} are left (the file is truncated)", what, sizeof(T), left());
    }
    std::memcpy(&out, bytes_.data() + pos_, sizeof(T));
    pos_ += sizeof(T);
    return absl::OkStatus();
  }

  absl::Status ReadBytes(std::span<const std::byte>& out, uint64_t size, std::string_view what) {
    if (left() < size) return Error("{} needs {} bytes, {} are left (the file is truncated)", what, size, left());
    out = bytes_.subspan(pos_, size);
    pos_ += size;
    return absl::OkStatus();
  }

  absl::Status ReadString(std::span<const std::byte>& out, std::string_view what) {
    uint64_t size = 0;
    XJIT_RETURN_IF_ERROR(Read(size, what));
    return ReadBytes(out, size, what);
  }

  // A key or tensor name: text that messages, listings and JSON output can carry.
  absl::Status ReadName(std::string_view& out, std::string_view what) {
    const uint64_t start = pos_;
    std::span<const std::byte> bytes;
    XJIT_RETURN_IF_ERROR(ReadString(bytes, what));
    out = {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
    if (out.empty() || out.size() > kMaxNameBytes) {
      return ErrorAt(start, fmt::format("{} has {} bytes, expected 1 to {}", what, out.size(), kMaxNameBytes));
    }
    const bool control = std::any_of(out.begin(), out.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; });
    if (control || !simdjson::validate_utf8(out.data(), out.size())) {
      return ErrorAt(start, fmt::format("{} is not text: \"{}\"", what, Printable(out)));
    }
    return absl::OkStatus();
  }

  absl::Status ReadType(GgufType& out, std::string_view key) {
    const uint64_t start = pos_;
    uint32_t type = 0;
    XJIT_RETURN_IF_ERROR(Read(type, "a value's type"));
    if (type >= kNumTypes) {
      return ErrorAt(start, fmt::format("{} has unknown value type {}", Printable(key), type));
    }
    out = static_cast<GgufType>(type);
    return absl::OkStatus();
  }

  absl::Status ReadValue(GgufValue& out, std::string_view key) {
    XJIT_RETURN_IF_ERROR(ReadType(out.type, key));
    if (out.type == GgufType::kArray) {
      XJIT_RETURN_IF_ERROR(ReadArrayHead(out.element, out.count, key));
      out.offset = pos_;
      XJIT_RETURN_IF_ERROR(SkipElements(out.element, out.count, key, 1));
      out.bytes = bytes_.subspan(out.offset, pos_ - out.offset);
      return absl::OkStatus();
    }
    out.offset = pos_;
    if (out.type == GgufType::kString) return ReadString(out.bytes, Printable(key));
    return ReadBytes(out.bytes, TypeBytes(out.type), Printable(key));
  }

 private:
  absl::Status ReadArrayHead(GgufType& element, uint64_t& count, std::string_view key) {
    XJIT_RETURN_IF_ERROR(ReadType(element, key));
    return Read(count, "an array's length");
  }

  absl::Status SkipElements(GgufType element, uint64_t count, std::string_view key, int depth) {
    // The least bytes of one element; a string or array has at least its length.
    const uint64_t least = element == GgufType::kString ? 8 : element == GgufType::kArray ? 12 : TypeBytes(element);
    if (count > left() / least) {
      return Error("{} is an array of {} {}, but {} bytes are left (the file is truncated or corrupt)", Printable(key),
                   count, TypeName(element), left());
    }
    if (element != GgufType::kString && element != GgufType::kArray) {
      pos_ += count * least;
      return absl::OkStatus();
    }
    if (depth >= kMaxArrayDepth) return Error("{} nests arrays more than {} deep", Printable(key), kMaxArrayDepth);
    for (uint64_t i = 0; i < count; ++i) {
      if (element == GgufType::kString) {
        std::span<const std::byte> ignored;
        XJIT_RETURN_IF_ERROR(ReadString(ignored, key));
      } else {
        GgufType inner = GgufType::kU8;
        uint64_t inner_count = 0;
        XJIT_RETURN_IF_ERROR(ReadArrayHead(inner, inner_count, key));
        XJIT_RETURN_IF_ERROR(SkipElements(inner, inner_count, key, depth + 1));
      }
    }
    return absl::OkStatus();
  }

  std::span<const std::byte> bytes_;
  std::string_view file_;
  uint64_t pos_ = 0;
};

// Offsets are relative to the data section, whose place is known only after the last record.
absl::Status ReadTensorRecord(Reader& reader, TensorView& out, uint32_t& type_id) {
  std::string_view name;
  XJIT_RETURN_IF_ERROR(reader.ReadName(name, "a tensor's name"));
  out.name = name;
  const uint64_t place = reader.pos();
  uint32_t dims = 0;
  XJIT_RETURN_IF_ERROR(reader.Read(dims, "a tensor's number of dimensions"));
  if (dims > kMaxDims) {
    return reader.ErrorAt(place, fmt::format("tensor {} has {} dimensions, at most {} are read", name, dims, kMaxDims));
  }
  for (uint32_t i = 0; i < dims; ++i) {
    const uint64_t at = reader.pos();
    uint64_t dim = 0;
    XJIT_RETURN_IF_ERROR(reader.Read(dim, "a tensor's dimension"));
    if (dim == 0 || dim > INT64_MAX) {
      return reader.ErrorAt(at, fmt::format("tensor {} has dimension {}, expected at least 1", name, dim));
    }
    out.shape.push_back(static_cast<int64_t>(dim));
  }
  // The file lists the contiguous dimension first.
  std::reverse(out.shape.begin(), out.shape.end());
  XJIT_RETURN_IF_ERROR(reader.Read(type_id, "a tensor's type"));
  return reader.Read(out.offset, "a tensor's offset");
}

// Turns the relative offset into an absolute one and fills type and data.
absl::Status PlaceTensor(TensorView& tensor, uint32_t type_id, uint64_t alignment, uint64_t data_start,
                         std::span<const std::byte> bytes, std::string_view file) {
  const auto error = [&](std::string_view what) {
    return InvalidArgument("{}: tensor {}: {}", file, Printable(tensor.name), what);
  };
  const std::optional<int64_t> count = CountElements(tensor.shape);
  if (!count) return error("its number of elements passes 2^62");
  if (tensor.offset % alignment != 0) {
    return error(fmt::format("its data offset {} is not a multiple of the alignment {}", tensor.offset, alignment));
  }
  const uint64_t room = data_start > bytes.size() ? 0 : bytes.size() - data_start;
  if (tensor.offset > room || data_start > bytes.size()) {
    return error(fmt::format("its data starts at byte {} + {}, past the end of the file of {} bytes (is it truncated?)",
                             data_start, tensor.offset, bytes.size()));
  }
  const uint64_t relative = tensor.offset;
  tensor.offset += data_start;
  const GgmlType* type = FindGgmlType(type_id);
  if (type == nullptr) {
    tensor.type_name = fmt::format("ggml type {}", type_id);
    return absl::OkStatus();
  }
  tensor.type = type->type;
  tensor.type_name = type->name;
  const int64_t row = tensor.shape.empty() ? 1 : tensor.shape.back();
  if (row % type->block_elems != 0) {
    return error(
        fmt::format("its rows of {} elements are not whole blocks of {} ({})", row, type->block_elems, type->name));
  }
  const uint64_t blocks = static_cast<uint64_t>(*count / type->block_elems);
  const auto block_bytes = static_cast<uint64_t>(type->block_bytes);
  if (blocks > (room - relative) / block_bytes) {
    return error(fmt::format("its {} blocks of {} bytes at byte {} end past the file of {} bytes (is it truncated?)",
                             blocks, block_bytes, tensor.offset, bytes.size()));
  }
  tensor.data = bytes.subspan(tensor.offset, blocks * block_bytes);
  return absl::OkStatus();
}

// Integers of any width, from an element's bytes. Nullopt: past int64, or not an integer type.
std::optional<int64_t> LoadInt(GgufType type, const std::byte* from) {
  const auto load = [from]<typename T>(T value) {
    std::memcpy(&value, from, sizeof(T));
    return value;
  };
  switch (type) {
    case GgufType::kU8:
      return load(uint8_t{});
    case GgufType::kI8:
      return load(int8_t{});
    case GgufType::kU16:
      return load(uint16_t{});
    case GgufType::kI16:
      return load(int16_t{});
    case GgufType::kU32:
      return load(uint32_t{});
    case GgufType::kI32:
      return load(int32_t{});
    case GgufType::kI64:
      return load(int64_t{});
    case GgufType::kU64: {
      const uint64_t value = load(uint64_t{});
      if (value > INT64_MAX) return std::nullopt;
      return static_cast<int64_t>(value);
    }
    default:
      return std::nullopt;
  }
}

std::string_view AsText(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace

absl::StatusOr<GgufFile> GgufFile::Parse(std::span<const std::byte> bytes, std::string_view file) {
  GgufFile out;
  out.file_ = file;
  Reader reader(bytes, file);
  std::span<const std::byte> magic;
  XJIT_RETURN_IF_ERROR(reader.ReadBytes(magic, 4, "the magic \"GGUF\""));
  if (AsText(magic) != "GGUF") {
    return reader.ErrorAt(0, fmt::format("is not a GGUF file: it starts with \"{}\"", Printable(AsText(magic))));
  }
  XJIT_RETURN_IF_ERROR(reader.Read(out.version_, "the version"));
  if (out.version_ != 2 && out.version_ != 3) {
    const uint32_t swapped = __builtin_bswap32(out.version_);
    if (swapped == 2 || swapped == 3)
      return reader.ErrorAt(4, "is a big-endian GGUF file (convert it to little-endian)");
    return reader.ErrorAt(4, fmt::format("has GGUF version {}, expected 2 or 3", out.version_));
  }
  uint64_t num_tensors = 0, num_entries = 0;
  XJIT_RETURN_IF_ERROR(reader.Read(num_tensors, "the number of tensors"));
  XJIT_RETURN_IF_ERROR(reader.Read(num_entries, "the number of metadata entries"));
  if (num_entries > reader.left() / kMinEntryBytes || num_tensors > reader.left() / kMinTensorBytes) {
    return reader.ErrorAt(8, fmt::format("lists {} tensors and {} metadata entries, more than its {} bytes can hold "
                                         "(the file is truncated or corrupt)",
                                         num_tensors, num_entries, bytes.size()));
  }

  for (uint64_t i = 0; i < num_entries; ++i) {
    const uint64_t place = reader.pos();
    std::string_view key;
    GgufValue value;
    XJIT_RETURN_IF_ERROR(reader.ReadName(key, "a metadata key"));
    XJIT_RETURN_IF_ERROR(reader.ReadValue(value, key));
    if (!out.index_.emplace(key, out.metadata_.size()).second) {
      return reader.ErrorAt(place, fmt::format("duplicate metadata key {}", Printable(key)));
    }
    out.metadata_.emplace_back(key, value);
  }

  uint64_t alignment = kDefaultAlignment;
  XJIT_ASSIGN_OR_RETURN(const std::optional<int64_t> stated, out.Int("general.alignment"));
  if (stated) {
    alignment = static_cast<uint64_t>(*stated);
    if (alignment > kMaxAlignment || !std::has_single_bit(alignment)) {
      return InvalidArgument("{}: general.alignment: is {}, expected a power of two up to {}", file, *stated,
                             kMaxAlignment);
    }
  }

  std::vector<uint32_t> types;
  std::unordered_set<std::string> names;
  for (uint64_t i = 0; i < num_tensors; ++i) {
    const uint64_t place = reader.pos();
    TensorView tensor;
    tensor.file = file;
    XJIT_RETURN_IF_ERROR(ReadTensorRecord(reader, tensor, types.emplace_back()));
    if (!names.insert(tensor.name).second) {
      return reader.ErrorAt(place, fmt::format("duplicate tensor {}", Printable(tensor.name)));
    }
    out.tensors_.push_back(std::move(tensor));
  }
  const uint64_t data_start = AlignUp(reader.pos(), alignment);
  for (size_t i = 0; i < types.size(); ++i) {
    XJIT_RETURN_IF_ERROR(PlaceTensor(out.tensors_[i], types[i], alignment, data_start, bytes, file));
  }
  XJIT_RETURN_IF_ERROR(CheckNoOverlap(out.tensors_, file));
  return out;
}

const GgufValue* GgufFile::Find(std::string_view key) const {
  const auto it = index_.find(key);
  return it == index_.end() ? nullptr : &metadata_[it->second].second;
}

const TensorView* GgufFile::FindTensor(std::string_view name) const {
  const auto it = std::find_if(tensors_.begin(), tensors_.end(), [&](const auto& t) { return t.name == name; });
  return it == tensors_.end() ? nullptr : &*it;
}

absl::Status GgufFile::WrongType(std::string_view key, const GgufValue& value, std::string_view expected) const {
  const bool array = value.type == GgufType::kArray;
  return InvalidArgument("{}: {}: has type {}{}, expected {} (its value is at byte {})", file_, key,
                         array ? "array of " : "", TypeName(array ? value.element : value.type), expected,
                         value.offset);
}

absl::StatusOr<std::optional<int64_t>> GgufFile::Int(std::string_view key) const {
  const GgufValue* value = Find(key);
  if (value == nullptr) return std::optional<int64_t>();
  const std::optional<int64_t> number = LoadInt(value->type, value->bytes.data());
  if (!number) return WrongType(key, *value, "an integer below 2^63");
  return number;
}

absl::StatusOr<std::optional<double>> GgufFile::Number(std::string_view key) const {
  const GgufValue* value = Find(key);
  if (value == nullptr) return std::optional<double>();
  if (value->type == GgufType::kF32) {
    float number;
    std::memcpy(&number, value->bytes.data(), sizeof(number));
    return std::optional<double>(number);
  }
  if (value->type == GgufType::kF64) {
    double number;
    std::memcpy(&number, value->bytes.data(), sizeof(number));
    return std::optional<double>(number);
  }
  const std::optional<int64_t> number = LoadInt(value->type, value->bytes.data());
  if (!number) return WrongType(key, *value, "a number");
  return std::optional<double>(static_cast<double>(*number));
}

absl::StatusOr<std::optional<bool>> GgufFile::Bool(std::string_view key) const {
  const GgufValue* value = Find(key);
  if (value == nullptr) return std::optional<bool>();
  if (value->type != GgufType::kBool) return WrongType(key, *value, "bool");
  return std::optional<bool>(value->bytes[0] != std::byte{0});
}

absl::StatusOr<std::optional<std::string_view>> GgufFile::String(std::string_view key) const {
  const GgufValue* value = Find(key);
  if (value == nullptr) return std::optional<std::string_view>();
  if (value->type != GgufType::kString) return WrongType(key, *value, "string");
  return std::optional<std::string_view>(AsText(value->bytes));
}

absl::StatusOr<std::vector<std::string_view>> GgufFile::Strings(std::string_view key) const {
  std::vector<std::string_view> strings;
  const GgufValue* value = Find(key);
  if (value == nullptr) return strings;
  if (value->type != GgufType::kArray || value->element != GgufType::kString) {
    return WrongType(key, *value, "array of string");
  }
  // Parse() has walked these lengths already.
  strings.reserve(value->count);
  const std::byte* at = value->bytes.data();
  for (uint64_t i = 0; i < value->count; ++i) {
    uint64_t size;
    std::memcpy(&size, at, sizeof(size));
    strings.emplace_back(reinterpret_cast<const char*>(at) + sizeof(size), size);
    at += sizeof(size) + size;
  }
  return strings;
}

absl::StatusOr<std::vector<float>> GgufFile::Floats(std::string_view key) const {
  const GgufValue* value = Find(key);
  if (value == nullptr) return std::vector<float>();
  if (value->type != GgufType::kArray || value->element != GgufType::kF32) {
    return WrongType(key, *value, "array of f32");
  }
  std::vector<float> numbers(value->count);
  // An empty vector's data may be null, which memcpy must not get.
  if (!numbers.empty()) std::memcpy(numbers.data(), value->bytes.data(), value->bytes.size());
  return numbers;
}

absl::StatusOr<std::vector<int64_t>> GgufFile::Ints(std::string_view key) const {
  std::vector<int64_t> numbers;
  const GgufValue* value = Find(key);
  if (value == nullptr) return numbers;
  if (value->type != GgufType::kArray) return WrongType(key, *value, "array of integers");
  const uint64_t bytes = TypeBytes(value->element);
  if (bytes == 0) return WrongType(key, *value, "array of integers");
  numbers.reserve(value->count);
  for (uint64_t i = 0; i < value->count; ++i) {
    const std::optional<int64_t> number = LoadInt(value->element, value->bytes.data() + i * bytes);
    if (!number) return WrongType(key, *value, "array of integers below 2^63");
    numbers.push_back(*number);
  }
  return numbers;
}

}  // namespace xjit
