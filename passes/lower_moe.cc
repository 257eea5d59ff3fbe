#include "passes/lower_moe.h"

#include "ir/chains.h"
#include "ir/ops.h"

namespace xjit {
namespace {

constexpr std::string_view kWayOut = "--backend interp runs it";

absl::Status NoKernel(std::string_view what) {
  return Unimplemented("grouped_gemm: {} has no kernel yet ({})", what, kWayOut);
}

bool IsGateUp(const Op& op) {
  return op.code == OpCode::kGroupedGemm && op.Item("epilogue", "silu_mul") != nullptr &&
         op.Item("epilogue", "combine") == nullptr;
}
bool IsDown(const Op& op) {
  return op.code == OpCode::kGroupedGemm && op.Item("epilogue", "combine") != nullptr &&
         op.Item("epilogue", "silu_mul") == nullptr;
}

}  // namespace

absl::Status CheckGroupedGemm(const Op& op) {
  if (op.operands.size() - ChainOperands(op) != 5) return NoKernel("a product whose rows are not sorted");
  const Op* sort = op.operand(3) == nullptr ? nullptr : op.operand(3)->def;
  if (sort == nullptr || sort->code != OpCode::kMoeSort || op.operand(3) != sort->result(0))
    return NoKernel("an order that moe_sort did not make");
  const Weight& w = *op.weight(2);
  if (w.type.scales.act_order) return NoKernel(fmt::format("@{} with columns in an order of its own", w.name));
  if (IsGateUp(op)) {
    if (op.operand(0)->type.cols() != w.type.cols()) return NoKernel("gate and up of a row for each slot");
    return absl::OkStatus();
  }
  if (!IsDown(op)) return NoKernel("a product that is neither of gate and up with silu_mul nor combined");
  const Op* def = op.operand(0)->def;
  if (def == nullptr || !IsGateUp(*def)) return NoKernel("a combined product of other rows than silu_mul's");
  for (const size_t i : {1, 3, 4}) {
    if (def->operands[i] != op.operands[i]) return NoKernel("a combined product of other experts than its rows'");
  }
  if (def->Int("first") != op.Int("first")) return NoKernel("a combined product of another share of the experts");
  return absl::OkStatus();
}

absl::StatusOr<MoeProducts> ProductsOf(const Function& f, const Op& sort) {
  MoeProducts products;
  for (const Op* user : f.Users(sort.result(0))) {
    if (user->code != OpCode::kGroupedGemm) return NoKernel("another use of the sorted order");
    XJIT_RETURN_IF_ERROR(CheckGroupedGemm(*user));
    // The lowered products have only the sort's own experts and runs.
    if (user->operand(1) != sort.operand(0)) return NoKernel("a product of other experts than sorted");
    if (user->operand(4) != sort.result(1)) return NoKernel("runs of another sort than the order");
    const Op*& product = IsDown(*user) ? products.down : products.gate_up;
    if (product != nullptr && product != user) return NoKernel("a second pair of products of the same experts");
    product = user;
  }
  if (products.gate_up == nullptr || products.down == nullptr) return NoKernel("one product of the experts alone");
  if (f.Users(products.gate_up->result()).size() != 1) return NoKernel("a second user of the experts' intermediate");
  if (products.down->weight(2)->type.rows() != products.gate_up->weight(2)->type.cols())
    return NoKernel("a result of another width than its input");
  if (products.gate_up->Int("first") != sort.Int("first")) return NoKernel("a sort of other experts than multiplied");
  return products;
}

MoeDesc DescOf(const MoeProducts& products, int64_t rows) {
  const Weight &gate_up = *products.gate_up->weight(2), &down = *products.down->weight(2);
  return {.experts = gate_up.type.dims[0].size,
          .rows = rows,
          .slots = products.gate_up->operand(1)->type.cols(),
          .hidden = gate_up.type.cols(),
          .intermediate = down.type.cols(),
          .gate_up = gate_up.type.encoding(),
          .down = down.type.encoding(),
          .x = products.gate_up->operand(0)->type.elem,
          .mid = products.gate_up->result()->type.elem};
}

}  // namespace xjit
