// Ops that move rows and hold a model together: embed, slice, select_rows, repeat, return.
#include <algorithm>

#include "ir/interpreter.h"
#include "ir/ops.h"

namespace xjit {
namespace {

// More than any model has; a schedule's layers are looped over.
constexpr int64_t kMaxLayers = 1 << 16;

absl::Status InferEmbed(const Op& op, const Module*, std::vector<Type>* types) {
  types->push_back(Type::Rows(op.operand(0)->type.dims[0], op.weight(1)->type.cols()));
  return absl::OkStatus();
}

absl::Status VerifyEmbed(const Op& op, const Module*) {
  const int64_t rows = op.weight(1)->type.dims[0].size, first = op.Int("first"), vocab = op.Int("vocab");
  if (first == 0 && vocab == 0) return absl::OkStatus();
  if (first < 0 || first + rows > vocab) {
    return InvalidArgument("embed: rows {}..{} are not inside the vocabulary of {}", first, first + rows - 1, vocab);
  }
  return absl::OkStatus();
}

absl::Status EvalEmbed(const Op& op, EvalContext& eval) {
  const TensorData& ids = eval.In(0);
  TensorData& y = eval.Out(ids.rows);
  const int64_t rows = op.weight(1)->type.dims[0].size, first = op.Int("first");
  const int64_t vocab = op.Int("vocab") > 0 ? op.Int("vocab") : rows;
  for (int64_t m = 0; m < ids.rows; ++m) {
    int64_t id = ids.ids[static_cast<size_t>(m)];
    if (id < 0 || id >= vocab) return InvalidArgument("embed: token id {} is outside the vocabulary of {}", id, vocab);
    id -= first;
    if (id < 0 || id >= rows) continue;
    XJIT_RETURN_IF_ERROR(eval.weights->Row(eval.layer, *op.weight(1), id, {y.row(m), static_cast<size_t>(y.cols)}));
  }
  return absl::OkStatus();
}

absl::Status InferSlice(const Op& op, const Module*, std::vector<Type>* types) {
  const int64_t from = op.Int("from"), to = op.Int("to"), cols = op.operand(0)->type.cols();
  if (from < 0 || from >= to || to > cols) {
    return InvalidArgument("slice: columns [{}, {}) are not inside the operand's {}", from, to, cols);
  }
  types->push_back(Type::Rows(op.operand(0)->type.dims[0], to - from));
  return absl::OkStatus();
}

absl::Status EvalSlice(const Op& op, EvalContext& eval) {
  const TensorData& x = eval.In(0);
  TensorData& y = eval.Out(x.rows);
  for (int64_t m = 0; m < x.rows; ++m) std::copy_n(x.row(m) + op.Int("from"), y.cols, y.row(m));
  return absl::OkStatus();
}

absl::Status InferSelectRows(const Op& op, const Module*, std::vector<Type>* types) {
  types->push_back(Type::Rows(Dim::Symbol('L'), op.operand(0)->type.cols()));
  return absl::OkStatus();
}

absl::Status EvalSelectRows(const Op&, EvalContext& eval) {
  const TensorData& x = eval.In(0);
  TensorData& y = eval.Out(static_cast<int64_t>(eval.step->logit_rows.size()));
  for (int64_t m = 0; m < y.rows; ++m) {
    const int64_t row = eval.step->logit_rows[static_cast<size_t>(m)];
    if (row < 0 || row >= x.rows) return InvalidArgument("select_rows: row {} of {}", row, x.rows);
    std::copy_n(x.row(row), y.cols, y.row(m));
  }
  return absl::OkStatus();
}

absl::Status InferRepeat(const Op& op, const Module* module, std::vector<Type>* types) {
  XJIT_ASSIGN_OR_RETURN(const auto runs, ParseSchedule(op.Str("schedule")));
  if (op.operands.empty() || op.operands[0].value == nullptr || !op.operand(0)->type.is_matrix() ||
      op.operand(0)->type.cols() <= 0) {
    return InvalidArgument("repeat: needs the carried value, a tensor [rows, columns]");
  }
  int64_t next = 0;
  for (const ScheduleRun& run : runs) {
    if (run.first != next || run.last < run.first) {
      return InvalidArgument("repeat: layers must be 0, 1, 2, ... in order, '@{}:{}-{}' does not follow {}",
                             run.function, run.first, run.last, next - 1);
    }
    if (run.last >= kMaxLayers) return InvalidArgument("repeat: layer {} is beyond {}", run.last, kMaxLayers);
    next = run.last + 1;
    const Function* f = module == nullptr ? nullptr : module->Find(run.function);
    if (f == nullptr) return InvalidArgument("repeat: there is no function '@{}' above", run.function);
    if (f->args.size() != op.operands.size()) {
      return InvalidArgument("repeat: '@{}' takes {} arguments, {} are given", run.function, f->args.size(),
                             op.operands.size());
    }
    for (size_t i = 0; i < f->args.size(); ++i) {
      if (op.operands[i].value == nullptr || f->args[i]->type != op.operand(i)->type) {
        return InvalidArgument("repeat: argument {} of '@{}' is {}", i, run.function, ToString(f->args[i]->type));
      }
    }
    const Op* ret = f->ops.empty() ? nullptr : f->ops.back().get();
    if (ret == nullptr || ret->code != OpCode::kReturn || ret->operands.size() != 1 ||
        ret->operand(0)->type != f->args[0]->type) {
      return InvalidArgument("repeat: '@{}' must return one value of its first argument's type", run.function);
    }
  }
  if (runs.empty()) return InvalidArgument("repeat: the schedule is empty");
  types->push_back(op.operand(0)->type);
  return absl::OkStatus();
}

absl::Status VerifyReturn(const Op& op, const Module*) {
  for (const Operand& o : op.operands) {
    if (o.value == nullptr || !o.value->type.is_tensor())
      return InvalidArgument("return: takes tensors, not weights or the step");
  }
  return absl::OkStatus();
}

}  // namespace

OpInfo DefineEmbed() {
  return {.operands = {{"ids", OperandKind::kIds}, {"table", OperandKind::kMatrix}},
          .attrs = {IntAttr("first", 0), IntAttr("vocab", 0)},
          .results = {"x"},
          .infer = InferEmbed,
          .verify = VerifyEmbed,
          .reference = EvalEmbed,
          .doc =
              "x[m, :] = table[ids[m], :]; a rank's share: the table holds rows from `first` on of `vocab`, and other "
              "ids give zeros"};
}
OpInfo DefineSlice() {
  return {.operands = {{"x", OperandKind::kFloat}},
          .attrs = {IntAttr("from"), IntAttr("to")},
          .results = {"s"},
          .infer = InferSlice,
          .reference = EvalSlice,
          .doc = "columns [from, to) of x; a view, it costs nothing"};
}
OpInfo DefineSelectRows() {
  return {.operands = {{"x", OperandKind::kFloat}, {"step", OperandKind::kStep}},
          .results = {"last"},
          .infer = InferSelectRows,
          .reference = EvalSelectRows,
          .doc = "the rows of x whose logits this step wants"};
}
OpInfo DefineRepeat() {
  return {.operands = {{"x", OperandKind::kFloat}, {"args", OperandKind::kFloat}},
          .variadic = true,
          .attrs = {StrAttr("schedule")},
          .results = {"x"},
          .infer = InferRepeat,
          .doc = "x = f(x, args...) for each layer; schedule says which function for which layers: \"@layer:0-29\""};
}
OpInfo DefineReturn() {
  return {.operands = {{"values", OperandKind::kFloat}},
          .variadic = true,
          .verify = VerifyReturn,
          .doc = "ends a function with its results"};
}

}  // namespace xjit
