// Text from an untrusted file as it may stand in a one-line message.
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>

namespace xjit {

// `text` cut to `max_bytes`, with control characters and bytes outside ASCII written as \xNN.
inline std::string Printable(std::string_view text, size_t max_bytes = 120) {
  std::string out;
  for (const char c : text.substr(0, max_bytes)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte < 0x7f) {
      out += c;
    } else {
      out += fmt::format("\\x{:02x}", byte);
    }
  }
  if (text.size() > max_bytes) out += "...";
  return out;
}

}  // namespace xjit
