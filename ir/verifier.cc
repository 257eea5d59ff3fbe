#include "ir/verifier.h"

#include <algorithm>
#include <set>

#include "ir/ops.h"
#include "ir/support/act_layout.h"
#include "ir/support/align.h"
#include "ir/support/q8_layout.h"

namespace xjit {

int64_t RowStrideBytes(DType elem, int64_t cols) {
  if (elem == DType::kQ8Act) return Q8Layout{cols}.row_bytes();
  if (elem == DType::kI8Act) return I8Layout{cols}.row_bytes();
  return AlignUp(cols, 32) * Info(elem).block_bytes;
}

int64_t ArenaBytes(const Type& type, int64_t rows, int64_t logit_rows) {
  if (!type.is_tensor() || type.dims.empty()) return 0;
  constexpr int64_t kTooMany = kMaxArenaBytes + 1;
  const Dim first = type.dims[0];
  const int64_t count = first.symbol == 'L' ? logit_rows : first.symbolic() ? rows : first.size;
  int64_t cols = 1;
  for (size_t i = 1; i < type.dims.size(); ++i) {
    const int64_t size = type.dims[i].size;
    if (size < 0 || (size > 0 && cols > kMaxArenaBytes / size)) return kTooMany;
    cols *= size;
  }
  const int64_t stride = type.dims.size() == 1 ? Info(type.elem).block_bytes : RowStrideBytes(type.elem, cols);
  if (count < 0 || stride <= 0 || count > kMaxArenaBytes / stride) return kTooMany;
  return count * stride;
}

bool InStrips(const Value& value) {
  return value.def != nullptr && value.def->code == OpCode::kPrepare && value.def->Bool("strips");
}

int64_t ArenaBytes(const Value& value, int64_t rows, int64_t logit_rows) {
  if (!InStrips(value)) return ArenaBytes(value.type, rows, logit_rows);
  const auto whole = [](int64_t count) { return AlignUp(std::min(count, kMaxArenaBytes), kStripRows); };
  Type type = value.type;
  if (!type.dims.empty() && !type.dims[0].symbolic()) type.dims[0].size = whole(type.dims[0].size);
  return ArenaBytes(type, whole(rows), whole(logit_rows));
}

std::optional<int64_t> ArenaOffset(const Value& value) {
  if (value.def == nullptr || !value.def->Has("at")) return std::nullopt;
  if (value.def->result() == &value) return value.def->Int("at");
  const auto it = value.def->attrs.find("at_rest");
  const auto* rest = it == value.def->attrs.end() ? nullptr : std::get_if<std::vector<int64_t>>(&it->second);
  for (size_t i = 1; rest != nullptr && i <= rest->size() && i < value.def->results.size(); ++i) {
    if (value.def->result(i) == &value) return (*rest)[i - 1];
  }
  return std::nullopt;
}

const Value* ViewRoot(const Value* value) {
  while (value->def != nullptr && value->def->code == OpCode::kSlice) value = value->def->operand(0);
  return value;
}

const Value* InPlaceOperand(const Op& op) {
  if (op.code == OpCode::kAdd || op.code == OpCode::kRepeat) return op.operand(0);
  if (op.code != OpCode::kGemm && op.code != OpCode::kAllReduce) return nullptr;
  const ChainItem* residual = op.Item("epilogue", "residual");
  if (residual == nullptr) return nullptr;
  const Value* value = op.operands[static_cast<size_t>(std::get<int>(residual->args[0]))].value;
  // Each column of a product reads all of x, and ranks read one another's x.
  return ViewRoot(op.operand(0)) == ViewRoot(value) ? nullptr : value;
}

LiveRange LiveRangeOf(const Function& function, const Value* value) {
  LiveRange range{value->def == nullptr ? -1 : function.IndexOf(value->def), -1};
  range.last = range.first;
  for (size_t i = 0; i < function.ops.size(); ++i) {
    for (const Operand& o : function.ops[i]->operands) {
      if (o.value != nullptr && ViewRoot(o.value) == value) range.last = static_cast<int>(i);
    }
  }
  return range;
}

namespace {

absl::Status VerifyFunction(const Module& module, const Function& function) {
  std::set<const Value*> defined;
  std::set<std::string> names;
  for (const auto& arg : function.args) {
    defined.insert(arg.get());
    if (!names.insert(arg->name).second) return InvalidArgument("'%{}' is defined twice", arg->name);
  }
  if (function.ops.empty() || function.ops.back()->code != OpCode::kReturn)
    return InvalidArgument("no return at the end");
  for (const auto& op : function.ops) {
    if (op->code == OpCode::kReturn && op != function.ops.back()) return AtOp(*op, InvalidArgument("ops after return"));
    for (const Operand& o : op->operands) {
      if ((o.value == nullptr) == (o.weight == nullptr))
        return AtOp(*op, InvalidArgument("{}: an empty operand", Name(op->code)));
      if (o.value != nullptr && !defined.contains(o.value)) {
        return AtOp(*op, InvalidArgument("{}: '%{}' is used before it is defined", Name(op->code), o.value->name));
      }
      if (o.weight != nullptr && function.FindWeight(o.weight->name) != o.weight) {
        return AtOp(*op, InvalidArgument("{}: '@{}' belongs to another function", Name(op->code), o.weight->name));
      }
    }
    std::vector<Type> types;
    XJIT_RETURN_IF_ERROR(AtOp(*op, CheckOp(*op, &module, &types)));
    if (types.size() != op->results.size())
      return AtOp(*op, InvalidArgument("{}: wrong number of results", Name(op->code)));
    for (size_t i = 0; i < types.size(); ++i) {
      const Value* value = op->result(i);
      if (value->type != types[i]) {
        return AtOp(*op, InvalidArgument("{}: the result is {}, not {}", Name(op->code), ToString(types[i]),
                                         ToString(value->type)));
      }
      if (value->def != op.get()) return AtOp(*op, Internal("{}: a result that names another op", Name(op->code)));
      if (!names.insert(value->name).second) return AtOp(*op, InvalidArgument("'%{}' is defined twice", value->name));
      defined.insert(value);
    }
  }
  return absl::OkStatus();
}

// Checks the offsets that plan_memory wrote: ranges of one arena that live together must not overlap, except that an
// op may write over the operand it reads in place.
absl::Status VerifyMemory(const Module& module, const Function& function) {
  if (!module.attrs.contains("rows")) return absl::OkStatus();
  auto capacity_of = [&](std::string_view name, int64_t otherwise) {
    const auto it = module.attrs.find(name);
    const int64_t* value = it == module.attrs.end() ? nullptr : std::get_if<int64_t>(&it->second);
    return value != nullptr ? *value : otherwise;
  };
  const int64_t rows = capacity_of("rows", 0), logit_rows = capacity_of("logit_rows", rows);
  struct Placed {
    const Op* op;
    const Value* value;
    LiveRange live;
    int64_t begin, end;
    bool own;
  };
  std::vector<Placed> placed;
  for (const auto& op : function.ops) {
    if (!op->Has("at")) continue;
    for (const auto& value : op->results) {
      const std::optional<int64_t> at = ArenaOffset(*value);
      if (!at.has_value())
        return InvalidArgument("memory: '%{}' has no place beside its op's first result", value->name);
      const int64_t bytes = ArenaBytes(*value, rows, logit_rows);
      if (*at < 0 || *at > kMaxArenaBytes || bytes > kMaxArenaBytes) {
        return InvalidArgument("memory: '%{}' lies outside of any arena", value->name);
      }
      placed.push_back(
          {op.get(), value.get(), LiveRangeOf(function, value.get()), *at, *at + bytes, op->Bool("private")});
    }
  }
  for (size_t i = 0; i < placed.size(); ++i) {
    for (size_t j = i + 1; j < placed.size(); ++j) {
      const Placed& a = placed[i];
      const Placed& b = placed[j];  // defined after a
      if (a.own != b.own || a.end <= b.begin || b.end <= a.begin || b.live.first > a.live.last) continue;
      const bool in_place = b.live.first == a.live.last && b.value == b.op->result() &&
                            InPlaceOperand(*b.op) == a.value && a.begin == b.begin;
      if (!in_place) {
        return InvalidArgument("memory: '%{}' [{}, {}) and '%{}' [{}, {}) live at the same time", a.value->name,
                               a.begin, a.end, b.value->name, b.begin, b.end);
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status VerifyModule(const Module& module) {
  std::set<std::string> names;
  for (const auto& function : module.functions) {
    if (!names.insert(function->name).second) return InvalidArgument("function '@{}' is defined twice", function->name);
    XJIT_RETURN_IF_ERROR(Prefix(VerifyFunction(module, *function), fmt::format("@{}", function->name)));
    XJIT_RETURN_IF_ERROR(Prefix(VerifyMemory(module, *function), fmt::format("@{}", function->name)));
  }
  return absl::OkStatus();
}

}  // namespace xjit
