// Rotary embedding, the KV cache and attention.
#include <algorithm>
#include <numbers>

#include "ir/interpreter.h"
#include "ir/ops.h"
#include "ir/support/ref/attention.h"
#include "ir/support/ref/rope.h"

namespace xjit {
namespace {

absl::Status CheckHeads(const Op& op, size_t operand, int64_t heads) {
  const int64_t cols = op.operand(operand)->type.cols();
  if (heads <= 0 || cols % heads != 0 || cols / heads % 2 != 0) {
    return InvalidArgument("{}: {} columns are not {} heads of an even size", Name(op.code), cols, heads);
  }
  return absl::OkStatus();
}

absl::Status InferRopeTable(const Op& op, const Module*, std::vector<Type>* types) {
  types->push_back(Type::Rows(Dim::Symbol('T'), 2 * op.weight(1)->type.cols()));
  return absl::OkStatus();
}

absl::Status EvalRopeTable(const Op& op, EvalContext& eval) {
  std::vector<float> freq;
  XJIT_RETURN_IF_ERROR(eval.Vector(op.weight(1), &freq));
  const auto& positions = eval.step->positions;
  const int64_t rows = static_cast<int64_t>(positions.size());
  ref::RopeTable(positions.data(), rows, freq.data(), static_cast<int64_t>(freq.size()),
                 static_cast<float>(op.Float("scale")), eval.Out(rows).f.data());
  return absl::OkStatus();
}

absl::Status CheckTable(const Op& op, size_t table, int64_t head_dim) {
  if (op.operand(table)->type.dims[0] != op.operand(0)->type.dims[0]) {
    return InvalidArgument("{}: the table is {}, which has other rows than {}", Name(op.code),
                           ToString(op.operand(table)->type), ToString(op.operand(0)->type));
  }
  if (op.operand(table)->type.cols() == head_dim) return absl::OkStatus();
  return InvalidArgument("{}: the table has {} columns, a head {}", Name(op.code), op.operand(table)->type.cols(),
                         head_dim);
}

absl::Status InferRope(const Op& op, const Module*, std::vector<Type>* types) {
  XJIT_RETURN_IF_ERROR(CheckHeads(op, 0, op.Int("heads")));
  XJIT_RETURN_IF_ERROR(CheckTable(op, 1, op.operand(0)->type.cols() / op.Int("heads")));
  types->push_back(op.operand(0)->type);
  return absl::OkStatus();
}

void RotateRow(const float* x, const float* table, int64_t heads, int64_t head_dim, float* y) {
  for (int64_t h = 0; h < heads; ++h) ref::Rotate(x + h * head_dim, table, head_dim, head_dim, y + h * head_dim);
}

absl::Status EvalRope(const Op& op, EvalContext& eval) {
  const TensorData& x = eval.In(0);
  const TensorData& table = eval.In(1);
  TensorData& y = eval.Out(x.rows);
  const int64_t heads = op.Int("heads");
  for (int64_t m = 0; m < x.rows; ++m) RotateRow(x.row(m), table.row(m), heads, x.cols / heads, y.row(m));
  return absl::OkStatus();
}

absl::Status VerifyKvStore(const Op& op, const Module*) {
  XJIT_RETURN_IF_ERROR(CheckHeads(op, 0, op.Int("kv_heads")));
  if (op.operand(0)->type != op.operand(1)->type) return InvalidArgument("kv_store: k and v differ in type");
  return absl::OkStatus();
}

absl::Status StoreKv(EvalContext& eval, int64_t row, const float* k, const float* v, int64_t cols) {
  InterpKv& kv = *eval.step->kv[static_cast<size_t>(row)];
  const int64_t position = eval.step->positions[static_cast<size_t>(row)];
  for (auto [map, from] : {std::pair{&kv.k, k}, std::pair{&kv.v, v}}) {
    std::vector<float>& store = (*map)[eval.layer];
    const size_t need = static_cast<size_t>((position + 1) * cols);
    if (store.size() < need) store.resize(need);
    std::copy_n(from, cols, store.begin() + position * cols);
  }
  return absl::OkStatus();
}

absl::Status EvalKvStore(const Op&, EvalContext& eval) {
  const TensorData& k = eval.In(0);
  const TensorData& v = eval.In(1);
  for (int64_t m = 0; m < k.rows; ++m) XJIT_RETURN_IF_ERROR(StoreKv(eval, m, k.row(m), v.row(m), k.cols));
  return absl::OkStatus();
}

absl::Status InferAttention(const Op& op, const Module*, std::vector<Type>* types) {
  const int64_t heads = op.Int("heads"), kv_heads = op.Int("kv_heads");
  XJIT_RETURN_IF_ERROR(CheckHeads(op, 0, heads));
  if (kv_heads <= 0 || heads % kv_heads != 0) {
    return InvalidArgument("{}: {} query heads do not share {} KV heads evenly", Name(op.code), heads, kv_heads);
  }
  if (op.Int("window") < 0) return InvalidArgument("{}: window is negative", Name(op.code));
  Type type = op.operand(0)->type;
  type.elem = DType::kF32;
  types->push_back(type);
  return absl::OkStatus();
}

absl::Status Attend(const Op& op, EvalContext& eval, double scale) {
  const TensorData& q = eval.In(0);
  TensorData& y = eval.Out(q.rows);
  const int64_t heads = op.Int("heads"), kv_heads = op.Int("kv_heads"), window = op.Int("window");
  const int64_t head_dim = q.cols / heads;
  for (int64_t m = 0; m < q.rows; ++m) {
    InterpKv& kv = *eval.step->kv[static_cast<size_t>(m)];
    const int64_t position = eval.step->positions[static_cast<size_t>(m)];
    const int64_t begin = window > 0 ? std::max<int64_t>(0, position - window + 1) : 0;
    const auto& k = kv.k[eval.layer];
    const auto& v = kv.v[eval.layer];
    if (static_cast<int64_t>(k.size()) < (position + 1) * kv_heads * head_dim) {
      return InvalidArgument("{}: the KV cache ends before position {} (is kv_store missing?)", Name(op.code),
                             position);
    }
    for (int64_t h = 0; h < heads; ++h) {
      const int64_t at = h / (heads / kv_heads) * head_dim;
      ref::AttendOne(q.row(m) + h * head_dim, k.data() + at, v.data() + at, kv_heads * head_dim, begin, position + 1,
                     head_dim, scale, y.row(m) + h * head_dim);
    }
  }
  return absl::OkStatus();
}

absl::Status EvalAttention(const Op& op, EvalContext& eval) { return Attend(op, eval, op.Float("scale")); }
absl::Status EvalFlashAttention(const Op& op, EvalContext& eval) { return Attend(op, eval, std::numbers::ln2); }

absl::Status VerifyKvType(const Op& op, const Module*) {
  const auto kv = ParseDType(op.Str("kv"));
  if (kv == DType::kF32 || kv == DType::kBF16) return absl::OkStatus();
  return InvalidArgument("{}: kv is f32 or bf16, not '{}'", Name(op.code), op.Str("kv"));
}

absl::Status InferRopeStore(const Op& op, const Module*, std::vector<Type>* types) {
  const int64_t heads = op.Int("heads"), kv_heads = op.Int("kv_heads");
  XJIT_RETURN_IF_ERROR(CheckHeads(op, 0, heads));
  XJIT_RETURN_IF_ERROR(CheckHeads(op, 1, kv_heads));
  const int64_t head_dim = op.operand(0)->type.cols() / heads;
  if (op.operand(1)->type.dims[0] != op.operand(0)->type.dims[0] || op.operand(1)->type.cols() / kv_heads != head_dim ||
      op.operand(1)->type != op.operand(2)->type) {
    return InvalidArgument("rope_store: k and v must be {} heads of {}", kv_heads, head_dim);
  }
  XJIT_RETURN_IF_ERROR(CheckTable(op, 3, head_dim));
  const auto q = ParseDType(op.Str("q"));
  if (q != DType::kF32 && q != DType::kBF16)
    return InvalidArgument("rope_store: q is f32 or bf16, not '{}'", op.Str("q"));
  types->push_back(Type::Rows(op.operand(0)->type.dims[0], heads * head_dim, *q));
  return absl::OkStatus();
}

absl::Status EvalRopeStore(const Op& op, EvalContext& eval) {
  const TensorData& q = eval.In(0);
  const TensorData& k = eval.In(1);
  const TensorData& v = eval.In(2);
  const TensorData& table = eval.In(3);
  TensorData& y = eval.Out(q.rows);
  const int64_t heads = op.Int("heads"), kv_heads = op.Int("kv_heads"), head_dim = q.cols / heads;
  const float q_scale = static_cast<float>(op.Float("scale") * std::numbers::log2e);
  std::vector<float> rotated(static_cast<size_t>(k.cols));
  for (int64_t m = 0; m < q.rows; ++m) {
    RotateRow(q.row(m), table.row(m), heads, head_dim, y.row(m));
    for (int64_t i = 0; i < q.cols; ++i) y.row(m)[i] *= q_scale;
    RotateRow(k.row(m), table.row(m), kv_heads, head_dim, rotated.data());
    XJIT_RETURN_IF_ERROR(StoreKv(eval, m, rotated.data(), v.row(m), k.cols));
  }
  return absl::OkStatus();
}

}  // namespace

OpInfo DefineRopeTable() {
  return {.operands = {{"step", OperandKind::kStep}, {"inv_freq", OperandKind::kVector}},
          .attrs = {FloatAttr("scale", 1.0)},
          .results = {"rope"},
          .infer = InferRopeTable,
          .reference = EvalRopeTable,
          .doc = "row m: cosines, then sines, of position(m) * inv_freq, times scale (yarn's attention factor)"};
}
OpInfo DefineRope() {
  return {.operands = {{"x", OperandKind::kFloat}, {"rope", OperandKind::kFloat}},
          .attrs = {IntAttr("heads")},
          .results = {"r"},
          .infer = InferRope,
          .reference = EvalRope,
          .doc = "rotates pairs (i, i + d/2) of each head  [Su et al. 2021, arXiv:2104.09864]"};
}
OpInfo DefineKvStore() {
  return {.operands = {{"k", OperandKind::kFloat}, {"v", OperandKind::kFloat}, {"step", OperandKind::kStep}},
          .attrs = {IntAttr("kv_heads")},
          .effects = Effects::kWritesKv,
          .verify = VerifyKvStore,
          .reference = EvalKvStore,
          .doc = "stores k and v of this step's tokens at their positions in this layer's cache"};
}
OpInfo DefineAttention() {
  return {.operands = {{"q", OperandKind::kFloat}, {"step", OperandKind::kStep}},
          .attrs = {IntAttr("heads"), IntAttr("kv_heads"), FloatAttr("scale"), IntAttr("window", 0)},
          .results = {"a"},
          .effects = Effects::kReadsKv,
          .infer = InferAttention,
          .reference = EvalAttention,
          .doc = "causal attention over this layer's cache; window > 0: over the last window tokens only"};
}
OpInfo DefineRopeStore() {
  return {
      .operands = {{"q", OperandKind::kFloat},
                   {"k", OperandKind::kFloat},
                   {"v", OperandKind::kFloat},
                   {"rope", OperandKind::kFloat},
                   {"step", OperandKind::kStep}},
      .attrs = {IntAttr("heads"), IntAttr("kv_heads"), FloatAttr("scale"), StrAttr("q", "f32"), StrAttr("kv", "f32")},
      .results = {"q"},
      .effects = Effects::kWritesKv,
      .infer = InferRopeStore,
      .verify = VerifyKvType,
      .reference = EvalRopeStore,
      .doc = "rope of q and k, kv_store of k and v (as kv says), q scaled by scale * log2(e) for a softmax in base 2"};
}
OpInfo DefineFlashAttention() {
  return {
      .operands = {{"q", OperandKind::kAct}, {"step", OperandKind::kStep}},
      .attrs = {IntAttr("heads"), IntAttr("kv_heads"), IntAttr("window", 0), StrAttr("kv", "f32")},
      .results = {"a"},
      .effects = Effects::kReadsKv,
      .infer = InferAttention,
      .verify = VerifyKvType,
      .reference = EvalFlashAttention,
      .doc =
          "attention with online softmax in base 2 on a scaled q; one row of a sequence is split over its KV, several "
          "go block by block over prefix and triangle  [Dao 2023, arXiv:2307.08691]"};
}

}  // namespace xjit
