#include "frontend/json.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "frontend/printable.h"
#include "ir/support/status.h"

namespace xjit {
namespace {

// Builds the document from the parser's events: the library's own builder keeps the last of duplicate keys, has no
// bound on nesting and reports errors without their place.
class Builder final : public nlohmann::json_sax<Json> {
 public:
  Json TakeRoot() { return std::move(root_); }
  const std::string& error() const { return error_; }
  size_t error_byte() const { return error_byte_; }  // 0 when not known

  bool null() override { return Add(Json(nullptr)) != nullptr; }
  bool boolean(bool value) override { return Add(Json(value)) != nullptr; }
  bool number_integer(int64_t value) override { return Add(Json(value)) != nullptr; }
  bool number_unsigned(uint64_t value) override { return Add(Json(value)) != nullptr; }
  bool number_float(double value, const std::string&) override { return Add(Json(value)) != nullptr; }
  bool string(std::string& value) override { return Add(Json(std::move(value))) != nullptr; }
  bool binary(Json::binary_t&) override { return false; }
  bool start_object(size_t) override { return Open(Json::object()); }
  bool start_array(size_t) override { return Open(Json::array()); }
  bool end_object() override { return Close(); }
  bool end_array() override { return Close(); }
  bool key(std::string& name) override {
    const auto [it, fresh] = stack_.back()->get_ref<Json::object_t&>().try_emplace(name, nullptr);
    if (!fresh) return Fail(fmt::format("duplicate key \"{}\"", Printable(name)));
    slot_ = &it->second;
    return true;
  }
  bool parse_error(size_t byte, const std::string&, const Json::exception& error) override {
    error_byte_ = byte;
    // "[json.exception.parse_error.101] parse error at line 1, column 2: syntax error while ...": only the last part
    // is news.
    std::string_view what = error.what();
    if (const size_t column = what.find(", column "); column != what.npos) {
      if (const size_t colon = what.find(": ", column); colon != what.npos) what.remove_prefix(colon + 2);
    } else if (const size_t bracket = what.find("] "); bracket != what.npos) {
      what.remove_prefix(bracket + 2);
    }
    return Fail(Printable(what, 300));
  }

 private:
  bool Fail(std::string what) {
    error_ = std::move(what);
    return false;
  }
  Json* Add(Json value) {
    if (stack_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    if (stack_.back()->is_array()) {
      auto& items = stack_.back()->get_ref<Json::array_t&>();
      items.push_back(std::move(value));
      return &items.back();
    }
    *slot_ = std::move(value);
    return slot_;
  }
  bool Open(Json container) {
    if (stack_.size() >= kMaxJsonDepth) return Fail(fmt::format("nested more than {} deep", kMaxJsonDepth));
    stack_.push_back(Add(std::move(container)));
    return true;
  }
  bool Close() {
    stack_.pop_back();
    return true;
  }

  Json root_;
  std::vector<Json*> stack_;  // an array grows only while its last element is closed, so the pointers stay valid
  Json* slot_ = nullptr;
  std::string error_;
  size_t error_byte_ = 0;
};

std::string Shown(const Json& value) {
  if (value.is_object()) return "an object";
  if (value.is_array()) return "a list";
  return Printable(value.dump(-1, ' ', true, Json::error_handler_t::replace), 60);
}

absl::StatusOr<int64_t> ToInt(const Json& value, std::string_view place, int64_t min, int64_t max) {
  int64_t number = 0;
  bool fits = true;
  if (value.is_number_unsigned()) {
    const auto wide = value.get<uint64_t>();
    fits = wide <= INT64_MAX;
    number = static_cast<int64_t>(fits ? wide : 0);
  } else if (value.is_number_integer()) {
    number = value.get<int64_t>();
  } else if (value.is_number_float()) {
    // Python writes some integers as 8192.0.
    const double real = value.get<double>();
    if (std::trunc(real) != real) return InvalidArgument("{}: is {}, expected an integer", place, Shown(value));
    fits = std::abs(real) < 0x1p62;
    number = fits ? static_cast<int64_t>(real) : 0;
  } else {
    return InvalidArgument("{}: is {}, expected an integer", place, Shown(value));
  }
  if (!fits || number < min || number > max) {
    return InvalidArgument("{}: is {}, expected {} to {}", place, Shown(value), min, max);
  }
  return number;
}

absl::StatusOr<std::string> ToString(const Json& value, std::string_view place) {
  if (!value.is_string()) return InvalidArgument("{}: is {}, expected a string", place, Shown(value));
  return value.get<std::string>();
}

absl::StatusOr<double> ToNumber(const Json& value, std::string_view place, double min, double max) {
  if (!value.is_number()) return InvalidArgument("{}: is {}, expected a number", place, Shown(value));
  const double number = value.get<double>();
  if (!(number >= min && number <= max)) {
    return InvalidArgument("{}: is {}, expected {} to {}", place, Shown(value), min, max);
  }
  return number;
}

}  // namespace

absl::StatusOr<Json> ParseJson(std::string_view text, std::string_view file) {
  if (text.size() > kMaxJsonBytes) {
    return InvalidArgument("{}: is {} bytes of JSON, at most {} are read", file, text.size(), kMaxJsonBytes);
  }
  Builder builder;
  if (Json::sax_parse(text.begin(), text.end(), &builder)) return builder.TakeRoot();
  if (builder.error_byte() == 0) return InvalidArgument("{}: {}", file, builder.error());
  // The byte is the one-based position of the last character read.
  const std::string_view before = text.substr(0, std::min(builder.error_byte() - 1, text.size()));
  const auto line = 1 + std::count(before.begin(), before.end(), '\n');
  const size_t newline = before.rfind('\n');
  const size_t column = before.size() - (newline == before.npos ? 0 : newline + 1) + 1;
  return InvalidArgument("{}:{}:{}: {}", file, line, column, builder.error());
}

absl::StatusOr<JsonObject> JsonObject::From(const Json& value, std::string_view file, std::string path) {
  if (!value.is_object()) {
    return InvalidArgument("{}{}{}: is {}, expected an object", file, path.empty() ? "" : ": ", path, Shown(value));
  }
  return JsonObject(&value, file, std::move(path));
}

const Json* JsonObject::Find(std::string_view key) const {
  const auto& items = value_->get_ref<const Json::object_t&>();
  const auto it = items.find(std::string(key));
  return it == items.end() || it->second.is_null() ? nullptr : &it->second;
}

std::string JsonObject::Place(std::string_view key) const {
  return fmt::format("{}: {}{}{}", file_, path_, path_.empty() ? "" : ".", key);
}

absl::StatusOr<int64_t> JsonObject::Int(std::string_view key, int64_t min, int64_t max) const {
  const Json* value = Find(key);
  if (value == nullptr) return InvalidArgument("{}: missing", Place(key));
  return ToInt(*value, Place(key), min, max);
}

absl::StatusOr<int64_t> JsonObject::IntOr(std::string_view key, int64_t fallback, int64_t min, int64_t max) const {
  const Json* value = Find(key);
  if (value == nullptr) return fallback;
  return ToInt(*value, Place(key), min, max);
}

absl::StatusOr<std::string> JsonObject::String(std::string_view key) const {
  const Json* value = Find(key);
  if (value == nullptr) return InvalidArgument("{}: missing", Place(key));
  return ToString(*value, Place(key));
}

absl::StatusOr<std::string> JsonObject::StringOr(std::string_view key, std::string fallback) const {
  const Json* value = Find(key);
  if (value == nullptr) return fallback;
  return ToString(*value, Place(key));
}

absl::StatusOr<bool> JsonObject::BoolOr(std::string_view key, bool fallback) const {
  const Json* value = Find(key);
  if (value == nullptr) return fallback;
  if (!value->is_boolean()) return InvalidArgument("{}: is {}, expected true or false", Place(key), Shown(*value));
  return value->get<bool>();
}

absl::StatusOr<std::optional<double>> JsonObject::Number(std::string_view key, double min, double max) const {
  const Json* value = Find(key);
  if (value == nullptr) return std::optional<double>();
  XJIT_ASSIGN_OR_RETURN(const double number, ToNumber(*value, Place(key), min, max));
  return std::optional<double>(number);
}

absl::StatusOr<double> JsonObject::NumberOr(std::string_view key, double fallback, double min, double max) const {
  XJIT_ASSIGN_OR_RETURN(const std::optional<double> number, Number(key, min, max));
  return number.value_or(fallback);
}

absl::StatusOr<std::vector<int64_t>> JsonObject::Ints(std::string_view key, int64_t min, int64_t max) const {
  std::vector<int64_t> numbers;
  const Json* value = Find(key);
  if (value == nullptr) return numbers;
  if (!value->is_array()) {
    XJIT_ASSIGN_OR_RETURN(const int64_t number, ToInt(*value, Place(key), min, max));
    numbers.push_back(number);
    return numbers;
  }
  for (size_t i = 0; i < value->size(); ++i) {
    XJIT_ASSIGN_OR_RETURN(const int64_t number, ToInt((*value)[i], fmt::format("{}[{}]", Place(key), i), min, max));
    numbers.push_back(number);
  }
  return numbers;
}

absl::StatusOr<std::vector<double>> JsonObject::Numbers(std::string_view key, double min, double max) const {
  std::vector<double> numbers;
  const Json* value = Find(key);
  if (value == nullptr) return numbers;
  if (!value->is_array()) {
    XJIT_ASSIGN_OR_RETURN(const double number, ToNumber(*value, Place(key), min, max));
    numbers.push_back(number);
    return numbers;
  }
  for (size_t i = 0; i < value->size(); ++i) {
    XJIT_ASSIGN_OR_RETURN(const double number, ToNumber((*value)[i], fmt::format("{}[{}]", Place(key), i), min, max));
    numbers.push_back(number);
  }
  return numbers;
}

absl::StatusOr<std::vector<std::string>> JsonObject::Strings(std::string_view key) const {
  std::vector<std::string> strings;
  const Json* value = Find(key);
  if (value == nullptr) return strings;
  if (!value->is_array()) {
    XJIT_ASSIGN_OR_RETURN(std::string text, ToString(*value, Place(key)));
    strings.push_back(std::move(text));
    return strings;
  }
  for (size_t i = 0; i < value->size(); ++i) {
    XJIT_ASSIGN_OR_RETURN(std::string text, ToString((*value)[i], fmt::format("{}[{}]", Place(key), i)));
    strings.push_back(std::move(text));
  }
  return strings;
}

absl::StatusOr<std::optional<JsonObject>> JsonObject::Object(std::string_view key) const {
  const Json* value = Find(key);
  if (value == nullptr) return std::optional<JsonObject>();
  XJIT_ASSIGN_OR_RETURN(JsonObject object,
                        From(*value, file_, fmt::format("{}{}{}", path_, path_.empty() ? "" : ".", key)));
  return std::optional<JsonObject>(std::move(object));
}

}  // namespace xjit
