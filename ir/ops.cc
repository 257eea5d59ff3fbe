#include "ir/ops.h"

#include <algorithm>
#include <array>

#include "ir/text.h"

namespace xjit {
namespace {

const std::vector<OpInfo>& Table() {
  static const std::vector<OpInfo> kTable = [] {
    std::vector<OpInfo> table;
#define XJIT_OP(c, n)               \
  table.push_back(Define##c());     \
  table.back().code = OpCode::k##c; \
  table.back().name = n;
#include "ir/ops.inc"
#undef XJIT_OP
    return table;
  }();
  return kTable;
}

bool Fits(const Operand& o, OperandKind kind) {
  const Type* type = o.value != nullptr ? &o.value->type : nullptr;
  switch (kind) {
    case OperandKind::kFloat:
      return type != nullptr && type->is_matrix() && type->elem == DType::kF32 && type->cols() > 0;
    case OperandKind::kAct:
      return type != nullptr && type->is_matrix() && type->cols() > 0 &&
             (type->elem == DType::kF32 || type->elem == DType::kBF16 || type->elem == DType::kF16 ||
              type->elem == DType::kQ8Act || type->elem == DType::kI8Act);
    case OperandKind::kIds:
      return type != nullptr && type->is_tensor() && type->dims.size() == 1 && type->elem == DType::kI32;
    case OperandKind::kRoutes:
      return type != nullptr && type->is_matrix() && type->elem == DType::kI32 && type->cols() > 0;
    case OperandKind::kExperts:
      return o.weight != nullptr && o.weight->type.is_experts();
    case OperandKind::kStep:
      return type != nullptr && type->is_step();
    case OperandKind::kMatrix:
      return o.weight != nullptr && o.weight->type.is_matrix();
    case OperandKind::kVector:
      return o.weight != nullptr && o.weight->type.dims.size() == 1 && o.weight->type.elem == DType::kF32;
  }
  return false;
}

absl::Status CheckAttrs(const Op& op, const OpInfo& info) {
  for (const auto& [name, value] : op.attrs) {
    auto same_name = [&name](const AttrSpec& s) { return s.name == name; };
    auto spec = std::find_if(info.attrs.begin(), info.attrs.end(), same_name);
    if (spec == info.attrs.end()) {
      spec = std::find_if(PlanAttrs().begin(), PlanAttrs().end(), same_name);
      if (spec == PlanAttrs().end()) return InvalidArgument("{}: unknown attribute '{}'", info.name, name);
    }
    const Attr& example = spec->fallback.has_value() ? *spec->fallback : *spec->kind;
    if (example.index() != value.index() &&
        !(std::holds_alternative<double>(example) && std::holds_alternative<int64_t>(value))) {
      return InvalidArgument("{}: attribute '{}' has the wrong kind of value", info.name, name);
    }
  }
  for (const AttrSpec& spec : info.attrs) {
    if (!spec.fallback.has_value() && !op.attrs.contains(spec.name)) {
      return InvalidArgument("{}: attribute '{}' is missing", info.name, spec.name);
    }
  }
  return absl::OkStatus();
}

// Depth is cut into whole blocks; which cuts kernels do is codegen's to say (codegen/gemm/split.h).
absl::Status CheckDepthParts(const Op& op, const OpInfo& info) {
  if (!op.Has("parts")) return absl::OkStatus();
  if (op.code != OpCode::kGemm) return InvalidArgument("{}: attribute 'parts' belongs to gemm", info.name);
  const Type& w = op.weight(1)->type;
  const int64_t parts = op.Int("parts"), block = Info(w.elem).block_elems;
  if (parts < 1) return InvalidArgument("{}: attribute 'parts' is {}, not positive", info.name, parts);
  if (w.cols() % parts == 0 && w.cols() / parts % block == 0) return absl::OkStatus();
  if (block == 1) return InvalidArgument("{}: a depth of {} cannot be cut into {} parts", info.name, w.cols(), parts);
  return InvalidArgument("{}: {} parts of a depth of {} are no whole blocks of {}", info.name, parts, w.cols(), block);
}

}  // namespace

std::string_view KindName(OperandKind kind) {
  switch (kind) {
    case OperandKind::kFloat:
      return "an f32 tensor [rows, columns]";
    case OperandKind::kAct:
      return "a tensor [rows, columns] of f32, bf16, f16, q8act or i8act";
    case OperandKind::kIds:
      return "a tensor [rows] of i32";
    case OperandKind::kRoutes:
      return "a tensor [rows, columns] of i32";
    case OperandKind::kExperts:
      return "a weight @[experts, n, k]";
    case OperandKind::kStep:
      return "!step";
    case OperandKind::kMatrix:
      return "a weight @[n, k]";
    case OperandKind::kVector:
      return "an f32 weight @[n]";
  }
  return "";
}

const OpInfo& Info(OpCode code) { return Table()[static_cast<size_t>(code)]; }
int NumOps() { return static_cast<int>(Table().size()); }

std::optional<OpCode> ParseOpCode(std::string_view name) {
  for (const OpInfo& info : Table()) {
    if (info.name == name) return info.code;
  }
  return std::nullopt;
}

const std::vector<ChainItemSpec>& ChainItems() {
  static const std::vector<ChainItemSpec> kItems = {
      {"prologue", "rms_norm", 1, 1, "(@gain, eps): norms groups of as many columns as the gain has"},
      {"epilogue", "bias", 1, 0, "(@b): adds b[n] to column n; of experts b[expert, n, 0]"},
      {"epilogue", "silu_mul", 0, 0, "of an interleaved weight `gate|up`: silu(gate) * up, half the columns"},
      {"epilogue", "gelu_mul", 0, 0, "the same with gelu(gate)"},
      {"epilogue", "clamped_swiglu", 0, 2, "(limit, alpha): the same as the op of that name"},
      {"epilogue", "soft_cap", 0, 1, "(cap): cap * tanh(y / cap)"},
      {"epilogue", "scale", 0, 1, "(by): y * by"},
      {"epilogue", "combine", 1, 0, "(%weights): a token's slots summed up by weight"},
      {"epilogue", "residual", 1, 0, "(%x): adds x"},
      {"epilogue", "rms_norm", 1, 1, "(@gain, eps): of all_reduce: the normed result as a second one"},
  };
  return kItems;
}

const std::vector<AttrSpec>& PlanAttrs() {
  static const std::vector<AttrSpec> kAttrs = {
      // Byte offset of the first result in the arena.
      {"at", std::nullopt, Attr(int64_t{0})},
      // Of the results behind the first.
      {"at_rest", std::nullopt, Attr(std::vector<int64_t>{})},
      // Every thread computes the result for itself, into its own arena.
      {"private", Attr(false), std::nullopt},
      // Of a prepare op: rows lie in strips (support/act_layout.h), columns in the order of that act_order weight's
      // groups.
      {"strips", Attr(false), std::nullopt},
      {"order_of", std::nullopt, Attr(std::string())},
      // The order in which the weight's bytes lie, and a page of the KV cache (plan_layout).
      {"layout", std::nullopt, Attr(std::string())},
      {"kv_layout", std::nullopt, Attr(std::string())},
      // How a matrix product is cut up (plan_blocking, codegen/gemm/blocking.h): kernel; register or tile grid; rows,
      // columns, depth of a cache block; threads over rows and columns; columns a thread takes at a time; parts of the
      // depth, added up in order (none: one, codegen/gemm/split.h); order of loops.
      {"kernel", std::nullopt, Attr(std::string())},
      {"tile", std::nullopt, Attr(std::vector<int64_t>{})},
      {"block", std::nullopt, Attr(std::vector<int64_t>{})},
      {"split", std::nullopt, Attr(std::vector<int64_t>{})},
      {"chunk", std::nullopt, Attr(int64_t{0})},
      {"parts", std::nullopt, Attr(int64_t{0})},
      {"order", std::nullopt, Attr(std::string())},
      {"unpack_once", Attr(false), std::nullopt},
  };
  return kAttrs;
}

size_t ChainOperands(const Op& op) {
  size_t count = 0;
  for (const auto& [name, value] : op.attrs) {
    const auto* chain = std::get_if<Chain>(&value);
    if (chain == nullptr) continue;
    for (const ChainItem& item : *chain) {
      for (const auto& arg : item.args) count += std::holds_alternative<int>(arg) ? 1 : 0;
    }
  }
  return count;
}

absl::Status CheckOp(const Op& op, const Module* module, std::vector<Type>* types) {
  const OpInfo& info = Info(op.code);
  const size_t fixed = info.operands.size();
  const size_t chain_operands = ChainOperands(op);
  const size_t given = op.operands.size() - chain_operands;
  if (!info.variadic && (given > fixed || given + static_cast<size_t>(info.optional) < fixed)) {
    return InvalidArgument("{}: takes {} operands, {} are given", info.name, fixed,
                           op.operands.size() - chain_operands);
  }
  if (info.variadic && op.operands.size() + 1 < fixed) {
    return InvalidArgument("{}: takes at least {} operands, {} are given", info.name, fixed - 1, op.operands.size());
  }
  for (size_t i = 0; i < std::min(fixed, given) && !info.variadic; ++i) {
    if (!Fits(op.operands[i], info.operands[i].kind)) {
      return InvalidArgument("{}: operand '{}' must be {}", info.name, info.operands[i].name,
                             KindName(info.operands[i].kind));
    }
  }
  XJIT_RETURN_IF_ERROR(CheckAttrs(op, info));
  if (info.infer != nullptr) XJIT_RETURN_IF_ERROR(info.infer(op, module, types));
  if (info.verify != nullptr) XJIT_RETURN_IF_ERROR(info.verify(op, module));
  return CheckDepthParts(op, info);
}

absl::Status AtOp(const Op& op, const absl::Status& status) {
  if (status.ok()) return status;
  if (op.loc.line > 0) return Prefix(status, fmt::format("{}:{}", op.loc.line, op.loc.column));
  if (!op.results.empty()) return Prefix(status, fmt::format("%{}", op.results[0]->name));
  return status;
}

}  // namespace xjit
