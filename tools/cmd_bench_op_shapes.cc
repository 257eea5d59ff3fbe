// The shapes that `xjit bench-op` and `xjit kernels` take as flags, and the descriptors they stand for.
#include "codegen/gemm/pack.h"
#include "ir/support/align.h"
#include "ir/support/encoding.h"
#include "ir/support/q8_layout.h"
#include "ir/verifier.h"
#include "tools/bench_op.h"

namespace xjit::tools {
namespace {

// Far above any model; the products of two or three of them stay within 63 bits.
constexpr int64_t kMostRows = int64_t{1} << 20;
constexpr int64_t kMostColumns = int64_t{1} << 24;
constexpr int64_t kMostDepth = int64_t{1} << 20;

// What users call encodings with scales outside.
const std::vector<std::pair<std::string_view, Encoding>>& ShortNames() {
  static const std::vector<std::pair<std::string_view, Encoding>> kNames = {
      {"int8", Encoding::Int8()}, {"fp8", Encoding::Fp8Blocks()}, {"int4", Encoding::Int4(128, true)}};
  return kNames;
}

std::optional<Encoding> WeightNamed(std::string_view name) {
  for (const auto& [known, encoding] : ShortNames()) {
    if (known == name) return encoding;
  }
  return ParseEncoding(name);
}

std::string WeightNames() {
  std::string names;
  for (int i = 0; i < kNumDTypes; ++i) {
    if (!HasPanels(static_cast<DType>(i))) continue;
    names += fmt::format("{}{}", names.empty() ? "" : ", ", Name(static_cast<DType>(i)));
  }
  for (const auto& [name, encoding] : ShortNames()) names += fmt::format(", {}", name);
  return names + ", or as IR spells it: \"f8e4m3<tensor>\"";
}

using Sizes = std::initializer_list<std::pair<std::string_view, int64_t>>;

// --weights of an operation, and flags of sizes that are made of whole blocks of it.
absl::StatusOr<Encoding> CheckedWeights(std::string_view weights, Sizes depths) {
  if (weights.empty()) return UsageError("--weights is missing; known are {}", WeightNames());
  const auto w = WeightNamed(weights);
  if (!w.has_value() || !HasPanels(*w)) {
    return UsageError("--weights {} is not known; known are {}", weights, WeightNames());
  }
  const int block = w->type == DType::kI4 ? w->scales.cols : Info(w->type).block_elems;
  for (const auto& [flag, depth] : depths) {
    if (depth % block == 0) continue;
    return UsageError("{} {} is no multiple of {}, the block of {}", flag, depth, block, weights);
  }
  return *w;
}

}  // namespace

void GemmShape::Register(CLI::App* app) {
  app->add_option("--m", m, "rows of activations")->check(CLI::Range(int64_t{1}, kMostRows));
  app->add_option("--n", n, "columns of the product: rows of the weight, with --silu-mul gate and up together")
      ->check(CLI::Range(int64_t{1}, kMostColumns));
  app->add_option("--k", k, "depth, a multiple of the encoding's block")->check(CLI::Range(int64_t{1}, kMostDepth));
  app->add_option("--weights", weights, WeightNames())->type_name("ENCODING");
  app->add_option("--activations", activations, "f32, bf16, q8act, i8act (default: what a plan takes for the weights)")
      ->type_name("TYPE");
  app->add_flag("--silu-mul", epilogue.silu_mul, "columns are gate and up: writes silu(gate) * up");
  app->add_flag("--bias", epilogue.bias, "adds a bias");
  app->add_flag("--residual", epilogue.residual, "adds a residual");
}

absl::StatusOr<GemmDesc> GemmShape::Desc(const TargetInfo& target) const {
  for (const auto& [flag, value] : {std::pair{"--m", m}, std::pair{"--n", n}, std::pair{"--k", k}}) {
    if (value < 1) return UsageError("{} is missing", flag);
  }
  if (epilogue.silu_mul && n % 2 != 0) {
    return UsageError("--n {} is odd: with --silu-mul it counts gate and up, as many of each", n);
  }
  XJIT_ASSIGN_OR_RETURN(const Encoding w, CheckedWeights(weights, {{"--k", k}}));
  GemmDesc desc;
  desc.n = AlignUp(n, kPanelColumns);
  desc.k = k;
  desc.a = ActivationFor(w, target, m > kMaxFewRows);
  if (!activations.empty()) {
    const auto a = ParseDType(activations);
    if (!a.has_value()) return UsageError("--activations {} is not known", activations);
    desc.a = *a;
  }
  desc.w = w;
  desc.rows = m <= kMaxFewRows ? static_cast<int>(m) : 0;
  desc.strips = StripsFor(desc.a, desc.rows == 0);
  desc.lda_bytes = RowStrideBytes(desc.a, k);
  desc.ldc_bytes = RowStrideBytes(DType::kF32, desc.n / (epilogue.silu_mul ? 2 : 1));
  desc.epilogue = epilogue;
  return desc;
}

void MoeShape::Register(CLI::App* app) {
  app->add_option("--experts", experts, "experts to choose from")
      ->check(CLI::Range(int64_t{1}, int64_t{4096}))
      ->capture_default_str();
  app->add_option("--top-k", top_k, "experts of a token")
      ->check(CLI::Range(int64_t{1}, int64_t{4096}))
      ->capture_default_str();
  app->add_option("--tokens", tokens, "tokens of a step")
      ->check(CLI::Range(int64_t{1}, kMostRows))
      ->capture_default_str();
  app->add_option("--hidden", hidden, "values of a token")->check(CLI::Range(int64_t{1}, kMostDepth));
  app->add_option("--intermediate", intermediate, "values between an expert's products")
      ->check(CLI::Range(int64_t{1}, kMostDepth));
  app->add_option("--weights", weights, WeightNames())->type_name("ENCODING");
}

absl::StatusOr<MoeDesc> MoeShape::Desc(const TargetInfo& target) const {
  const Sizes depths = {{"--hidden", hidden}, {"--intermediate", intermediate}};
  for (const auto& [flag, value] : depths) {
    if (value < 1) return UsageError("{} is missing", flag);
  }
  if (top_k > experts) return UsageError("--top-k {} is more than --experts {}", top_k, experts);
  XJIT_ASSIGN_OR_RETURN(const Encoding w, CheckedWeights(weights, depths));
  MoeDesc desc{.experts = experts,
               .rows = tokens,
               .slots = top_k,
               .hidden = hidden,
               .intermediate = intermediate,
               .gate_up = w,
               .down = w};
  desc.x = desc.mid = ActivationFor(w, target, tokens > kMaxFewRows);
  return desc;
}

void AttentionShape::Register(CLI::App* app) {
  app->add_option("--heads", heads, "query heads")->check(CLI::Range(1, 4096));
  app->add_option("--kv-heads", kv_heads, "KV heads, a divisor of the query heads")->check(CLI::Range(1, 4096));
  app->add_option("--head-dim", head_dim, "values of a head, a multiple of 16 up to 256")->check(CLI::Range(1, 4096));
  app->add_option("--tokens", tokens, "new tokens of each sequence; 1 is decode")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20))
      ->capture_default_str();
  app->add_option("--past", past, "tokens in the cache before them")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 24))
      ->capture_default_str();
  app->add_option("--sequences", sequences, "sequences in the step")
      ->check(CLI::Range(int64_t{1}, int64_t{4096}))
      ->capture_default_str();
  app->add_option("--window", window, "tokens that a token sees, itself included; 0: all before it")
      ->check(CLI::Range(0, 1 << 24))
      ->capture_default_str();
  app->add_option("--kv-dtype", kv_dtype, "bf16 or f32")->check(CLI::IsMember({"bf16", "f32"}))->capture_default_str();
}

absl::StatusOr<AttentionDesc> AttentionShape::Desc(Isa isa) const {
  for (const auto& [flag, value] :
       {std::pair{"--heads", heads}, std::pair{"--kv-heads", kv_heads}, std::pair{"--head-dim", head_dim}}) {
    if (value < 1) return UsageError("{} is missing", flag);
  }
  if (heads % kv_heads != 0) {
    return UsageError("--heads {} is no multiple of --kv-heads {}", heads, kv_heads);
  }
  AttentionDesc desc;
  desc.heads = heads;
  desc.kv_heads = kv_heads;
  desc.head_dim = head_dim;
  desc.kv = kv_dtype == "f32" ? DType::kF32 : DType::kBF16;
  desc.q = desc.kv == DType::kBF16 && isa >= Isa::kAvx512Bf16 ? DType::kBF16 : DType::kF32;
  desc.window = window;
  const int64_t width = int64_t{heads} * head_dim;
  desc.ldq_bytes = RowStrideBytes(desc.q, width);
  desc.ldo_bytes = RowStrideBytes(DType::kF32, width);
  return desc;
}

void ConvertShape::Register(CLI::App* app) {
  app->add_option("--n", n, "columns")->check(CLI::Range(int64_t{1}, kMostColumns))->capture_default_str();
  app->add_option("--k", k, "depth, a multiple of the encoding's block")
      ->check(CLI::Range(int64_t{1}, kMostDepth))
      ->capture_default_str();
  app->add_option("--weights", weights, WeightNames())->type_name("ENCODING");
  app->add_option("--to", to, "bf16 (pairs, without their scale) or f32")
      ->check(CLI::IsMember({"bf16", "f32"}))
      ->capture_default_str();
}

absl::StatusOr<ConvertDesc> ConvertShape::Desc() const {
  XJIT_ASSIGN_OR_RETURN(const Encoding w, CheckedWeights(weights, {{"--k", k}}));
  return ConvertDesc{.w = w, .to = to == "f32" ? DType::kF32 : DType::kBF16, .k = k};
}

void PrepareShape::Register(CLI::App* app) {
  app->add_option("--rows", rows, "rows of activations")
      ->check(CLI::Range(int64_t{1}, kMostRows))
      ->capture_default_str();
  app->add_option("--cols", cols, "values of a row")->check(CLI::Range(int64_t{1}, kMostDepth));
  app->add_option("--out", out, "what they become: f32, bf16, q8act, i8act")
      ->check(CLI::IsMember({"f32", "bf16", "q8act", "i8act"}))
      ->capture_default_str();
  app->add_flag("--norm", norm, "RMSNorm first");
  app->add_flag("--strips", strips, "as strips, the form for many rows: bf16, i8act");
}

absl::StatusOr<PrepareDesc> PrepareShape::Desc() const {
  if (cols < 1) return UsageError("--cols is missing");
  const DType type = *ParseDType(out);
  if (type == DType::kQ8Act && cols % kQ8Block != 0) {
    return UsageError("--cols {} is no multiple of {}, the block of q8act", cols, kQ8Block);
  }
  PrepareDesc desc;
  desc.cols = cols;
  desc.norm = norm;
  desc.eps = norm ? 1e-5f : 0;
  desc.out = type;
  desc.ldx_bytes = RowStrideBytes(DType::kF32, cols);
  desc.ldo_bytes = strips ? 0 : RowStrideBytes(type, cols);
  desc.strips = strips;
  return desc;
}

}  // namespace xjit::tools
