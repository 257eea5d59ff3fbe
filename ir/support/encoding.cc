#include "ir/support/encoding.h"

#include <fmt/format.h>

#include <charconv>

#include "ir/support/align.h"

namespace xjit {
namespace {

// Takes the words of "channel", "128x128" or "group 128, zeros" one by one.
std::string_view TakeWord(std::string_view* text) {
  while (!text->empty() && (text->front() == ' ' || text->front() == ',')) text->remove_prefix(1);
  const size_t end = std::min(text->find_first_of(" ,"), text->size());
  const std::string_view word = text->substr(0, end);
  text->remove_prefix(end);
  return word;
}

bool ParsePositive(std::string_view text, int32_t* value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *value);
  return error == std::errc() && end == text.data() + text.size() && *value > 0;
}

bool ParseScales(std::string_view text, DType type, Scales* scales) {
  const std::string_view first = TakeWord(&text);
  if (first == "tensor") {
    scales->kind = Scales::Kind::kTensor;
  } else if (first == "channel") {
    scales->kind = Scales::Kind::kChannel;
  } else if (first == "group") {
    scales->kind = Scales::Kind::kGroup;
    if (!ParsePositive(TakeWord(&text), &scales->cols)) return false;
  } else {
    const size_t x = first.find('x');
    scales->kind = Scales::Kind::kBlock;
    if (x == std::string_view::npos || !ParsePositive(first.substr(0, x), &scales->rows) ||
        !ParsePositive(first.substr(x + 1), &scales->cols)) {
      return false;
    }
  }
  const bool group = scales->kind == Scales::Kind::kGroup;
  for (std::string_view word = TakeWord(&text); !word.empty(); word = TakeWord(&text)) {
    bool* flag = nullptr;
    if (group && word == "zeros") flag = &scales->zeros;
    if (group && word == "act_order") flag = &scales->act_order;
    if (type == DType::kI8 && word == "weight_only") flag = &scales->weight_only;
    if (flag == nullptr || *flag) return false;
    *flag = true;
  }
  return true;
}

}  // namespace

std::string ToString(const Encoding& encoding) {
  const Scales& s = encoding.scales;
  const std::string_view type = Name(encoding.type), only = s.weight_only ? ", weight_only" : "";
  switch (s.kind) {
    case Scales::Kind::kNone:
      break;
    case Scales::Kind::kTensor:
      return fmt::format("{}<tensor{}>", type, only);
    case Scales::Kind::kChannel:
      return fmt::format("{}<channel{}>", type, only);
    case Scales::Kind::kGroup:
      return fmt::format("{}<group {}{}{}{}>", type, s.cols, s.zeros ? ", zeros" : "", s.act_order ? ", act_order" : "",
                         only);
    case Scales::Kind::kBlock:
      return fmt::format("{}<{}x{}{}>", type, s.rows, s.cols, only);
  }
  return std::string(type);
}

std::optional<Encoding> ParseEncoding(std::string_view text) {
  const size_t open = text.find('<');
  const auto type = ParseDType(text.substr(0, open));
  if (!type.has_value()) return std::nullopt;
  Encoding encoding(*type);
  if (open == std::string_view::npos) return encoding;
  if (!text.ends_with('>')) return std::nullopt;
  if (!ParseScales(text.substr(open + 1, text.size() - open - 2), *type, &encoding.scales)) return std::nullopt;
  return encoding;
}

int64_t EncodedBytes(const Encoding& encoding, int64_t n, int64_t k) {
  const DTypeInfo& info = Info(encoding.type);
  const int64_t values = n * (CeilDiv(k, info.block_elems) * info.block_bytes);
  const Scales& s = encoding.scales;
  switch (s.kind) {
    case Scales::Kind::kNone:
      return values;
    case Scales::Kind::kTensor:
      return values + 4;
    case Scales::Kind::kChannel:
      return values + 4 * n;
    case Scales::Kind::kGroup: {
      const int64_t groups = n * CeilDiv(k, s.cols);
      return values + 2 * groups + (s.zeros ? CeilDiv(groups, 2) : 0) + (s.act_order ? 4 * k : 0);
    }
    case Scales::Kind::kBlock:
      return values + 4 * CeilDiv(n, s.rows) * CeilDiv(k, s.cols);
  }
  return values;
}

}  // namespace xjit
