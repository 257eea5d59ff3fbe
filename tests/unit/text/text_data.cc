#include "tests/unit/text/text_data.h"

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>

namespace xjit::text::test {

namespace fs = std::filesystem;

std::optional<fs::path> SharedDir() {
  const fs::path dir = XJIT_SHARED_DIR;
  if (!fs::exists(dir / "text" / "index.json")) return std::nullopt;
  return dir;
}

fs::path FetchedDir() {
  if (const char* dir = std::getenv("XJIT_TOKENIZERS")) return dir;
  const char* home = std::getenv("HOME");
  return fs::path(home ? home : ".") / ".cache/xjit/tokenizers";
}

std::optional<std::string> ReadFile(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return std::nullopt;
  return std::string(std::istreambuf_iterator<char>(in), {});
}

std::vector<Json> ReadLines(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::vector<Json> values;
  for (std::string line; std::getline(in, line);) values.push_back(Json::parse(line));
  return values;
}

const Json& Index() {
  static const Json index = Json::parse(ReadFile(*SharedDir() / "text/index.json").value());
  return index;
}

std::optional<Files> FindFiles(const std::string& name) {
  const Json& entry = Index().at(name);
  const bool in_shared = entry.at("in_shared");
  const fs::path text = *SharedDir() / "text";
  const auto json = ReadFile((in_shared ? text / "tokenizers" / name : FetchedDir() / name) / "tokenizer.json");
  if (!json) return std::nullopt;
  Files files;
  files.json = *json;
  const Json& chat = entry.at("chat_template");
  if (chat.at("origin") == "package") {
    const auto config = ReadFile(FetchedDir() / name / "tokenizer_config.json");
    if (!config) return std::nullopt;
    files.config = *config;
  } else {
    Json config;
    for (const char* key : {"bos_token", "eos_token", "unk_token"}) config[key] = entry.at(key);
    files.config = config.dump();
    files.jinja = ReadFile(text / chat.at("file").get<std::string>()).value();
  }
  return files;
}

GgufVocabulary OwnedVocabulary::View() const {
  GgufVocabulary v{.model = model,
                   .pre = std::nullopt,
                   .tokens = {tokens.begin(), tokens.end()},
                   .scores = scores,
                   .types = types,
                   .merges = {merges.begin(), merges.end()},
                   .bos = bos,
                   .eos = eos,
                   .unk = unk,
                   .pad = pad,
                   .add_bos = add_bos,
                   .add_eos = add_eos,
                   .add_space_prefix = add_space_prefix,
                   .chat_template = std::nullopt};
  if (!pre.empty()) v.pre = pre;
  if (!chat_template.empty()) v.chat_template = chat_template;
  return v;
}

namespace {

// GGUF 3: "GGUF", version, tensor count, key count, then key, type, value for each.
class Reader {
 public:
  explicit Reader(std::istream& in) : in_(in) {}
  template <typename T>
  T Get() {
    T value{};
    in_.read(reinterpret_cast<char*>(&value), sizeof value);
    return value;
  }
  std::string Text() {
    std::string text(Get<uint64_t>(), '\0');
    in_.read(text.data(), static_cast<std::streamsize>(text.size()));
    return text;
  }
  // A number of any type as the widest of its kind.
  double Number(uint32_t type) {
    switch (type) {
      case 0:
      case 7:
        return Get<uint8_t>();
      case 1:
        return Get<int8_t>();
      case 2:
        return Get<uint16_t>();
      case 3:
        return Get<int16_t>();
      case 4:
        return Get<uint32_t>();
      case 5:
        return Get<int32_t>();
      case 6:
        return Get<float>();
      case 10:
        return static_cast<double>(Get<uint64_t>());
      case 11:
        return static_cast<double>(Get<int64_t>());
      default:
        return Get<double>();
    }
  }

 private:
  std::istream& in_;
};

}  // namespace

std::optional<OwnedVocabulary> ReadGgufVocabulary(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return std::nullopt;
  Reader r(in);
  r.Get<uint32_t>();
  r.Get<uint32_t>();
  r.Get<uint64_t>();
  OwnedVocabulary v;
  for (uint64_t keys = r.Get<uint64_t>(); keys > 0 && in; --keys) {
    const std::string key = r.Text();
    const auto type = r.Get<uint32_t>();
    if (type == 8) {
      const std::string text = r.Text();
      if (key == "tokenizer.ggml.model") v.model = text;
      if (key == "tokenizer.ggml.pre") v.pre = text;
      if (key == "tokenizer.chat_template") v.chat_template = text;
    } else if (type == 9) {
      const auto element = r.Get<uint32_t>();
      for (uint64_t n = r.Get<uint64_t>(); n > 0 && in; --n) {
        if (element == 8) {
          const std::string text = r.Text();
          if (key == "tokenizer.ggml.tokens") v.tokens.push_back(text);
          if (key == "tokenizer.ggml.merges") v.merges.push_back(text);
        } else {
          const double number = r.Number(element);
          if (key == "tokenizer.ggml.scores") v.scores.push_back(static_cast<float>(number));
          if (key == "tokenizer.ggml.token_type") v.types.push_back(static_cast<int32_t>(number));
        }
      }
    } else {
      const double number = r.Number(type);
      if (key == "tokenizer.ggml.bos_token_id") v.bos = static_cast<uint32_t>(number);
      if (key == "tokenizer.ggml.eos_token_id") v.eos = static_cast<uint32_t>(number);
      if (key == "tokenizer.ggml.unknown_token_id") v.unk = static_cast<uint32_t>(number);
      if (key == "tokenizer.ggml.padding_token_id") v.pad = static_cast<uint32_t>(number);
      if (key == "tokenizer.ggml.add_bos_token") v.add_bos = number != 0;
      if (key == "tokenizer.ggml.add_eos_token") v.add_eos = number != 0;
      if (key == "tokenizer.ggml.add_space_prefix") v.add_space_prefix = number != 0;
    }
  }
  return v;
}

OwnedVocabulary ConvertToGguf(const std::string& tokenizer_json, const std::string& pre) {
  // Not Json: finding a key in an ordered object takes time in proportion to its size.
  const nlohmann::json root = nlohmann::json::parse(tokenizer_json);
  const nlohmann::json& model = root.at("model");
  OwnedVocabulary v;
  v.model = pre.empty() ? "llama" : "gpt2";
  v.pre = pre;
  std::map<std::string, uint32_t> ids;
  const auto put = [&](const std::string& text, uint32_t id, int32_t type) {
    if (v.tokens.size() <= id) {
      v.tokens.resize(id + 1);
      v.types.resize(id + 1, 1);
    }
    v.tokens[id] = text;
    v.types[id] = type;
    ids[text] = id;
  };
  for (const auto& [text, id] : model.at("vocab").items()) put(text, id, 1);
  for (const nlohmann::json& token : root.at("added_tokens")) {
    put(token.at("content"), token.at("id"), token.at("special").get<bool>() ? 3 : 4);
  }
  const auto halves = [](const nlohmann::json& merge) -> std::pair<std::string, std::string> {
    if (merge.is_array()) return {merge[0], merge[1]};
    const std::string text = merge;
    const size_t at = text.find(' ', 1);
    return {text.substr(0, at), text.substr(at + 1)};
  };
  if (!pre.empty()) {
    for (const nlohmann::json& merge : model.at("merges")) {
      const auto [left, right] = halves(merge);
      v.merges.push_back(left + " " + right);
    }
    return v;
  }
  for (size_t id = 0; id < v.tokens.size(); ++id) {
    const std::string& text = v.tokens[id];
    if (text.size() == 6 && text.starts_with("<0x") && text.ends_with(">")) v.types[id] = 6;
  }
  v.scores.assign(v.tokens.size(), -1e9f);
  const nlohmann::json& merges = model.at("merges");
  for (size_t rank = merges.size(); rank-- > 0;) {
    const auto [left, right] = halves(merges[rank]);
    // Whole numbers up to 2^24 are exact in float.
    v.scores.at(ids.at(left + right)) = -static_cast<float>(rank);
  }
  v.unk = ids.at(model.at("unk_token"));
  return v;
}

}  // namespace xjit::text::test
