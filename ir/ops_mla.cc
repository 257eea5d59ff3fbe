// Multi-head latent attention: the cache holds one row of r compressed and p rotated values a token, from which kv_b
// makes the keys and values of all heads. DeepSeek-AI 2024, arXiv:2405.04434, section 2.1.
#include <algorithm>
#include <numbers>

#include "ir/attention_eval.h"
#include "ir/chains.h"
#include "ir/interpreter.h"
#include "ir/ops.h"
#include "ir/support/ref/attention.h"

namespace xjit {
namespace {

// Sizes that the ops' attributes and kv_b give; p is what a head of q has beyond nope.
struct Sizes {
  int64_t heads, nope, v, r, p;
};

// kv_b [heads * (nope + v), r]: of each head nope rows for keys, then v rows for values.
absl::StatusOr<Sizes> SizesOf(const Op& op, size_t kv_b) {
  Sizes s{op.Int("heads"), op.Int("nope_dim"), op.Int("v_dim"), op.weight(kv_b)->type.cols(), 0};
  const Type& type = op.weight(kv_b)->type;
  constexpr int64_t kMost = int64_t{1} << 20;
  if (s.heads <= 0 || s.nope <= 0 || s.v <= 0 || s.heads > kMost || s.nope > kMost || s.v > kMost ||
      type.rows() != s.heads * (s.nope + s.v)) {
    return InvalidArgument("{}: @{} has {} rows, not {} heads of {} + {}", Name(op.code), op.weight(kv_b)->name,
                           type.rows(), s.heads, s.nope, s.v);
  }
  return s;
}

// The same, and that q's heads are nope + p with a p above 0.
absl::StatusOr<Sizes> SizesWithQuery(const Op& op, size_t kv_b) {
  XJIT_ASSIGN_OR_RETURN(Sizes s, SizesOf(op, kv_b));
  XJIT_RETURN_IF_ERROR(CheckHeads(op, 0, s.heads));
  s.p = op.operand(0)->type.cols() / s.heads - s.nope;
  if (s.p <= 0) return InvalidArgument("{}: q's heads have no part to rotate behind {}", Name(op.code), s.nope);
  return s;
}

absl::StatusOr<std::vector<float>> Matrix(const EvalContext& eval, const Weight& w) {
  std::vector<float> values(static_cast<size_t>(w.type.rows() * w.type.cols()));
  const size_t cols = static_cast<size_t>(w.type.cols());
  for (size_t n = 0; n * cols < values.size(); ++n) {
    XJIT_RETURN_IF_ERROR(eval.weights->Row(eval.layer, w, static_cast<int64_t>(n), {&values[n * cols], cols}));
  }
  return values;
}

absl::Status VerifyKvStoreLatent(const Op& op, const Module*) {
  if (op.operand(0)->type.dims[0] == op.operand(1)->type.dims[0]) return absl::OkStatus();
  return InvalidArgument("{}: c and k_pe differ in rows", Name(op.code));
}

void StoreLatent(EvalContext& eval, int64_t token, const float* c, int64_t r, const float* k_pe, int64_t p) {
  std::vector<float> row(c, c + r);
  row.insert(row.end(), k_pe, k_pe + p);
  StoreKv(eval, token, row, {});
}

absl::Status EvalKvStoreLatent(const Op&, EvalContext& eval) {
  const TensorData& c = eval.In(0);
  const TensorData& k_pe = eval.In(1);
  const auto tokens = eval.Tokens(0);
  for (int64_t m = 0; m < c.rows; ++m) {
    StoreLatent(eval, tokens[static_cast<size_t>(m)], c.row(m), c.cols, k_pe.row(m), k_pe.cols);
  }
  return absl::OkStatus();
}

absl::Status InferMlaAttention(const Op& op, const Module*, std::vector<Type>* types) {
  XJIT_ASSIGN_OR_RETURN(const Sizes s, SizesWithQuery(op, 2));
  types->push_back(Type::Rows(op.operand(0)->type.dims[0], s.heads * s.v));
  return absl::OkStatus();
}

absl::Status AttendExpanded(const Op& op, EvalContext& eval, double scale) {
  XJIT_ASSIGN_OR_RETURN(const Sizes s, SizesWithQuery(op, 2));
  XJIT_ASSIGN_OR_RETURN(const std::vector<float> kv_b, Matrix(eval, *op.weight(2)));
  const TensorData& q = eval.In(0);
  TensorData& y = eval.Out(q.rows);
  const auto tokens = eval.Tokens(0);
  // Keys and values of every token of each sequence, expanded once: [token][head][nope + p | v].
  const int64_t k_dim = s.nope + s.p, row = s.heads * (k_dim + s.v);
  std::map<const InterpKv*, std::vector<float>> expanded;
  ref::AttendArgs args;
  args.head_dim = k_dim;
  args.v_dim = s.v;
  args.k_stride = args.v_stride = row;
  args.scale = scale;
  for (int64_t m = 0; m < q.rows; ++m) {
    const size_t token = static_cast<size_t>(tokens[static_cast<size_t>(m)]);
    InterpKv& kv = *eval.step->kv[token];
    const std::vector<float>& cache = kv.k[eval.layer];
    args.end = eval.step->positions[token] + 1;
    if (static_cast<int64_t>(cache.size()) < args.end * (s.r + s.p)) {
      return InvalidArgument("{}: the KV cache ends before position {} (is kv_store_latent missing?)", Name(op.code),
                             args.end - 1);
    }
    std::vector<float>& all = expanded[&kv];
    for (int64_t t = static_cast<int64_t>(all.size()) / row; t < args.end; ++t) {
      const float* latent = cache.data() + t * (s.r + s.p);
      for (int64_t h = 0; h < s.heads; ++h) {
        const float* w = kv_b.data() + h * (s.nope + s.v) * s.r;
        for (int64_t n = 0; n < s.nope; ++n) all.push_back(Dot(latent, w + n * s.r, s.r));
        all.insert(all.end(), latent + s.r, latent + s.r + s.p);
        for (int64_t n = 0; n < s.v; ++n) all.push_back(Dot(latent, w + (s.nope + n) * s.r, s.r));
      }
    }
    for (int64_t h = 0; h < s.heads; ++h) {
      args.q = q.row(m) + h * k_dim;
      args.k = all.data() + h * (k_dim + s.v);
      args.v = args.k + k_dim;
      ref::AttendOne(args, y.row(m) + h * s.v);
    }
  }
  return absl::OkStatus();
}

absl::Status EvalMlaAttention(const Op& op, EvalContext& eval) { return AttendExpanded(op, eval, op.Float("scale")); }
absl::Status EvalMlaExtend(const Op& op, EvalContext& eval) { return AttendExpanded(op, eval, std::numbers::ln2); }

absl::Status InferAbsorbQ(const Op& op, const Module*, std::vector<Type>* types) {
  XJIT_ASSIGN_OR_RETURN(const Sizes s, SizesWithQuery(op, 1));
  types->push_back(Type::Rows(op.operand(0)->type.dims[0], s.heads * (s.r + s.p)));
  return absl::OkStatus();
}

absl::Status EvalAbsorbQ(const Op& op, EvalContext& eval) {
  XJIT_ASSIGN_OR_RETURN(const Sizes s, SizesWithQuery(op, 1));
  XJIT_ASSIGN_OR_RETURN(const std::vector<float> kv_b, Matrix(eval, *op.weight(1)));
  const TensorData& q = eval.In(0);
  TensorData& y = eval.Out(q.rows);
  for (int64_t m = 0; m < q.rows; ++m) {
    for (int64_t h = 0; h < s.heads; ++h) {
      const float* from = q.row(m) + h * (s.nope + s.p);
      const float* w = kv_b.data() + h * (s.nope + s.v) * s.r;
      float* to = y.row(m) + h * (s.r + s.p);
      for (int64_t i = 0; i < s.r; ++i) {
        double sum = 0;
        for (int64_t n = 0; n < s.nope; ++n) sum += static_cast<double>(from[n]) * static_cast<double>(w[n * s.r + i]);
        to[i] = static_cast<float>(sum);
      }
      std::copy_n(from + s.nope, s.p, to + s.r);
    }
  }
  return absl::OkStatus();
}

absl::Status InferAbsorbV(const Op& op, const Module*, std::vector<Type>* types) {
  XJIT_ASSIGN_OR_RETURN(const Sizes s, SizesOf(op, 1));
  if (op.operand(0)->type.cols() != s.heads * s.r) {
    return InvalidArgument("absorb_v: {} columns are not {} heads of {}", op.operand(0)->type.cols(), s.heads, s.r);
  }
  types->push_back(Type::Rows(op.operand(0)->type.dims[0], s.heads * s.v));
  return absl::OkStatus();
}

absl::Status EvalAbsorbV(const Op& op, EvalContext& eval) {
  XJIT_ASSIGN_OR_RETURN(const Sizes s, SizesOf(op, 1));
  XJIT_ASSIGN_OR_RETURN(const std::vector<float> kv_b, Matrix(eval, *op.weight(1)));
  const TensorData& a = eval.In(0);
  TensorData& y = eval.Out(a.rows);
  for (int64_t m = 0; m < a.rows; ++m) {
    for (int64_t h = 0; h < s.heads; ++h) {
      const float* w = kv_b.data() + (h * (s.nope + s.v) + s.nope) * s.r;
      for (int64_t n = 0; n < s.v; ++n) y.row(m)[h * s.v + n] = Dot(a.row(m) + h * s.r, w + n * s.r, s.r);
    }
  }
  return absl::OkStatus();
}

// The part of a head of q that is rotated begins at nope_dim: r where q has been absorbed.
absl::Status InferLatentStore(const Op& op, const Module*, std::vector<Type>* types) {
  const int64_t heads = op.Int("heads"), offset = op.Int("nope_dim");
  XJIT_RETURN_IF_ERROR(CheckHeads(op, 0, heads));
  const Dim rows = op.operand(0)->type.dims[0];
  const int64_t p = op.operand(2)->type.cols();
  if (op.operand(1)->type.dims[0] != rows || op.operand(2)->type.dims[0] != rows ||
      op.operand(3)->type.dims[0] != rows) {
    return InvalidArgument("latent_store: q, c, k_pe and rope differ in rows");
  }
  if (offset <= 0 || op.operand(0)->type.cols() / heads - p != offset || op.operand(3)->type.cols() != p) {
    return InvalidArgument("latent_store: k_pe has {} columns, the table {}, and q's heads {} behind {}", p,
                           op.operand(3)->type.cols(), op.operand(0)->type.cols() / heads - offset, offset);
  }
  if (op.operands.size() > 5 && op.weight(5)->type.cols() != op.operand(1)->type.cols()) {
    return InvalidArgument("latent_store: @{} is not the gain of c", op.weight(5)->name);
  }
  XJIT_ASSIGN_OR_RETURN(const DType q, QueryType(op));
  types->push_back(Type::Rows(rows, op.operand(0)->type.cols(), q));
  return absl::OkStatus();
}

absl::Status EvalLatentStore(const Op& op, EvalContext& eval) {
  const TensorData& q = eval.In(0);
  TensorData c = eval.In(1);
  const TensorData& k_pe = eval.In(2);
  const TensorData& table = eval.In(3);
  TensorData& y = eval.Out(q.rows);
  if (op.operands.size() > 5) {
    std::vector<float> gain;
    XJIT_RETURN_IF_ERROR(eval.Vector(op.weight(5), &gain));
    NormGroups(gain, static_cast<float>(op.Float("eps")), &c);
  }
  const float q_scale = static_cast<float>(op.Float("scale") * std::numbers::log2e);
  const auto tokens = eval.Tokens(0);
  std::vector<float> rotated(static_cast<size_t>(k_pe.cols));
  for (int64_t m = 0; m < q.rows; ++m) {
    RotateHeads(q.row(m), table.row(m), op.Int("heads"), q.cols, op.Int("nope_dim"), table.cols, y.row(m));
    for (int64_t i = 0; i < q.cols; ++i) y.row(m)[i] *= q_scale;
    RotateHeads(k_pe.row(m), table.row(m), 1, k_pe.cols, 0, table.cols, rotated.data());
    StoreLatent(eval, tokens[static_cast<size_t>(m)], c.row(m), c.cols, rotated.data(), k_pe.cols);
  }
  return absl::OkStatus();
}

}  // namespace

OpInfo DefineKvStoreLatent() {
  return {
      .operands = {{"c", OperandKind::kFloat}, {"k_pe", OperandKind::kFloat}, {"step", OperandKind::kStep}},
      .effects = Effects::kWritesKv,
      .verify = VerifyKvStoreLatent,
      .reference = EvalKvStoreLatent,
      .doc = "stores c and k_pe of this step's tokens, side by side, at their positions in this layer's latent cache"};
}
OpInfo DefineMlaAttention() {
  return {.operands = {{"q", OperandKind::kFloat}, {"step", OperandKind::kStep}, {"kv_b", OperandKind::kMatrix}},
          .attrs = {IntAttr("heads"), IntAttr("nope_dim"), IntAttr("v_dim"), FloatAttr("scale")},
          .results = {"a"},
          .effects = Effects::kReadsKv,
          .infer = InferMlaAttention,
          .reference = EvalMlaAttention,
          .doc =
              "causal attention over the latent cache: head h has keys (kv_b[h] first nope_dim rows . c, k_pe) and "
              "values kv_b[h] last v_dim rows . c  [DeepSeek-AI 2024, arXiv:2405.04434]"};
}
OpInfo DefineAbsorbQ() {
  return {.operands = {{"q", OperandKind::kFloat}, {"kv_b", OperandKind::kMatrix}},
          .attrs = {IntAttr("heads"), IntAttr("nope_dim"), IntAttr("v_dim")},
          .results = {"q"},
          .infer = InferAbsorbQ,
          .reference = EvalAbsorbQ,
          .doc = "head h: (key rows of kv_b[h], transposed, . q_nope; q_pe), so that q meets the latent itself"};
}
OpInfo DefineAbsorbV() {
  return {.operands = {{"a", OperandKind::kFloat}, {"kv_b", OperandKind::kMatrix}},
          .attrs = {IntAttr("heads"), IntAttr("nope_dim"), IntAttr("v_dim")},
          .results = {"a"},
          .infer = InferAbsorbV,
          .reference = EvalAbsorbV,
          .doc = "head h: value rows of kv_b[h] . the attended latent"};
}
OpInfo DefineMlaExtend() {
  return {.operands = {{"q", OperandKind::kAct}, {"step", OperandKind::kStep}, {"kv_b", OperandKind::kMatrix}},
          .attrs = {IntAttr("heads"), IntAttr("nope_dim"), IntAttr("v_dim"), StrAttr("kv", "f32")},
          .results = {"a"},
          .effects = Effects::kReadsKv,
          .infer = InferMlaAttention,
          .verify = VerifyKvType,
          .reference = EvalMlaExtend,
          .doc =
              "mla_attention with online softmax in base 2 on a scaled q: a block of the latent cache is expanded by "
              "kv_b once and met by all rows"};
}
OpInfo DefineLatentStore() {
  return {.operands = {{"q", OperandKind::kFloat},
                       {"c", OperandKind::kFloat},
                       {"k_pe", OperandKind::kFloat},
                       {"rope", OperandKind::kFloat},
                       {"step", OperandKind::kStep},
                       {"c_gain", OperandKind::kVector}},
          .optional = 1,
          .attrs = {IntAttr("heads"), IntAttr("nope_dim"), FloatAttr("scale"), FloatAttr("eps", 0.0),
                    StrAttr("q", "f32"), StrAttr("kv", "f32")},
          .results = {"q"},
          .effects = Effects::kWritesKv,
          .infer = InferLatentStore,
          .verify = VerifyKvType,
          .reference = EvalLatentStore,
          .doc =
              "norm of c where its gain is given, rope of k_pe and of what each head of q has behind nope_dim, "
              "kv_store_latent (as kv says), q scaled by scale * log2(e)"};
}

}  // namespace xjit
