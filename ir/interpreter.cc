#include "ir/interpreter.h"

#include <numeric>

#include "ir/ops.h"

namespace xjit {

TensorData& EvalContext::Out(int64_t rows, size_t result) const {
  const Value* value = op->result(result);
  TensorData& data = (*values)[value];
  data.rows = rows;
  data.cols = value->type.cols();
  const size_t size = static_cast<size_t>(data.rows * data.cols);
  data.f.clear();
  data.ids.clear();
  if (value->type.elem == DType::kI32) {
    data.ids.assign(size, 0);
  } else {
    data.f.assign(size, 0.0f);
  }
  return data;
}

std::vector<int64_t> InterpStep::OwnRows(int rank, int size) const {
  std::vector<int64_t> rows;
  for (size_t i = 0; i < ids.size(); ++i) {
    if ((sequence.empty() ? 0 : sequence[i]) % size == rank) rows.push_back(static_cast<int64_t>(i));
  }
  return rows;
}

std::vector<int64_t> EvalContext::Tokens(size_t operand) const {
  const Value* value = op->operands[operand].value;
  if (value->type.dims[0].symbol == 'R') {
    return step->OwnRows(step->ranks != nullptr ? step->ranks->rank() : 0,
                         step->ranks != nullptr ? step->ranks->size() : 1);
  }
  std::vector<int64_t> tokens(static_cast<size_t>(In(operand).rows));
  std::iota(tokens.begin(), tokens.end(), int64_t{0});
  return tokens;
}

absl::Status EvalContext::Vector(const Weight* w, std::vector<float>* out) const {
  out->resize(static_cast<size_t>(w->type.cols()));
  return weights->Row(layer, *w, 0, *out);
}

float Dot(const float* x, const float* w, int64_t k) {
  // Order hardly matters to the result, and the additions overlap.
  double sum[4] = {0, 0, 0, 0};
  for (int64_t i = 0; i < k; ++i) sum[i & 3] += static_cast<double>(x[i]) * static_cast<double>(w[i]);
  return static_cast<float>((sum[0] + sum[1]) + (sum[2] + sum[3]));
}

absl::Status MatMul(const EvalContext& eval, const TensorData& x, const Weight& w, TensorData* y) {
  const int64_t n = w.type.dims[0].size;
  const int64_t k = w.type.dims[1].size;
  std::vector<float> row(static_cast<size_t>(k));
  for (int64_t j = 0; j < n; ++j) {
    XJIT_RETURN_IF_ERROR(eval.weights->Row(eval.layer, w, j, row));
    for (int64_t m = 0; m < x.rows; ++m) y->row(m)[j] = Dot(x.row(m), row.data(), k);
  }
  return absl::OkStatus();
}

namespace {

absl::StatusOr<std::vector<TensorData>> Run(const Module& module, const Function& function,
                                            std::vector<TensorData> args, const InterpStep& step, int64_t layer,
                                            WeightSource& weights);

absl::StatusOr<TensorData> RunRepeat(const Module& module, const Op& op, std::map<const Value*, TensorData>& values,
                                     const InterpStep& step, WeightSource& weights) {
  XJIT_ASSIGN_OR_RETURN(const auto runs, ParseSchedule(op.Str("schedule")));
  TensorData carried = values.at(op.operand(0));
  for (const ScheduleRun& run : runs) {
    const Function* layer_function = module.Find(run.function);
    for (int64_t layer = run.first; layer <= run.last; ++layer) {
      std::vector<TensorData> args;
      args.push_back(std::move(carried));
      for (size_t i = 1; i < op.operands.size(); ++i) {
        if (!op.operand(i)->type.is_step()) args.push_back(values.at(op.operand(i)));
      }
      XJIT_ASSIGN_OR_RETURN(auto results, Run(module, *layer_function, std::move(args), step, layer, weights));
      carried = std::move(results[0]);
    }
  }
  return carried;
}

absl::StatusOr<std::vector<TensorData>> Run(const Module& module, const Function& function,
                                            std::vector<TensorData> args, const InterpStep& step, int64_t layer,
                                            WeightSource& weights) {
  std::map<const Value*, TensorData> values;
  size_t next = 0;
  for (const auto& arg : function.args) {
    if (arg->type.is_step()) continue;
    if (next >= args.size())
      return Internal("interpreter: @{} needs more arguments than {}", function.name, args.size());
    values[arg.get()] = std::move(args[next++]);
  }
  EvalContext eval;
  eval.layer = layer;
  eval.step = &step;
  eval.weights = &weights;
  eval.values = &values;
  for (const auto& op : function.ops) {
    eval.op = op.get();
    if (op->code == OpCode::kReturn) {
      std::vector<TensorData> results;
      for (const Operand& o : op->operands) results.push_back(values.at(o.value));
      return results;
    }
    if (op->code == OpCode::kRepeat) {
      XJIT_ASSIGN_OR_RETURN(values[op->result()], RunRepeat(module, *op, values, step, weights));
      continue;
    }
    const OpInfo& info = Info(op->code);
    if (info.reference == nullptr) return Internal("interpreter: {} has no reference", info.name);
    XJIT_RETURN_IF_ERROR(AtOp(*op, info.reference(*op, eval)));
  }
  return Internal("interpreter: @{} has no return", function.name);
}

}  // namespace

absl::StatusOr<std::vector<TensorData>> InterpretFunction(const Module& module, const Function& function,
                                                          std::vector<TensorData> args, const InterpStep& step,
                                                          int64_t layer, WeightSource& weights) {
  return Run(module, function, std::move(args), step, layer, weights);
}

absl::StatusOr<TensorData> Interpret(const Module& module, const InterpStep& step, WeightSource& weights) {
  const Function* entry = module.Find("step");
  if (entry == nullptr) return InvalidArgument("module @{} has no @step", module.name);
  TensorData ids;
  ids.rows = static_cast<int64_t>(step.ids.size());
  ids.ids = step.ids;
  std::vector<TensorData> args;
  args.push_back(std::move(ids));
  XJIT_ASSIGN_OR_RETURN(auto results, Run(module, *entry, std::move(args), step, -1, weights));
  if (results.size() != 1) return InvalidArgument("@step returns {} values, not the logits", results.size());
  return std::move(results[0]);
}

}  // namespace xjit
