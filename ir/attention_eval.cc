#include "ir/attention_eval.h"

#include <algorithm>

#include "ir/support/ref/rope.h"

namespace xjit {

absl::Status CheckHeads(const Op& op, size_t operand, int64_t heads) {
  const int64_t cols = op.operand(operand)->type.cols();
  if (heads > 0 && cols % heads == 0 && cols / heads % 2 == 0) return absl::OkStatus();
  return InvalidArgument("{}: {} columns are not {} heads of an even size", Name(op.code), cols, heads);
}

void RotateHeads(const float* x, const float* table, int64_t heads, int64_t cols, int64_t offset, int64_t rotated,
                 float* y) {
  const int64_t head_dim = cols / heads;
  for (int64_t h = 0; h < heads; ++h) {
    const float* from = x + h * head_dim;
    float* to = y + h * head_dim;
    std::copy_n(from, offset, to);
    ref::Rotate(from + offset, table, head_dim - offset, rotated, to + offset);
  }
}

void StoreKv(EvalContext& eval, int64_t token, std::span<const float> k, std::span<const float> v) {
  InterpKv& kv = *eval.step->kv[static_cast<size_t>(token)];
  const size_t position = static_cast<size_t>(eval.step->positions[static_cast<size_t>(token)]);
  for (auto [map, from] : {std::pair{&kv.k, k}, std::pair{&kv.v, v}}) {
    if (from.empty()) continue;
    std::vector<float>& store = (*map)[eval.layer];
    store.resize(std::max(store.size(), (position + 1) * from.size()));
    std::copy(from.begin(), from.end(), store.begin() + static_cast<ptrdiff_t>(position * from.size()));
  }
}

absl::StatusOr<DType> QueryType(const Op& op) {
  const auto q = ParseDType(op.Str("q"));
  if (q == DType::kF32 || q == DType::kBF16) return *q;
  return InvalidArgument("{}: q is f32 or bf16, not '{}'", Name(op.code), op.Str("q"));
}

absl::Status VerifyKvType(const Op& op, const Module*) {
  const auto kv = ParseDType(op.Str("kv"));
  constexpr DType kTypes[] = {DType::kF32, DType::kBF16, DType::kI8, DType::kF8E4M3, DType::kQ4_0};
  if (kv.has_value() && std::find(std::begin(kTypes), std::end(kTypes), *kv) != std::end(kTypes)) {
    return absl::OkStatus();
  }
  return InvalidArgument("{}: kv is f32, bf16, i8, f8e4m3 or q4_0, not '{}'", Name(op.code), op.Str("kv"));
}

}  // namespace xjit
