#include "passes/cost_ops.h"

#include <algorithm>
#include <cmath>

#include "codegen/kernels.h"
#include "ir/ops.h"
#include "ir/support/align.h"
#include "passes/rewrite.h"

namespace xjit {
namespace {

double ToDouble(int64_t v) { return static_cast<double>(v); }

// Whether a value has rows of the rank's own sequences only.
bool Own(const Value* value) { return value->type.dims[0].symbol == 'R'; }

// As planned, or as the plan will have it.
DType KvType(const Op& op, const PassContext& context) {
  return op.Has("kv") ? ParseDType(op.Str("kv")).value_or(context.kv_dtype) : context.kv_dtype;
}

class Worker {
 public:
  Worker(const Op& op, const PassContext& context) : op_(op), context_(context) {
    work_.replicated = op.Bool("private");
    for (const Operand& o : op.operands) {
      if (work_.weight == nullptr && o.weight != nullptr && o.weight->type.dims.size() >= 2) work_.weight = o.weight;
    }
  }

  absl::StatusOr<OpWork> Run() {
    switch (op_.code) {
      case OpCode::kSlice:
      case OpCode::kReturn:
      case OpCode::kRepeat:
        work_.stage = false;
        break;
      case OpCode::kLinear:
      case OpCode::kGemm:
        Product();
        break;
      case OpCode::kExpertLinear:
      case OpCode::kGroupedGemm:
        XJIT_RETURN_IF_ERROR(GroupedProduct());
        break;
      case OpCode::kEmbed:
        RowOp();
        work_.bytes += ToDouble(Rows(op_.result())) * RowOf(*work_.weight);
        break;
      case OpCode::kAttention:
      case OpCode::kFlashAttention:
        Attention();
        break;
      case OpCode::kMlaAttention:
      case OpCode::kMlaExtend:
        LatentAttention();
        break;
      case OpCode::kAbsorbQ:
      case OpCode::kAbsorbV:
        Absorb();
        break;
      case OpCode::kAllReduce:
        // Reduce-scatter, then all-gather: of every value a rank takes in (tp - 1) / tp twice.
        Collective(2 * TensorBytes(op_.operand(0)));
        break;
      case OpCode::kAllGather:
      case OpCode::kGatherRows:
        Collective(TensorBytes(op_.result()));
        break;
      default:
        RowOp();
    }
    return work_;
  }

 private:
  int64_t RowsPerSequence() const { return CeilDiv(context_.rows, std::max<int64_t>(1, context_.sequences)); }
  // Rows of a value in this step; of a rank's own sequences, those of the rank that has most.
  int64_t Rows(const Value* value) const {
    const Dim& dim = value->type.dims[0];
    switch (dim.symbol) {
      case 0:
        return dim.size;
      case 'L':
        return context_.logit_rows;
      case 'R':
        return OwnSequences(context_) * RowsPerSequence();
      default:
        return context_.rows;
    }
  }
  double TensorBytes(const Value* value) const {
    if (value == nullptr || !value->type.is_tensor() || value->type.dims.empty()) return 0;
    double values = ToDouble(Rows(value));
    for (size_t i = 1; i < value->type.dims.size(); ++i) values *= ToDouble(value->type.dims[i].size);
    return values / Info(value->type.elem).block_elems * Info(value->type.elem).block_bytes;
  }
  static double RowOf(const Weight& w) { return EncodedWeightBytes(w) / std::max(1.0, ToDouble(w.type.dims[0].size)); }

  // The type that a product's activations have: as planned, or what the plan would choose.
  DType Activation(const Weight& w) const {
    const DType elem = op_.operand(0)->type.elem;
    return elem == DType::kF32 ? ActivationFor(w.type.encoding(), context_.target, ManyRows(op_, context_)) : elem;
  }

  // Reads and writes activations once; vectors come from memory.
  void RowOp() {
    for (const Operand& o : op_.operands) {
      if (o.value != nullptr && !o.value->type.is_step()) work_.touched += TensorBytes(o.value);
      if (o.weight != nullptr && o.weight->type.dims.size() == 1) work_.bytes += EncodedWeightBytes(*o.weight);
    }
    for (const auto& result : op_.results) work_.touched += TensorBytes(result.get());
  }

  void Product() {
    const Weight& w = *work_.weight;
    const int64_t rows = Rows(op_.operand(0));
    work_.rate = RateOfProduct(Activation(w), w.type.elem, context_.target);
    if (rows > 0) work_.bytes = EncodedWeightBytes(w);
    work_.stream_share = kWeightStreamShare;
    const double per_row = 2 * ToDouble(w.type.rows()) * ToDouble(w.type.cols());
    work_.flops = per_row * ToDouble(rows);
    work_.timed_flops = per_row * ToDouble(CeilDiv(rows, work_.rate.tile_rows) * work_.rate.tile_rows);
  }

  // The route op that chose the experts of operand 1, or nullptr.
  const Op* Route() const {
    const Op* def = op_.operand(1)->def;
    return def != nullptr && def->code == OpCode::kRoute ? def : nullptr;
  }

  absl::Status GroupedProduct() {
    const Weight& w = *work_.weight;
    const int64_t tokens = Rows(op_.operand(1)), slots = op_.operand(1)->type.cols();
    // Constant experts are visited by every token, the others by chance. A rank may hold some of them only.
    const Op* route = Route();
    const int64_t first = op_.Int("first"), last = first + w.type.dims[0].size;
    const int64_t constant = route == nullptr ? 0 : route->Int("constant");
    const int64_t experts = route == nullptr ? last : route->operand(0)->type.cols();
    const int64_t held = std::clamp<int64_t>(std::min(last, experts) - first, 0, experts);
    const int64_t always = w.type.dims[0].size - held;
    if (experts < 1 || slots < constant || always > constant) {
      return InvalidArgument("{}: {} experts a token of {} and {} constant ones, but the weight has {} to {}",
                             Name(op_.code), slots, experts, constant, first, last);
    }
    work_.rate = RateOfProduct(Activation(w), w.type.elem, context_.target);
    const double chosen = ToDouble(slots - constant), p = std::min(1.0, chosen / ToDouble(experts));
    const int64_t tile = work_.rate.tile_rows;
    const double visited = ExpectedExperts(ToDouble(experts), chosen, ToDouble(tokens));
    const double touched = ToDouble(tokens > 0 ? always : 0) + visited * ToDouble(held) / ToDouble(experts);
    work_.bytes = EncodedWeightBytes(w) / std::max(1.0, ToDouble(w.type.dims[0].size)) * touched;
    work_.stream_share = kWeightStreamShare;
    const double per_row = 2 * ToDouble(w.type.rows()) * ToDouble(w.type.cols());
    work_.flops = per_row * (ToDouble(tokens * always) + ToDouble(held) * p * ToDouble(tokens));
    work_.timed_flops = per_row * (ToDouble(CeilDiv(tokens, tile) * tile * always) +
                                   ToDouble(held) * ExpectedTileRows(tokens, p, tile));
    return absl::OkStatus();
  }

  int64_t KvLength() const { return std::max(context_.kv_length, RowsPerSequence()); }

  // Scores and their weighted sums: `k_dim` and `v_dim` values of each of `heads`, over what each query attends to. The
  // cache is read from memory once a sequence: query blocks and heads that come back to it find it in L2 or L3.
  void Attend(double heads, double k_dim, double v_dim, double row_bytes, int64_t window) {
    const int64_t rows = RowsPerSequence();
    const double sequences = ToDouble(Own(op_.operand(0)) ? OwnSequences(context_) : context_.sequences);
    const int64_t length = KvLength();
    const int64_t read = window > 0 ? std::min(length, window + rows - 1) : length;
    work_.bytes += sequences * ToDouble(read) * row_bytes;
    work_.stream_share = kKvStreamShare;
    work_.rate = RateOfAttention(op_.operand(0)->type.elem, rows == 1, context_.target);
    work_.flops += 2 * heads * (k_dim + v_dim) * sequences * AttendedPairs(rows, length, window);
    work_.timed_flops = work_.flops;
  }

  void Attention() {
    const double heads = ToDouble(std::max<int64_t>(1, op_.Int("heads")));
    const double kv_heads = ToDouble(std::max<int64_t>(1, op_.Int("kv_heads")));
    const double k_dim = ToDouble(op_.operand(0)->type.cols()) / heads;
    const double v_dim = op_.Int("v_dim") > 0 ? ToDouble(op_.Int("v_dim")) : k_dim;
    // A latent row is both: K is all of it, V its beginning.
    const double row = op_.Bool("latent") ? k_dim : k_dim + v_dim;
    Attend(heads, k_dim, v_dim, KvRowBytes(KvType(op_, context_), kv_heads * row, kv_heads), op_.Int("window"));
  }

  // The expanded form: K and V of every cached token are made from its latent row, once a sequence and step.
  void LatentAttention() {
    const Weight& kv_b = *work_.weight;
    const double heads = ToDouble(std::max<int64_t>(1, op_.Int("heads")));
    const double latent = ToDouble(kv_b.type.cols());
    const double k_dim = ToDouble(op_.operand(0)->type.cols()) / heads, v_dim = ToDouble(op_.Int("v_dim"));
    const double row = latent + k_dim - ToDouble(op_.Int("nope_dim"));
    work_.bytes = EncodedWeightBytes(kv_b);
    const double sequences = ToDouble(Own(op_.operand(0)) ? OwnSequences(context_) : context_.sequences);
    work_.flops = 2 * ToDouble(kv_b.type.rows()) * latent * sequences * ToDouble(KvLength());
    Attend(heads, k_dim, v_dim, KvRowBytes(KvType(op_, context_), row, 1), 0);
  }

  // One of the two halves of kv_b, head by head.
  void Absorb() {
    const Weight& kv_b = *work_.weight;
    const double nope = ToDouble(op_.Int("nope_dim")), v = ToDouble(op_.Int("v_dim"));
    const double part = (op_.code == OpCode::kAbsorbQ ? nope : v) / std::max(1.0, nope + v);
    const int64_t rows = Rows(op_.operand(0));
    if (rows > 0) work_.bytes = EncodedWeightBytes(kv_b) * part;
    work_.stream_share = kWeightStreamShare;
    // The weight's rows are its columns here: unpacked to bf16 where there is an instruction for it.
    work_.rate = RateOfProduct(context_.target.isa >= Isa::kAvx512Bf16 ? DType::kBF16 : DType::kF32, kv_b.type.elem,
                               context_.target);
    const double per_row = 2 * ToDouble(kv_b.type.rows()) * ToDouble(kv_b.type.cols()) * part;
    work_.flops = per_row * ToDouble(rows);
    work_.timed_flops = per_row * ToDouble(CeilDiv(rows, work_.rate.tile_rows) * work_.rate.tile_rows);
  }

  void Collective(double bytes) {
    RowOp();
    work_.collective = true;
    work_.link_bytes = bytes * ToDouble(context_.tp - 1) / ToDouble(std::max(1, context_.tp));
  }

  const Op& op_;
  const PassContext& context_;
  OpWork work_;
};

}  // namespace

absl::StatusOr<OpWork> WorkOf(const Op& op, const PassContext& context) { return Worker(op, context).Run(); }

double EncodedWeightBytes(const Weight& weight) {
  const Type& type = weight.type;
  if (type.dims.size() == 1) return RowBytes(type.elem, type.cols()) * 1.0;
  const double experts = type.is_experts() ? ToDouble(type.dims[0].size) : 1;
  return experts * ToDouble(EncodedBytes(type.encoding(), type.rows(), type.cols()));
}

int64_t OwnSequences(const PassContext& context) { return CeilDiv(context.sequences, std::max(1, context.tp)); }

double KvRowBytes(DType type, double cols, double heads) {
  switch (type) {
    case DType::kI8:
    case DType::kF8E4M3:
      return cols + 4 * heads;
    default:
      return cols / Info(type).block_elems * Info(type).block_bytes;
  }
}

double KvBytesStored(const Op& op, const PassContext& context) {
  const auto row = [&](size_t k, size_t v, std::string_view heads) {
    const int64_t sequences = Own(op.operand(k)) ? OwnSequences(context) : context.sequences;
    return ToDouble(sequences) * KvRowBytes(KvType(op, context),
                                            ToDouble(op.operand(k)->type.cols() + op.operand(v)->type.cols()),
                                            heads.empty() ? 1 : ToDouble(op.Int(heads)));
  };
  switch (op.code) {
    case OpCode::kKvStore:
      return row(0, 1, "kv_heads");
    case OpCode::kRopeStore:
      return row(1, 2, "kv_heads");
    case OpCode::kKvStoreLatent:
      return row(0, 1, "");
    case OpCode::kLatentStore:
      return row(1, 2, "");
    default:
      return 0;
  }
}

double ExpectedExperts(double experts, double chosen, double tokens) {
  if (experts <= 0) return 0;
  return experts * (1 - std::pow(1 - std::clamp(chosen / experts, 0.0, 1.0), tokens));
}

double ExpectedTileRows(int64_t tokens, double p, int64_t tile) {
  if (tile <= 1 || tokens <= 0 || p <= 0) return ToDouble(std::max<int64_t>(0, tokens)) * std::max(0.0, p);
  if (p >= 1) return ToDouble(CeilDiv(tokens, tile) * tile);
  // Of the binomial distribution; logarithms, for (1 - p)^tokens may be less than a double holds.
  double rows = 0;
  const double log_p = std::log(p), log_q = std::log1p(-p), all = std::lgamma(ToDouble(tokens) + 1);
  for (int64_t n = 1; n <= tokens; ++n) {
    const double chance = std::exp(all - std::lgamma(ToDouble(n) + 1) - std::lgamma(ToDouble(tokens - n) + 1) +
                                   ToDouble(n) * log_p + ToDouble(tokens - n) * log_q);
    rows += chance * ToDouble(CeilDiv(n, tile) * tile);
  }
  return rows;
}

double AttendedPairs(int64_t rows, int64_t kv_length, int64_t window) {
  const double r = ToDouble(rows), past = ToDouble(kv_length - rows);
  if (window <= 0) return r * past + r * (r + 1) / 2;
  // Token at position p attends to min(p + 1, window): the first `partial` of the rows to all before them.
  const double partial = std::clamp(ToDouble(window) - past, 0.0, r);
  return partial * past + partial * (partial + 1) / 2 + (r - partial) * ToDouble(window);
}

}  // namespace xjit
