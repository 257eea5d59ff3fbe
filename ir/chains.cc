#include "ir/chains.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "ir/support/ref/dequant.h"
#include "ir/support/ref/eltwise.h"
#include "ir/support/ref/norm.h"

namespace xjit {
namespace {

// The place of `name` in a list of words; npos where it is not there.
size_t WordAt(std::string_view words, std::string_view name) {
  for (size_t begin = 0; begin < words.size();) {
    const size_t end = std::min(words.find(' ', begin), words.size());
    if (words.substr(begin, end - begin) == name) return begin;
    begin = end + 1;
  }
  return std::string_view::npos;
}

absl::Status CheckVector(const Op& op, const ChainItem& item, int64_t size) {
  const Operand& o = ItemOperand(op, item);
  if (o.weight != nullptr && o.weight->type.dims.size() == 1 && o.weight->type.cols() == size &&
      o.weight->type.elem == DType::kF32) {
    return absl::OkStatus();
  }
  return InvalidArgument("{}: {} needs an f32 weight of {} values", Name(op.code), item.name, size);
}

// bf16, to nearest even; the values here are finite.
float RoundBf16(float x) {
  uint32_t bits = std::bit_cast<uint32_t>(x);
  bits += 0x7fffu + (bits >> 16 & 1u);
  return std::bit_cast<float>(bits & 0xffff0000u);
}

}  // namespace

absl::Status CheckChain(const Op& op, std::string_view chain, std::string_view allowed) {
  size_t last = 0;
  for (const ChainItem& item : op.ChainAttr(chain)) {
    const auto& specs = ChainItems();
    const auto spec = std::find_if(specs.begin(), specs.end(),
                                   [&](const ChainItemSpec& s) { return s.chain == chain && s.name == item.name; });
    if (spec == specs.end()) return InvalidArgument("{}: unknown {} item '{}'", Name(op.code), chain, item.name);
    const size_t at = WordAt(allowed, item.name);
    if (at == std::string_view::npos)
      return InvalidArgument("{}: takes no {} item '{}'", Name(op.code), chain, item.name);
    if (op.Item(chain, item.name) != &item)
      return InvalidArgument("{}: {} item '{}' is given twice", Name(op.code), chain, item.name);
    if (at < last)
      return InvalidArgument("{}: {} item '{}' stands too late (the order is {})", Name(op.code), chain, item.name,
                             allowed);
    last = at;
    int operands = 0, numbers = 0;
    bool in_order = true;
    for (const auto& arg : item.args) {
      (std::holds_alternative<int>(arg) ? operands : numbers)++;
      in_order = in_order && (numbers == 0 || !std::holds_alternative<int>(arg));
    }
    if (operands != spec->operands || numbers != spec->numbers || !in_order) {
      return InvalidArgument("{}: {} item '{}' takes {} operands and {} numbers", Name(op.code), chain, item.name,
                             spec->operands, spec->numbers);
    }
  }
  return absl::OkStatus();
}

const Operand& ItemOperand(const Op& op, const ChainItem& item, size_t i) {
  return op.operands[static_cast<size_t>(std::get<int>(item.args[i]))];
}

double ItemNumber(const ChainItem& item, size_t i) { return std::get<double>(item.args[i]); }

absl::Status CheckPrologue(const Op& op, std::string_view allowed) {
  XJIT_RETURN_IF_ERROR(CheckChain(op, "prologue", allowed));
  for (const ChainItem& item : op.ChainAttr("prologue")) {
    const Weight* gain = ItemOperand(op, item).weight;
    const int64_t cols = op.operand(0)->type.cols();
    if (gain == nullptr || gain->type.dims.size() != 1 || gain->type.elem != DType::kF32 ||
        cols % gain->type.cols() != 0) {
      return InvalidArgument("{}: {} needs an f32 weight whose size divides {} columns", Name(op.code), item.name,
                             cols);
    }
  }
  return absl::OkStatus();
}

void NormGroups(const std::vector<float>& gain, float eps, TensorData* y) {
  const int64_t group = static_cast<int64_t>(gain.size());
  for (int64_t m = 0; m < y->rows; ++m) {
    for (int64_t at = 0; at < y->cols; at += group) {
      ref::RmsNorm(y->row(m) + at, gain.data(), group, eps, y->row(m) + at);
    }
  }
}

absl::StatusOr<DType> ActivationType(const Op& op, int64_t cols) {
  const auto out = ParseDType(op.Str("out"));
  if (!out.has_value() || (*out != DType::kF32 && *out != DType::kBF16 && *out != DType::kF16 &&
                           *out != DType::kQ8Act && *out != DType::kI8Act)) {
    return InvalidArgument("{}: out is f32, bf16, f16, q8act or i8act, not '{}'", Name(op.code), op.Str("out"));
  }
  if (*out == DType::kQ8Act && cols % 32 != 0) {
    return InvalidArgument("{}: q8act needs a multiple of 32 columns, there are {}", Name(op.code), cols);
  }
  return *out;
}

void RoundActivations(DType type, int64_t cols, std::vector<float>* y) {
  if (type == DType::kBF16) {
    for (float& v : *y) v = RoundBf16(v);
  } else if (type == DType::kF16) {
    for (float& v : *y) v = F16ToF32(F32ToF16(v));
  } else if (type == DType::kQ8Act || type == DType::kI8Act) {
    const size_t block = type == DType::kQ8Act ? 32 : static_cast<size_t>(cols);
    for (size_t b = 0; b < y->size(); b += block) {
      float amax = 0;
      for (size_t i = b; i < b + block; ++i) amax = std::max(amax, std::fabs((*y)[i]));
      for (size_t i = b; i < b + block; ++i) {
        (*y)[i] = amax == 0 ? 0 : std::nearbyint((*y)[i] * (127.0f / amax)) * (amax / 127.0f);
      }
    }
  }
}

absl::Status ApplyPrologue(const Op& op, EvalContext& eval, const TensorData& x, TensorData* y) {
  *y = x;
  for (const ChainItem& item : op.ChainAttr("prologue")) {
    std::vector<float> gain;
    XJIT_RETURN_IF_ERROR(eval.Vector(ItemOperand(op, item).weight, &gain));
    NormGroups(gain, static_cast<float>(ItemNumber(item, 1)), y);
  }
  return absl::OkStatus();
}

const ChainItem* GluItem(const Op& op) {
  for (const std::string_view name : {"silu_mul", "gelu_mul", "clamped_swiglu"}) {
    if (const ChainItem* item = op.Item("epilogue", name)) return item;
  }
  return nullptr;
}

void ApplyGlu(const ChainItem& item, const float* gate, const float* up, int64_t n, float* y) {
  if (item.name == "silu_mul") return ref::SiluMul(gate, up, n, y);
  if (item.name == "gelu_mul") return ref::GeluMul(gate, up, n, y);
  ref::ClampedSwiglu(gate, up, n, static_cast<float>(ItemNumber(item, 0)), static_cast<float>(ItemNumber(item, 1)), y);
}

absl::Status InferEpilogue(const Op& op, const Weight& w, Dim rows, std::vector<Type>* types) {
  int64_t n = w.type.rows();
  int glus = 0;
  for (const ChainItem& item : op.ChainAttr("epilogue")) {
    if (item.name == "bias" && !w.type.is_experts()) XJIT_RETURN_IF_ERROR(CheckVector(op, item, n));
    if (item.name == "bias" && w.type.is_experts()) {
      const Weight* bias = ItemOperand(op, item).weight;
      const std::vector<Dim> want = {w.type.dims[0], w.type.dims[1], {1, 0}};
      if (bias == nullptr || bias->type.dims != want) {
        return InvalidArgument("{}: bias needs a weight of {} x {} x 1", Name(op.code), want[0].size, want[1].size);
      }
    }
    if (item.name == "silu_mul" || item.name == "gelu_mul" || item.name == "clamped_swiglu") ++glus;
  }
  if (glus > 1) return InvalidArgument("{}: gate and up are multiplied twice", Name(op.code));
  if (const ChainItem* glu = GluItem(op)) {
    if (!w.interleaved() || w.part_rows.size() != 2 || w.part_rows[0] != w.part_rows[1]) {
      return InvalidArgument("{}: {} needs a weight interleaved of two equal parts, @gate|up", Name(op.code),
                             glu->name);
    }
    n /= 2;
  }
  types->push_back(Type::Rows(rows, n));
  return absl::OkStatus();
}

absl::Status ApplyEpilogue(const Op& op, EvalContext& eval, TensorData* product) {
  for (const ChainItem& item : op.ChainAttr("epilogue")) {
    if (item.name == "bias") {
      std::vector<float> bias;
      XJIT_RETURN_IF_ERROR(eval.Vector(ItemOperand(op, item).weight, &bias));
      for (int64_t m = 0; m < product->rows; ++m) {
        ref::Add(product->row(m), bias.data(), product->cols, product->row(m));
      }
    } else if (item.name == "soft_cap" || item.name == "scale") {
      const float number = static_cast<float>(ItemNumber(item, 0));
      const auto apply = item.name == "scale" ? ref::Scale : ref::SoftCap;
      apply(product->f.data(), static_cast<int64_t>(product->f.size()), number, product->f.data());
    } else if (item.name == "residual") {
      const TensorData& residual = (*eval.values)[ItemOperand(op, item).value];
      ref::Add(product->f.data(), residual.f.data(), static_cast<int64_t>(product->f.size()), product->f.data());
    } else {
      TensorData half;
      half.rows = product->rows;
      half.cols = product->cols / 2;
      half.f.resize(static_cast<size_t>(half.rows * half.cols));
      for (int64_t m = 0; m < product->rows; ++m) {
        ApplyGlu(item, product->row(m), product->row(m) + half.cols, half.cols, half.row(m));
      }
      *product = std::move(half);
    }
  }
  return absl::OkStatus();
}

}  // namespace xjit
