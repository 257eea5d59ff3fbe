// Matrix products: linear as models write it, gemm with its prologue and epilogue as passes make it, and prepare, the
// prologue on its own once a plan has decided who computes it.
#include <algorithm>
#include <bit>
#include <cmath>

#include "ir/interpreter.h"
#include "ir/ops.h"
#include "ir/support/ref/eltwise.h"
#include "ir/support/ref/norm.h"

namespace xjit {
namespace {

absl::Status CheckDepth(const Op& op) {
  const int64_t k = op.operand(0)->type.cols(), wk = op.weight(1)->type.cols();
  if (k == wk) return absl::OkStatus();
  return InvalidArgument(
      "{}: x has k = {} but @{} has k = {} (a weight is [n, k] row-major; is it transposed in the checkpoint?)",
      Name(op.code), k, op.weight(1)->name, wk);
}

absl::Status InferLinear(const Op& op, const Module*, std::vector<Type>* types) {
  XJIT_RETURN_IF_ERROR(CheckDepth(op));
  types->push_back(Type::Rows(op.operand(0)->type.dims[0], op.weight(1)->type.dims[0].size));
  return absl::OkStatus();
}

absl::Status EvalLinear(const Op& op, EvalContext& eval) {
  const TensorData& x = eval.In(0);
  return MatMul(eval, x, *op.weight(1), &eval.Out(x.rows));
}

// Checks the names, arguments and types of a chain against ChainItems().
absl::Status CheckChain(const Op& op, std::string_view chain) {
  for (const ChainItem& item : op.ChainAttr(chain)) {
    const auto& specs = ChainItems();
    const auto spec = std::find_if(specs.begin(), specs.end(),
                                   [&](const ChainItemSpec& s) { return s.chain == chain && s.name == item.name; });
    if (spec == specs.end()) return InvalidArgument("{}: unknown {} item '{}'", Name(op.code), chain, item.name);
    int operands = 0, numbers = 0;
    bool in_order = true;
    for (const auto& arg : item.args) {
      (std::holds_alternative<int>(arg) ? operands : numbers)++;
      in_order = in_order && (numbers == 0 || !std::holds_alternative<int>(arg));
    }
    if (op.Item(chain, item.name) != &item)
      return InvalidArgument("{}: {} item '{}' is given twice", Name(op.code), chain, item.name);
    if (operands != spec->operands || numbers != spec->numbers || !in_order) {
      return InvalidArgument("{}: {} item '{}' takes {} operands and {} numbers", Name(op.code), chain, item.name,
                             spec->operands, spec->numbers);
    }
  }
  return absl::OkStatus();
}

const Operand& ItemOperand(const Op& op, const ChainItem& item) {
  return op.operands[static_cast<size_t>(std::get<int>(item.args[0]))];
}

absl::Status CheckVectorItem(const Op& op, std::string_view chain, std::string_view name, int64_t size) {
  const ChainItem* item = op.Item(chain, name);
  if (item == nullptr) return absl::OkStatus();
  const Operand& o = ItemOperand(op, *item);
  if (o.weight == nullptr || o.weight->type.dims.size() != 1 || o.weight->type.cols() != size ||
      o.weight->type.elem != DType::kF32) {
    return InvalidArgument("{}: {} needs an f32 weight of {} values", Name(op.code), name, size);
  }
  return absl::OkStatus();
}

absl::Status InferGemm(const Op& op, const Module*, std::vector<Type>* types) {
  XJIT_RETURN_IF_ERROR(CheckDepth(op));
  XJIT_RETURN_IF_ERROR(CheckChain(op, "prologue"));
  XJIT_RETURN_IF_ERROR(CheckChain(op, "epilogue"));
  int64_t n = op.weight(1)->type.dims[0].size;
  XJIT_RETURN_IF_ERROR(CheckVectorItem(op, "prologue", "rms_norm", op.operand(0)->type.cols()));
  XJIT_RETURN_IF_ERROR(CheckVectorItem(op, "epilogue", "bias", n));
  if (op.Item("epilogue", "silu_mul") != nullptr) {
    if (!op.weight(1)->interleaved() || op.weight(1)->part_rows.size() != 2 ||
        op.weight(1)->part_rows[0] != op.weight(1)->part_rows[1]) {
      return InvalidArgument("gemm: silu_mul needs a weight interleaved of two equal parts, @gate|up");
    }
    n /= 2;
  }
  types->push_back(Type::Rows(op.operand(0)->type.dims[0], n));
  if (const ChainItem* residual = op.Item("epilogue", "residual")) {
    const Operand& o = ItemOperand(op, *residual);
    if (o.value == nullptr || o.value->type != types->back()) {
      return InvalidArgument("gemm: residual must be {}", ToString(types->back()));
    }
  }
  return absl::OkStatus();
}

absl::Status ApplyPrologue(const Op& op, EvalContext& eval, const TensorData& x, TensorData* y) {
  *y = x;
  for (const ChainItem& item : op.ChainAttr("prologue")) {
    std::vector<float> gain;
    XJIT_RETURN_IF_ERROR(eval.Vector(ItemOperand(op, item).weight, &gain));
    const float eps = static_cast<float>(std::get<double>(item.args[1]));
    for (int64_t m = 0; m < x.rows; ++m) ref::RmsNorm(y->row(m), gain.data(), x.cols, eps, y->row(m));
  }
  return absl::OkStatus();
}

absl::Status EvalGemm(const Op& op, EvalContext& eval) {
  TensorData x, product;
  XJIT_RETURN_IF_ERROR(ApplyPrologue(op, eval, eval.In(0), &x));
  product.rows = x.rows;
  product.cols = op.weight(1)->type.dims[0].size;
  product.f.resize(static_cast<size_t>(product.rows * product.cols));
  XJIT_RETURN_IF_ERROR(MatMul(eval, x, *op.weight(1), &product));
  for (const ChainItem& item : op.ChainAttr("epilogue")) {
    if (item.name == "bias") {
      std::vector<float> bias;
      XJIT_RETURN_IF_ERROR(eval.Vector(ItemOperand(op, item).weight, &bias));
      for (int64_t m = 0; m < product.rows; ++m) ref::Add(product.row(m), bias.data(), product.cols, product.row(m));
    } else if (item.name == "silu_mul") {
      TensorData half;
      half.rows = product.rows;
      half.cols = product.cols / 2;
      half.f.resize(static_cast<size_t>(half.rows * half.cols));
      for (int64_t m = 0; m < product.rows; ++m) {
        ref::SiluMul(product.row(m), product.row(m) + half.cols, half.cols, half.row(m));
      }
      product = std::move(half);
    } else {
      const TensorData& residual = (*eval.values)[ItemOperand(op, item).value];
      for (int64_t m = 0; m < product.rows; ++m)
        ref::Add(product.row(m), residual.row(m), product.cols, product.row(m));
    }
  }
  eval.Out(x.rows).f = std::move(product.f);
  return absl::OkStatus();
}

absl::Status InferPrepare(const Op& op, const Module*, std::vector<Type>* types) {
  XJIT_RETURN_IF_ERROR(CheckChain(op, "prologue"));
  XJIT_RETURN_IF_ERROR(CheckVectorItem(op, "prologue", "rms_norm", op.operand(0)->type.cols()));
  const auto out = ParseDType(op.Str("out"));
  if (!out.has_value() || (*out != DType::kF32 && *out != DType::kBF16 && *out != DType::kQ8Act)) {
    return InvalidArgument("prepare: out is f32, bf16 or q8act, not '{}'", op.Str("out"));
  }
  if (*out == DType::kQ8Act && op.operand(0)->type.cols() % 32 != 0) {
    return InvalidArgument("prepare: q8act needs a multiple of 32 columns, x has {}", op.operand(0)->type.cols());
  }
  types->push_back(Type::Rows(op.operand(0)->type.dims[0], op.operand(0)->type.cols(), *out));
  return absl::OkStatus();
}

// bf16, to nearest even; the values here are finite.
float RoundBf16(float x) {
  uint32_t bits = std::bit_cast<uint32_t>(x);
  bits += 0x7fffu + (bits >> 16 & 1u);
  return std::bit_cast<float>(bits & 0xffff0000u);
}

absl::Status EvalPrepare(const Op& op, EvalContext& eval) {
  TensorData y;
  XJIT_RETURN_IF_ERROR(ApplyPrologue(op, eval, eval.In(0), &y));
  const DType out = op.result()->type.elem;
  if (out == DType::kBF16) {
    for (float& v : y.f) v = RoundBf16(v);
  } else if (out == DType::kQ8Act) {
    for (size_t b = 0; b < y.f.size(); b += 32) {
      float amax = 0;
      for (size_t i = b; i < b + 32; ++i) amax = std::max(amax, std::fabs(y.f[i]));
      for (size_t i = b; i < b + 32; ++i) {
        y.f[i] = amax == 0 ? 0 : std::nearbyint(y.f[i] * (127.0f / amax)) * (amax / 127.0f);
      }
    }
  }
  eval.Out(y.rows).f = std::move(y.f);
  return absl::OkStatus();
}

}  // namespace

OpInfo DefineLinear() {
  return {.operands = {{"x", OperandKind::kFloat}, {"w", OperandKind::kMatrix}},
          .results = {"y"},
          .infer = InferLinear,
          .reference = EvalLinear,
          .doc = "y[m, n] = sum over k of x[m, k] w[n, k]"};
}
OpInfo DefineGemm() {
  return {
      .operands = {{"x", OperandKind::kAct}, {"w", OperandKind::kMatrix}},
      .attrs = {ChainAttr("prologue"), ChainAttr("epilogue")},
      .results = {"y"},
      .infer = InferGemm,
      .reference = EvalGemm,
      .doc =
          "y = epilogue(prologue(x) w^T); prologue: rms_norm(@gain, eps); epilogue: bias(@b), silu_mul, residual(%x)"};
}
OpInfo DefinePrepare() {
  return {.operands = {{"x", OperandKind::kFloat}},
          .attrs = {ChainAttr("prologue"), StrAttr("out")},
          .results = {"p"},
          .infer = InferPrepare,
          .reference = EvalPrepare,
          .doc = "a gemm's prologue on its own, its result converted to what the kernel reads: f32, bf16 or q8act"};
}

}  // namespace xjit
