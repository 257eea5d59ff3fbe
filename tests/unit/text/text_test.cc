// The text library on small vocabularies written here: what it refuses, and the rules that need no model's vocabulary.
#include "frontend/text/text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "tests/unit/text/text_data.h"

namespace xjit::text::test {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

// Byte-level: "a" and "b" with their merge, two bytes of "é", a token of four, special tokens.
OwnedVocabulary SmallBpe() {
  OwnedVocabulary v;
  v.model = "gpt2";
  v.pre = "gpt-2";
  v.tokens = {"a", "b", "ab", "\u00c3", "\u00a9", "\u0120", "<|im_end|>", "<tool>", "\u00e2", "<|end|>"};
  v.types = {1, 1, 1, 1, 1, 1, 3, 4, 1, 1};
  v.merges = {"a b"};
  return v;
}

// SentencePiece: byte pieces are all there.
OwnedVocabulary SmallSpm() {
  OwnedVocabulary v;
  v.model = "llama";
  v.tokens = {"<unk>", "<s>", "</s>", "\u2581", "a", "b", "\u2581a", "ab", "\u2581ab"};
  v.types = {2, 3, 3, 1, 1, 1, 1, 1, 1};
  v.scores = {0, 0, 0, -9, -8, -7, -2, -1, -3};
  for (int byte = 0; byte < 256; ++byte) {
    char text[7];
    std::snprintf(text, sizeof text, "<0x%02X>", byte);
    v.tokens.push_back(text);
    v.types.push_back(6);
    v.scores.push_back(0);
  }
  v.bos = 1;
  v.eos = 2;
  v.unk = 0;
  return v;
}

constexpr uint32_t kByte0 = 9;  // of SmallSpm

Tokenizer Load(const OwnedVocabulary& v) {
  auto tokenizer = Tokenizer::FromGguf(v.View());
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.error().message;
  return std::move(*tokenizer);
}

std::string Refused(const OwnedVocabulary& v) {
  const auto tokenizer = Tokenizer::FromGguf(v.View());
  EXPECT_FALSE(tokenizer.ok());
  if (tokenizer.ok()) return "";
  EXPECT_EQ(tokenizer.error().kind, ErrorKind::kInvalid);
  EXPECT_THAT(tokenizer.error().message, Not(HasSubstr("\n")));
  return tokenizer.error().message;
}

TEST(Gguf, BytePairs) {
  const Tokenizer t = Load(SmallBpe());
  EXPECT_THAT(*t.Encode("ab ab", false, true), ElementsAre(2, 5, 2));
  EXPECT_THAT(*t.Encode("\u00e9", false, true), ElementsAre(3, 4));
  EXPECT_EQ(*t.TokenBytes(5), " ");
  EXPECT_EQ(*t.TokenSpelling(5), "\u0120");
  EXPECT_EQ(*t.TokenBytes(3), "\xc3");
  EXPECT_FALSE(t.TokenBytes(10));
  EXPECT_FALSE(t.TokenToId("nope"));
}

TEST(Gguf, SpecialTokensAsTextAndAsThemselves) {
  const Tokenizer t = Load(SmallBpe());
  EXPECT_THAT(*t.Encode("ab<|im_end|><tool>", false, true), ElementsAre(2, 6, 7));
  // The letters of <|im_end|> are no tokens here but for none: what is not in the vocabulary is dropped.
  const std::vector<uint32_t> plain = *t.Encode("b<|im_end|>b<tool>", false, false);
  EXPECT_THAT(plain, ElementsAre(1, 1, 7));
  EXPECT_TRUE(t.IsSpecial(6));
  EXPECT_FALSE(t.IsSpecial(7));
  // <|end|> is spelt like an end but is no special token.
  EXPECT_THAT(t.end_ids(), ElementsAre(6));
}

TEST(Gguf, SentencePieceMergesByScore) {
  const Tokenizer t = Load(SmallSpm());
  // "ab" has the highest score, so it is made before "▁a".
  EXPECT_THAT(*t.Encode("ab", true, true), ElementsAre(1, 8));
  EXPECT_THAT(*t.Encode("aba", true, true), ElementsAre(1, 8, 4));
  EXPECT_THAT(*t.Encode("a a", false, true), ElementsAre(6, 6));
  EXPECT_EQ(*t.Decode(std::vector<uint32_t>{1, 8, 6}, true), "ab a");
  EXPECT_EQ(t.bos(), 1u);
  EXPECT_EQ(t.eos(), 2u);
  EXPECT_EQ(t.unk(), 0u);
  EXPECT_EQ(t.pad(), std::nullopt);
}

TEST(Gguf, FlagsOverrideTheDefaults) {
  OwnedVocabulary v = SmallSpm();
  v.add_bos = false;
  v.add_eos = true;
  v.add_space_prefix = false;
  const Tokenizer t = Load(v);
  EXPECT_THAT(*t.Encode("ab", true, true), ElementsAre(7, 2));
  EXPECT_EQ(*t.Decode(std::vector<uint32_t>{8}, true), " ab");
}

TEST(Gguf, RepeatedTextKeepsBothIds) {
  OwnedVocabulary v = SmallBpe();
  v.tokens.push_back("ab");
  v.types.push_back(1);
  const Tokenizer t = Load(v);
  EXPECT_EQ(t.vocab_size(), 11u);
  EXPECT_THAT(*t.Encode("ab", false, true), ElementsAre(2));
  EXPECT_EQ(*t.Decode(std::vector<uint32_t>{10}, false), "ab");
}

TEST(Gguf, Refusals) {
  OwnedVocabulary v = SmallBpe();
  v.pre = "klingon";
  EXPECT_THAT(Refused(v), AllOf(HasSubstr("\"klingon\""), HasSubstr("known: gpt-2"), HasSubstr("llama-bpe")));
  v.pre = "";
  EXPECT_THAT(Refused(v), HasSubstr("tokenizer.ggml.pre is missing"));
  v = SmallBpe();
  v.model = "t5";
  EXPECT_THAT(Refused(v), AllOf(HasSubstr("\"t5\""), HasSubstr("known: gpt2, llama")));
  v = SmallBpe();
  v.tokens.clear();
  v.types.clear();
  EXPECT_THAT(Refused(v), HasSubstr("tokenizer.ggml.tokens is missing"));
  v = SmallBpe();
  v.types.pop_back();
  EXPECT_THAT(Refused(v), HasSubstr("token_type has 9 entries for 10 tokens"));
  v = SmallBpe();
  v.merges = {"a b", "ab"};
  EXPECT_THAT(Refused(v), AllOf(HasSubstr("merges[1]"), HasSubstr("is not two tokens")));
  v.merges = {"b a"};
  EXPECT_THAT(Refused(v), AllOf(HasSubstr("merges[0]"), HasSubstr("\"ba\" is no token")));
  v = SmallBpe();
  v.eos = 10;
  EXPECT_THAT(Refused(v), HasSubstr("eos_token_id is 10, but there are 10 tokens"));
  v = SmallBpe();
  v.add_bos = true;
  EXPECT_THAT(Refused(v), HasSubstr("bos_token_id is missing"));
  v = SmallBpe();
  v.tokens[4] = "\xff";
  EXPECT_THAT(Refused(v), HasSubstr("tokens[4] is not UTF-8"));
  v = SmallSpm();
  v.scores.clear();
  EXPECT_THAT(Refused(v), HasSubstr("scores has 0 entries"));
}

TEST(Stream, BrokenBytesAndTheirRest) {
  const Tokenizer t = Load(SmallSpm());
  StreamDecoder s = t.Stream(false);
  EXPECT_EQ(s.Push(6), "a");  // the first space is stripped
  EXPECT_EQ(s.Push(6), " a");
  EXPECT_EQ(s.Push(kByte0 + 0xe4), "");
  EXPECT_EQ(s.Push(kByte0 + 0xb8), "");
  EXPECT_EQ(s.Push(kByte0 + 0xad), "\u4e2d");
  EXPECT_EQ(s.Push(kByte0 + 0xe4), "");
  EXPECT_EQ(s.Push(4), "\ufffda");
  EXPECT_EQ(s.Push(kByte0 + 0xff), "\ufffd");
  EXPECT_EQ(s.Push(kByte0 + 0xf0), "");
  EXPECT_EQ(s.Push(kByte0 + 0x9f), "");
  EXPECT_EQ(s.Finish(), "\ufffd");
  EXPECT_EQ(s.Finish(), "");
  EXPECT_EQ(s.Push(6), "a");
  EXPECT_EQ(s.Push(1u << 20), "");
}

TEST(Stream, OutlivesItsTokenizer) {
  std::optional<Tokenizer> t = Load(SmallSpm());
  StreamDecoder s = t->Stream(true);
  t.reset();
  EXPECT_EQ(s.Push(1), "");
  EXPECT_EQ(s.Push(8), "ab");
}

TEST(Tokenizer, RefusesWhatIsNoTokenizer) {
  for (const char* json : {"", "{", "[]", "null", "{}", R"({"version":"1.0"})", R"({"model":{"type":"BPE"}})",
                           R"({"model":{"type":"BPE","vocab":{"a":0},"merges":[["a","b"]]}})",
                           R"({"model":{"type":"BPE","vocab":{"a":0,"b":1},"merges":[["a","b"]]}})",
                           R"({"decoder":"x","model":{"type":"BPE","vocab":{},"merges":[]}})",
                           R"({"decoder":{"type":"CTC","pad_token":"p","word_delimiter_token":"|","cleanup":true},
                               "model":{"type":"BPE","vocab":{},"merges":[]}})"}) {
    const auto tokenizer = Tokenizer::FromJson(json);
    ASSERT_FALSE(tokenizer.ok()) << json;
    EXPECT_EQ(tokenizer.error().kind, ErrorKind::kInvalid) << json;
    EXPECT_THAT(tokenizer.error().message, AllOf(HasSubstr("tokenizer.json"), Not(HasSubstr("\n")))) << json;
  }
}

constexpr char kJson[] = R"({"version":"1.0",
    "truncation":{"direction":"Right","max_length":2,"strategy":"LongestFirst","stride":0},
    "added_tokens":[{"id":2,"content":"<e>","single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":true}],
    "decoder":{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":false,"use_regex":false},
    "model":{"type":"BPE","vocab":{"a":0,"b":1},"merges":[],"dropout":0.5}})";

TEST(Tokenizer, PromptsAreNotCutShort) {
  const auto t = Tokenizer::FromJson(kJson);
  ASSERT_TRUE(t.ok()) << t.error().message;
  EXPECT_THAT(*t->Encode("abab<e>", true, true), ElementsAre(0, 1, 0, 1, 2));
  EXPECT_FALSE(t->has_chat_template());
  EXPECT_EQ(t->Render({.messages = "[]", .tools = {}, .kwargs = {}, .now = {}}).error().kind, ErrorKind::kInvalid);
  const auto bad = t->Encode("a\xff", true, true);
  ASSERT_FALSE(bad.ok());
  EXPECT_THAT(bad.error().message, HasSubstr("not UTF-8"));
}

TEST(Tokenizer, ConfigNamesTokensAndTemplates) {
  const auto t = Tokenizer::FromJson(kJson, R"({"eos_token":{"content":"<e>"},"bos_token":null,"chat_template":[
      {"name":"default","template":"{{ messages[0].content }}{{ eos_token }}"},
      {"name":"tool_use","template":"tools: {{ tools | length }}"}]})");
  ASSERT_TRUE(t.ok()) << t.error().message;
  EXPECT_EQ(t->eos(), 2u);
  EXPECT_EQ(t->bos(), std::nullopt);
  const std::string messages = R"([{"role":"user","content":"hi"}])";
  EXPECT_EQ(*t->Render({.messages = messages, .tools = {}, .kwargs = {}, .now = {}}), "hi<e>");
  EXPECT_EQ(*t->Render({.messages = messages, .tools = "[1,2]", .kwargs = {}, .now = {}}), "tools: 2");
  const auto jinja = Tokenizer::FromJson(kJson, R"({"chat_template":"{{ broken"})", "own {{ messages | length }}");
  ASSERT_TRUE(jinja.ok()) << jinja.error().message;
  EXPECT_EQ(*jinja->Render({.messages = messages, .tools = {}, .kwargs = {}, .now = {}}), "own 1");
  for (const char* config : {"{", R"({"eos_token":3})", R"({"chat_template":7})", R"({"chat_template":[{"name":"x"}]})",
                             R"({"chat_template":[{"name":"x","template":""},{"name":"y","template":""}]})"}) {
    EXPECT_FALSE(Tokenizer::FromJson(kJson, config).ok()) << config;
  }
}

TEST(ChatTemplate, BrokenOnesAreRefusedWithTheirLine) {
  for (const char* source : {"ok\n{% if messages %}", "ok\n{{ messages | nosuch }}", "ok\n{{ messages[0].nope.nope }}",
                             "ok\n{% for m in messages %}{{ m.role + 1 }}{% endfor %}"}) {
    const auto t = Tokenizer::FromJson(kJson, std::nullopt, source);
    ASSERT_FALSE(t.ok()) << source;
    EXPECT_THAT(t.error().message, AllOf(HasSubstr("line 2"), Not(HasSubstr("\n")))) << source;
  }
  // A template may refuse the dialogue it is tried on.
  EXPECT_TRUE(Tokenizer::FromJson(kJson, std::nullopt, "{{ raise_exception('tools only') }}").ok());
}

TEST(ChatTemplate, ReportsWhatTheTemplateRaises) {
  const auto t = ChatTemplate::Compile("{{ raise_exception('No \"system\"\nhere') }}", {});
  ASSERT_TRUE(t.ok());
  const auto rendered = t->Render({.messages = "[]", .tools = {}, .kwargs = {}, .now = {}});
  ASSERT_FALSE(rendered.ok());
  EXPECT_EQ(rendered.error().kind, ErrorKind::kRaised);
  EXPECT_EQ(rendered.error().message, "No \"system\"\nhere");
}

TEST(ChatTemplate, EndlessWorkIsCutOff) {
  const std::string loop = "{% for i in range(9999) %}{% for j in range(9999) %}x{% endfor %}{% endfor %}";
  const std::string doubling =
      "{% set n = namespace(s='xxxxxxxx') %}{% for i in range(60) %}{% set n.s = n.s + n.s %}{% endfor %}";
  const std::string recursion = "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}";
  for (const std::string& source : {loop, doubling, recursion}) {
    const auto t = ChatTemplate::Compile(source, {});
    ASSERT_TRUE(t.ok());
    const auto rendered = t->Render({.messages = "[]", .tools = {}, .kwargs = {}, .now = {}});
    ASSERT_FALSE(rendered.ok()) << source;
    EXPECT_EQ(rendered.error().kind, ErrorKind::kRender) << source;
  }
}

std::string Repeat(const std::string& text, int count) {
  std::string out;
  for (int i = 0; i < count; ++i) out += text;
  return out;
}

// What becomes of a template: its failure while it is compiled or rendered.
Error FailureOf(const std::string& source) {
  const auto t = ChatTemplate::Compile(source, {});
  if (!t.ok()) return t.error();
  const auto rendered =
      t->Render({.messages = R"([{"role":"user","content":"hi"}])", .tools = {}, .kwargs = {}, .now = {}});
  EXPECT_FALSE(rendered.ok()) << source.substr(0, 200) << "\ngave: " << rendered->substr(0, 200);
  return rendered.ok() ? Error{} : rendered.error();
}

std::string Rendered(const std::string& source) {
  const auto t = ChatTemplate::Compile(source, {});
  if (!t.ok()) return t.error().message;
  const auto rendered =
      t->Render({.messages = R"([{"role":"user","content":"hi"}])", .tools = {}, .kwargs = {}, .now = {}});
  return rendered.ok() ? *rendered : rendered.error().message;
}

// Each would be a level of the compiler's recursion.
TEST(ChatTemplate, LongChainsAreRefusedWithTheirLine) {
  constexpr int kMany = 30000;
  for (const char* link :
       {"1 ** ", "1 ~ ", "1 and ", "0 or ", "1 + ", "1 == ", "not ", "- ", "1 if 0 else ", "1and "}) {
    const Error error = FailureOf("ok\n{{ " + Repeat(link, kMany) + "1 }}");
    EXPECT_EQ(error.kind, ErrorKind::kTemplate) << link;
    EXPECT_THAT(error.message, AllOf(HasSubstr("line 2"), HasSubstr("more than 2000 operators"))) << link;
  }
  for (const char* link : {".b", "[0]", "()", "|string", " is true", " if 1"}) {
    EXPECT_THAT(FailureOf("{{ a" + Repeat(link, kMany) + " }}").message, HasSubstr("more than 2000 operators")) << link;
  }
  // What looks like an end in a text is none, and what never ends is refused for its length, too.
  EXPECT_THAT(FailureOf("{{ " + Repeat("'}}' ~ ", kMany) + "1 }}").message, HasSubstr("more than 2000 operators"));
  EXPECT_THAT(FailureOf("{{ " + Repeat("1 ~ ", kMany) + "'").message, HasSubstr("more than 2000 operators"));
  EXPECT_THAT(FailureOf("{% if 0 %}" + Repeat("\n{% elif 0 %}", kMany) + "{% endif %}").message,
              AllOf(HasSubstr("line 2002"), HasSubstr("more than 2000 elif")));
  EXPECT_THAT(FailureOf("{{ " + Repeat("[", kMany) + Repeat("]", kMany) + " }}").message, HasSubstr("too deep"));
  EXPECT_EQ(FailureOf(Repeat("{% if 1 %}", kMany) + Repeat("{% endif %}", kMany)).kind, ErrorKind::kTemplate);
  EXPECT_THAT(FailureOf(std::string((1 << 20) + 1, 'x')).message, HasSubstr("more than 1048576"));
  // Just within the limits.
  EXPECT_EQ(Rendered("{{ " + Repeat("1 ~ ", 2000) + "1 }}"), std::string(2001, '1'));
  EXPECT_EQ(Rendered("{% if 0 %}" + Repeat("{% elif 0 %}", 2000) + "{% else %}x{% endif %}"), "x");
  EXPECT_EQ(Rendered("{{ 1" + Repeat(" ** 1", 2000) + " }}"), "1");
}

TEST(ChatTemplate, ValuesThatHoldThemselvesAreErrors) {
  const std::string itself = "{% set n = namespace() %}{% set n.x = n %}{% set m = namespace() %}{% set m.x = m %}";
  for (const char* use : {"{{ n }}",
                          "{{ n ~ '' }}",
                          "{{ '' ~ n }}",
                          "{{ [n] * 2 ~ '' }}",
                          "{{ [n] | join }}",
                          "{{ n | pprint }}",
                          "{{ n | tojson }}",
                          "{{ n | string }}",
                          "{{ n | upper }}",
                          "{{ n | indent }}",
                          "{{ 'a' | replace('a', n) }}",
                          "{{ '%s' | format(n) }}",
                          "{{ '{}'.format(n) }}",
                          "{{ ''.join([n]) }}",
                          "{{ n in 'abc' }}",
                          "{{ n == m }}",
                          "{{ n < m }}",
                          "{{ n in [m] }}",
                          "{{ n not in [m] }}",
                          "{{ n is eq m }}",
                          "{{ n is in [m] }}",
                          "{{ [n] | select('eq', m) | list }}",
                          "{{ [n, m] | sort }}",
                          "{{ [n, m] | unique }}",
                          "{{ [n, m] | max }}",
                          "{{ [n].count(m) }}",
                          "{{ [{'a': n}, {'a': m}] | groupby('a') }}",
                          "{{ [n] | map('pprint') | list }}",
                          "{{ {n: 1} }}",
                          "{{ {'a': 1}[n] }}",
                          "{{ {'a': 1}.get(n) }}",
                          "{{ raise_exception(n) }}",
                          "{% for i in [n, m] %}{{ loop.changed(i) }}{% endfor %}",
                          "{{ [n][:] ~ '' }}",
                          "{{ ([n] | reverse) ~ '' }}"}) {
    const Error error = FailureOf(itself + use);
    EXPECT_EQ(error.kind, ErrorKind::kRender) << use;
    EXPECT_THAT(error.message, HasSubstr("nested too deep")) << use;
  }
  // Keywords are names where an operand is due.
  for (const std::string name : {"if", "else", "and", "or", "is", "as", "recursive"}) {
    const std::string set = "{% set " + name + " = namespace() %}{% set " + name + ".x = " + name + " %}";
    EXPECT_THAT(FailureOf(set + "{{ " + name + " ~ '' }}").message, HasSubstr("nested too deep")) << name;
    EXPECT_THAT(FailureOf(set + "{{ '' ~ " + name + " }}").message, HasSubstr("nested too deep")) << name;
  }
}

// Lists that hold another twice, over sixty levels, and ones that are views of others.
TEST(ChatTemplate, ValuesThatDoubleAreCutOff) {
  const std::string tree =
      "{% set n = namespace(x=[]) %}{% for i in range(60) %}{% set n.x = [n.x, n.x] %}{% endfor %}";
  const std::string straight =
      "{% set a = [] %}{% set b = [] %}" + Repeat("{% set a = [a, a] %}{% set b = [b, b] %}", 60);
  for (const std::string& source :
       {tree + "{{ n.x ~ '' }}", tree + "{{ n.x | pprint }}", tree + "{{ n.x | join }}", tree + "{{ n.x | tojson }}",
        tree + "{{ n.x | string }}", tree + "{{ n.x }}", tree + "{{ n.x[1:] ~ '' }}", tree + "{{ n.x | reverse }}",
        straight + "{{ a ~ '' }}", straight + "{{ a == b }}", straight + "{{ a + b ~ '' }}"}) {
    const Error error = FailureOf(source);
    EXPECT_EQ(error.kind, ErrorKind::kRender) << source;
    EXPECT_THAT(error.message, HasSubstr("fuel")) << source;
  }
  const auto grow = [](const std::string& step) {
    return "{% set n = namespace(s=['x']) %}{% for i in range(60) %}{% set n.s = " + step + " %}{% endfor %}{{ n.s }}";
  };
  for (const char* step : {"n.s + n.s", "n.s * 2", "n.s | zip(n.s)", "n.s | chain(n.s)", "[n.s ~ n.s]"}) {
    EXPECT_THAT(FailureOf(grow(step)).message, HasSubstr("fuel")) << step;
  }
  EXPECT_EQ(Rendered("{% set n = namespace(s=['x']) %}{% for i in range(99999) %}{% set n.s = n.s[:] %}{% endfor %}"
                     "{% for i in n.s %}{{ i }}{% endfor %}"),
            "x");
  // Dropping a deep value takes stack.
  EXPECT_THAT(FailureOf("{% set n = namespace(s=[]) %}{% for i in range(99999) %}{% for j in range(99) %}"
                        "{% set n.s = [n.s] %}{% endfor %}{% endfor %}")
                  .message,
              HasSubstr("fuel"));
}

TEST(ChatTemplate, PromptsHaveALimit) {
  const std::string row(9999, 'x');
  EXPECT_THAT(FailureOf("{% for i in range(9999) %}" + row + "{% endfor %}").message,
              HasSubstr("more than 16777216 bytes"));
  EXPECT_EQ(Rendered("{% for i in range(500) %}" + row + "{% endfor %}").size(), 500u * 9999u);
  EXPECT_THAT(FailureOf("{{ 'a' | indent(1000000000000) }}").message, HasSubstr("fuel"));
}

// Operands are checked by filters put around them: what the operators give stays as Jinja2 has it.
TEST(ChatTemplate, OperatorsKeepTheirMeaning) {
  const std::pair<const char*, const char*> cases[] = {
      {"{{ 'a' ~ 2 * 3 ~ 'b' }}", "a6b"},
      {"{{ -1 ~ 'x' }}", "-1x"},
      {"{{ 1 - 2 ~ 'x' if 0 else 3 }}", "3"},
      {"{{ True ~ none ~ 1.0 ~ [1, 'a', none] ~ {'a': 1} }}", "TrueNone1.0[1, 'a', None]{'a': 1}"},
      {"{{ nothing ~ 'x' }}", "x"},
      {"{{ 1 is odd ~ 'x' }}", "Truex"},
      {"{{ 1 < 2 < 3 }}", "True"},
      {"{{ 'a' not in 'cab' }}", "False"},
      {"{{ not 'a' ~ 'b' == 'ab' }}", "False"},
      {"{{ {'a': [1, 2, 3]}['a'][1:][0] }}", "2"},
      {"{{ {'a': 'xyz'}.a[1:].upper() }}", "YZ"},
      {"{{ ([1, 2, 3])[1:][:1] }}", "[2]"},
      {"{{ messages[:1][0].role.upper()[1:] }}", "SER"},
      {"{{ ([1] + [2]) * 2 }}", "[1, 2, 1, 2]"},
      {"{{ {'a' ~ 'b': 1}['a' ~ 'b'] }}", "1"},
      {"{% for x in [1, 2] + [3] if x not in [2] %}{{ x }}{% endfor %}", "13"},
      {"{% macro f(a, b='x' ~ 'y') %}{{ a ~ b }}{% endmacro %}{{ f(1) ~ f(b=2, a=3) }}", "1xy32"},
      {"{{ '%}' ~ \"}}'\" }}{# 'a ~ #}{% raw %}{{ a ~ b }}{% endraw %}{{- 3 ~ 4 }}", "%}}}'{{ a ~ b }}34"},
      {"{{ 'aXbX' | replace('X', 'y', 1) }}{{ 'aXbX' | replace('X', 'y', count=1) }}", "aybXaybX"},
      {"{{ 'a\nb' | indent(width=3) }}", "a\n   b"},
      {"{% for x in [1, 1, 2] %}{{ loop.changed(x) ~ ' ' }}{% endfor %}", "True False True "},
  };
  for (const auto& [source, expected] : cases) EXPECT_EQ(Rendered(source), expected) << source;
}

TEST(ChatTemplate, RequestsAreChecked) {
  const auto t = ChatTemplate::Compile("{{ messages | length }}{{ extra }}", {});
  ASSERT_TRUE(t.ok());
  EXPECT_EQ(*t->Render({.messages = "[1]", .tools = {}, .kwargs = R"({"extra":"e"})", .now = {}}), "1e");
  for (const char* messages : {"", "{}", "[", "null", "3"}) {
    const auto rendered = t->Render({.messages = messages, .tools = {}, .kwargs = {}, .now = {}});
    ASSERT_FALSE(rendered.ok()) << messages;
    EXPECT_EQ(rendered.error().kind, ErrorKind::kInvalid);
  }
  EXPECT_FALSE(t->Render({.messages = "[]", .tools = "[", .kwargs = {}, .now = {}}).ok());
  EXPECT_FALSE(t->Render({.messages = "[]", .tools = {}, .kwargs = "[]", .now = {}}).ok());
}

TEST(ChatTemplate, GenerationMarksPrintNothing) {
  const auto t = ChatTemplate::Compile(
      "a  {%- generation -%}  b  {%- endgeneration %}\nc{# {% generation %} #}{% raw %}{% generation %}{% endraw %}",
      {});
  ASSERT_TRUE(t.ok()) << t.error().message;
  EXPECT_EQ(*t->Render({.messages = "[]", .tools = {}, .kwargs = {}, .now = {}}), "abc{% generation %}");
  EXPECT_EQ(Rendered("{#}#}a{% raw %}{# {% endraw %}{%generation%}b{%+ endgeneration -%} c"), "a{# bc");
  EXPECT_EQ(FailureOf("{%}").kind, ErrorKind::kTemplate);
  EXPECT_EQ(FailureOf(Repeat("{% generation ", 70000) + "%}").kind, ErrorKind::kTemplate);
}

// Conversions of strftime against the C library, in the C locale.
TEST(ChatTemplate, DatesAsTheCLibrary) {
  const std::string format =
      "%a %A %b %B %c %C %d %D %e %F %g %G %H %I %j %k %l %m %M %p %P %R %S %s %T %u %U %V %w %W "
      "%x %X %y %Y %% %-d %_d %-I %n%t %^a";
  const auto t = ChatTemplate::Compile("{{ strftime_now('" + format + "') }}", {});
  ASSERT_TRUE(t.ok());
  ASSERT_EQ(setenv("TZ", "UTC", 1), 0);
  tzset();
  // Every day of years that begin on each weekday, leap and not, at changing times of day.
  for (int64_t now = 946684800 - 5 * 86400; now < 946684800 + 3000LL * 86400; now += 86400 + 3571) {
    const std::time_t time = now;
    std::tm tm{};
    gmtime_r(&time, &tm);
    char expected[512];
    ASSERT_GT(std::strftime(expected, sizeof expected, format.c_str(), &tm), 0u);
    ASSERT_EQ(*t->Render({.messages = "[]", .tools = {}, .kwargs = {}, .now = now}), expected) << now;
  }
}

TEST(Tokenizer, ManyThreadsAtOnce) {
  const Tokenizer t = Load(SmallSpm());
  std::vector<std::thread> threads;
  std::vector<int> wrong(4);
  for (int& count : wrong) {
    threads.emplace_back([&t, &count] {
      for (int i = 0; i < 500; ++i) {
        const auto ids = t.Encode("ab a ab", true, true);
        if (!ids.ok() || *ids != std::vector<uint32_t>{1, 8, 6, 8}) ++count;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(wrong, testing::Each(0));
}

}  // namespace
}  // namespace xjit::text::test
