// Where the tests of this folder find their expected results, and what they share in reading them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "frontend/text/text.h"

namespace xjit::text::test {

using Json = nlohmann::ordered_json;

// The folder of expected results, or nothing: then the test is skipped.
std::optional<std::filesystem::path> SharedDir();
// Where tests/fetch_tokenizers.sh puts tokenizers: $XJIT_TOKENIZERS or ~/.cache/xjit/tokenizers.
std::filesystem::path FetchedDir();

std::optional<std::string> ReadFile(const std::filesystem::path& path);
// One JSON value a line.
std::vector<Json> ReadLines(const std::filesystem::path& path);
// index.json of the text vectors.
const Json& Index();

// The files of a tokenizer by its name in index.json, or nothing where they aren't on this machine.
struct Files {
  std::string json;
  std::string config;                // tokenizer_config.json, made from index.json where there is none
  std::optional<std::string> jinja;  // where the template isn't in config
};
std::optional<Files> FindFiles(const std::string& name);

// A GGUF vocabulary with the storage behind its views.
struct OwnedVocabulary {
  std::string model, pre, chat_template;
  std::vector<std::string> tokens, merges;
  std::vector<float> scores;
  std::vector<int32_t> types;
  std::optional<uint32_t> bos, eos, unk, pad;
  std::optional<bool> add_bos, add_eos, add_space_prefix;
  GgufVocabulary View() const;
};

// Reads the metadata tokenizer.* of a GGUF file, trusting it: files here are our own.
std::optional<OwnedVocabulary> ReadGgufVocabulary(const std::filesystem::path& path);

// The vocabulary as a converter to GGUF would write it: `pre` empty for the SentencePiece kind, whose scores are then
// the order of the merges.
OwnedVocabulary ConvertToGguf(const std::string& tokenizer_json, const std::string& pre);

}  // namespace xjit::text::test
