#include "passes/lower_check.h"

#include <algorithm>
#include <vector>

#include "codegen/gemm/blocking.h"
#include "codegen/gemm/split.h"
#include "ir/chains.h"
#include "ir/ops.h"
#include "passes/lower.h"
#include "passes/lower_moe.h"

namespace xjit {
namespace {

constexpr std::string_view kWayOut = "--backend interp runs it";

// An op that lowering.h lowers: attributes that it reads (others must have their defaults), and items of its chains.
struct Lowered {
  OpCode code;
  std::vector<std::string_view> attrs;
  std::vector<std::string_view> items;
};

const std::vector<Lowered>& Table() {
  static const std::vector<Lowered> kTable = {
      {OpCode::kSlice, {"from", "to"}, {}},
      {OpCode::kReturn, {}, {}},
      {OpCode::kRepeat, {"schedule"}, {}},
      {OpCode::kEmbed, {}, {}},
      {OpCode::kRopeTable, {"scale"}, {}},
      {OpCode::kSelectRows, {}, {}},
      {OpCode::kPrepare, {"out"}, {"rms_norm"}},
      // Its prologue is prepare's by now.
      {OpCode::kGemm, {}, {"bias", "silu_mul", "residual"}},
      {OpCode::kRopeStore, {"heads", "kv_heads", "scale", "eps", "q", "kv"}, {}},
      // One kernel does both forms: the step that it is given says how rows and cache are shared out.
      {OpCode::kFlashAttention, {"heads", "kv_heads", "window", "kv", "form"}, {}},
      {OpCode::kRoute, {"top_k", "score", "normalize", "scale", "groups", "top_groups", "group_top", "constant"}, {}},
      {OpCode::kMoeSort, {"experts", "first"}, {}},
      {OpCode::kGroupedGemm, {"first", "out"}, {"silu_mul", "combine", "residual"}},
      {OpCode::kRmsNorm, {"eps"}, {}},
      {OpCode::kAdd, {}, {}},
      {OpCode::kMul, {}, {}},
      {OpCode::kSilu, {}, {}},
      {OpCode::kAddBias, {}, {}},
  };
  return kTable;
}

absl::Status NoKernel(const Op& op, std::string_view what) {
  return Unimplemented("{}: {} has no kernel yet ({})", Name(op.code), what, kWayOut);
}

// Text may write a whole number where a float is meant.
bool Equal(const Attr& a, const Attr& b) {
  const auto* whole = std::get_if<int64_t>(&a);
  const auto* number = std::get_if<double>(&b);
  return whole != nullptr && number != nullptr ? static_cast<double>(*whole) == *number : a == b;
}

absl::Status CheckAttrs(const Op& op, const Lowered& lowered) {
  for (const AttrSpec& spec : Info(op.code).attrs) {
    const auto it = op.attrs.find(spec.name);
    if (it == op.attrs.end() || std::holds_alternative<Chain>(it->second)) continue;
    if (std::find(lowered.attrs.begin(), lowered.attrs.end(), spec.name) != lowered.attrs.end()) continue;
    if (!spec.fallback.has_value() || !Equal(it->second, *spec.fallback))
      return NoKernel(op, fmt::format("attribute '{}'", spec.name));
  }
  for (const auto& [name, attr] : op.attrs) {
    const Chain* chain = std::get_if<Chain>(&attr);
    if (chain == nullptr) continue;
    for (const ChainItem& item : *chain) {
      if (std::find(lowered.items.begin(), lowered.items.end(), item.name) == lowered.items.end())
        return NoKernel(op, fmt::format("{} item '{}'", name, item.name));
    }
  }
  return absl::OkStatus();
}

// Optional operands have kernels in rope_store, which norms heads, route (a bias) and grouped_gemm (the sorted order).
absl::Status CheckOptional(const Op& op) {
  const OpInfo& info = Info(op.code);
  if (op.code == OpCode::kRopeStore || op.code == OpCode::kRoute || op.code == OpCode::kGroupedGemm)
    return absl::OkStatus();
  const size_t required = info.operands.size() - static_cast<size_t>(info.optional);
  if (info.variadic || op.operands.size() - ChainOperands(op) <= required) return absl::OkStatus();
  return NoKernel(op, fmt::format("operand '{}'", info.operands[required].name));
}

// Caches of fewer bits can be planned, but nothing writes or reads one.
absl::Status CheckKvType(const Op& op) {
  if (op.code != OpCode::kRopeStore && op.code != OpCode::kFlashAttention) return absl::OkStatus();
  const auto kv = ParseDType(op.Str("kv"));
  if (kv == DType::kF32 || kv == DType::kBF16) return absl::OkStatus();
  return NoKernel(op, fmt::format("a KV cache in {}", op.Str("kv")));
}

// A weight whose depth was sorted by group meets columns that prepare sorted alike, and no other weight does.
absl::Status CheckOrder(const Op& op) {
  const Weight* w = op.code == OpCode::kGemm || op.code == OpCode::kEmbed ? op.weight(1) : nullptr;
  if (w == nullptr) return absl::OkStatus();
  const Op* def = op.code == OpCode::kGemm ? op.operand(0)->def : nullptr;
  const std::string order = def != nullptr && def->Has("order_of") ? def->Str("order_of") : "";
  if (order == (w->type.scales.act_order ? w->name : "")) return absl::OkStatus();
  return NoKernel(op, order.empty() ? fmt::format("a row in another order than the columns of @{}", w->name)
                                    : fmt::format("@{} with columns in the order of @{}", w->name, order));
}

// Depth of a gemm (the verifier lets no other op have it) in parts; the number of rows is the program's
// (lower_linear.cc).
absl::Status CheckDepthParts(const Op& op) {
  const Weight& w = *op.weight(1);
  GemmDesc desc{.n = PackedColumns(w), .k = w.type.cols(), .a = op.operand(0)->type.elem, .w = w.type.encoding()};
  desc.rows = 1;
  desc.epilogue.silu_mul = op.Item("epilogue", "silu_mul") != nullptr;
  return Prefix(CheckParts(desc, op.Int("parts")), Name(op.code));
}

absl::Status CheckShapes(const Op& op) {
  XJIT_RETURN_IF_ERROR(CheckOrder(op));
  if (op.code == OpCode::kGroupedGemm) XJIT_RETURN_IF_ERROR(CheckGroupedGemm(op));
  if (op.code == OpCode::kGemm && op.Has("parts")) XJIT_RETURN_IF_ERROR(CheckDepthParts(op));
  if ((op.code == OpCode::kGemm || op.code == OpCode::kGroupedGemm) && op.Has("layout") &&
      op.Str("layout") != kPanelLayout)
    return NoKernel(op, fmt::format("layout '{}'", op.Str("layout")));
  if (op.code == OpCode::kRmsNorm && op.weight(1)->type.cols() != op.operand(0)->type.cols())
    return NoKernel(op, fmt::format("a norm of groups of {} columns", op.weight(1)->type.cols()));
  if (op.code == OpCode::kPrepare) {
    const ChainItem* norm = op.Item("prologue", "rms_norm");
    if (norm != nullptr && ItemOperand(op, *norm).weight->type.cols() != op.operand(0)->type.cols())
      return NoKernel(op, fmt::format("a norm of groups of {} columns", ItemOperand(op, *norm).weight->type.cols()));
  }
  if (op.code == OpCode::kRopeStore) {
    const int64_t head = op.operand(0)->type.cols() / op.Int("heads"), table = op.operand(3)->type.cols();
    const int64_t v_head = op.operand(2)->type.cols() / op.Int("kv_heads");
    if (table != head) return NoKernel(op, fmt::format("a rotation of {} of a head's {} values", table, head));
    if (v_head != head) return NoKernel(op, fmt::format("a head of {} values in v and {} in k", v_head, head));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckLowerable(const Op& op) {
  const auto row = std::find_if(Table().begin(), Table().end(), [&op](const Lowered& l) { return l.code == op.code; });
  if (row == Table().end())
    return Unimplemented("{} has no kernel: it is not implemented, or the pass that rewrites it did not fire ({})",
                         Name(op.code), kWayOut);
  XJIT_RETURN_IF_ERROR(CheckAttrs(op, *row));
  XJIT_RETURN_IF_ERROR(CheckOptional(op));
  XJIT_RETURN_IF_ERROR(CheckKvType(op));
  return CheckShapes(op);
}

absl::Status CheckLowerable(const Module& planned) {
  for (const auto& f : planned.functions) {
    for (const auto& op : f->ops) {
      XJIT_RETURN_IF_ERROR(Prefix(CheckLowerable(*op), fmt::format("@{}", f->name)));
      // plan_blocking found none.
      if (op->code == OpCode::kGemm && !op->Has("kernel")) {
        return Prefix(NoKernel(*op, fmt::format("{} by @{} in {}", Name(op->operand(0)->type.elem), op->weight(1)->name,
                                                ToString(op->weight(1)->type.encoding()))),
                      fmt::format("@{}", f->name));
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace xjit
