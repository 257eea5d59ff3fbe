#include "frontend/stored_weight.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <functional>

#include "frontend/printable.h"
#include "ir/support/align.h"
#include "ir/support/ref/dequant.h"
#include "ir/support/status.h"

namespace xjit {
namespace {

bool IsFloat(std::optional<DType> type) { return type == DType::kF32 || type == DType::kF16 || type == DType::kBF16; }

absl::Status Missing(std::string_view name) {
  return absl::NotFoundError(ToAbsl(fmt::format("{} is missing", Printable(name))));
}

// A tensor that belongs to another, by its full name; `reads` says which types it may have.
template <typename Reads>
absl::StatusOr<const TensorView*> Companion(const Checkpoint& checkpoint, const std::string& name, const Reads& reads) {
  const TensorView* view = checkpoint.Find(name);
  if (view == nullptr) return Missing(name);
  if (!reads(*view)) return InvalidArgument("{} is {}, which it cannot be", Printable(name), view->type_name);
  return view;
}
absl::StatusOr<const TensorView*> ScalesOf(const Checkpoint& checkpoint, const std::string& name) {
  return Companion(checkpoint, name, [](const TensorView& view) { return IsFloat(view.type); });
}
absl::StatusOr<const TensorView*> WordsOf(const Checkpoint& checkpoint, const std::string& name) {
  return Companion(checkpoint, name, [](const TensorView& view) { return view.type == DType::kI32; });
}
absl::StatusOr<const TensorView*> BytesOf(const Checkpoint& checkpoint, const std::string& name) {
  return Companion(checkpoint, name, [](const TensorView& view) { return view.type_name == "U8"; });
}

absl::Status WrongShape(const TensorView& view, std::string_view wanted) {
  return InvalidArgument("{} is {} instead of {}", Printable(view.name), ShapeText(view.shape), wanted);
}

bool HasShape(const TensorView& view, std::initializer_list<int64_t> shape) {
  return std::equal(view.shape.begin(), view.shape.end(), shape.begin(), shape.end());
}

// How scales [rows, columns] cover a matrix [n, k], into `m` and the encoding; false where they do not.
bool FitScales(const StoredOptions& options, bool blocks, int64_t rows, int64_t columns, StoredMatrix* m,
               Encoding* encoding) {
  using Kind = Scales::Kind;
  // FP8 checkpoints of DeepSeek's form are in blocks of 128 x 128; a configuration may say otherwise.
  int64_t block_rows = 128, block_cols = 128;
  if (options.declared && options.declared->scales.kind == Kind::kBlock && options.declared->scales.rows > 0 &&
      options.declared->scales.cols > 0) {
    block_rows = options.declared->scales.rows;
    block_cols = options.declared->scales.cols;
    blocks = true;
  }
  const bool in_blocks = rows == CeilDiv(m->n, block_rows) && columns == CeilDiv(m->k, block_cols);
  Scales scales;
  if (in_blocks && blocks) {
    scales = {.kind = Kind::kBlock, .rows = static_cast<int32_t>(block_rows), .cols = static_cast<int32_t>(block_cols)};
  } else if (rows == 1 && columns == 1) {
    scales.kind = Kind::kTensor;
    block_rows = m->n;
    block_cols = m->k;
  } else if (rows == m->n && columns == 1) {
    scales.kind = Kind::kChannel;
    block_rows = 1;
    block_cols = m->k;
  } else if (in_blocks) {
    scales = {.kind = Kind::kBlock, .rows = static_cast<int32_t>(block_rows), .cols = static_cast<int32_t>(block_cols)};
  } else if (rows == m->n && columns > 0 && m->k % columns == 0 && m->k / columns <= INT32_MAX) {
    block_rows = 1;
    block_cols = m->k / columns;
    scales = {.kind = Kind::kGroup, .cols = static_cast<int32_t>(block_cols)};
  } else {
    return false;
  }
  m->scale_rows = std::max<int64_t>(block_rows, 1);
  m->scale_cols = std::max<int64_t>(block_cols, 1);
  if (encoding->type == DType::kI8 && options.declared && options.declared->type == DType::kI8)
    scales.weight_only = options.declared->scales.weight_only;
  encoding->scales = scales;
  return true;
}

// X.weight in int8 or FP8: its scales' layout, with the scales of expert 0 in `m`. Bytes of one expert's scales in
// `stride`.
absl::Status AddScales(const Checkpoint& checkpoint, const TensorView& view, const StoredOptions& options,
                       StoredWeight* out, StoredMatrix* m, int64_t* stride) {
  const std::string inverse = fmt::format("{}_scale_inv", view.name), plain = fmt::format("{}_scale", view.name);
  const bool blocks = checkpoint.Find(inverse) != nullptr;
  if (!blocks && checkpoint.Find(plain) == nullptr) {
    return InvalidArgument("{} is {} without {}", Printable(view.name), view.type_name, Printable(plain));
  }
  XJIT_ASSIGN_OR_RETURN(const TensorView* scales, ScalesOf(checkpoint, blocks ? inverse : plain));
  std::span<const int64_t> shape = scales->shape;
  const auto misfit = [&] {
    return InvalidArgument("{} is {}, no scales for {} of {}", Printable(scales->name), ShapeText(scales->shape),
                           Printable(view.name), ShapeText(view.shape));
  };
  if (out->rank == 3) {
    if (shape.size() != 3 || shape[0] != out->experts) return misfit();
    shape = shape.subspan(1);
  }
  if (shape.size() > 2) return misfit();
  const int64_t rows = shape.empty() ? 1 : shape[0], columns = shape.size() < 2 ? 1 : shape[1];
  if (!FitScales(options, blocks, rows, columns, m, &out->encoding)) return misfit();
  m->scales = scales->data.data();
  m->scale_type = *scales->type;
  *stride = rows * RowBytes(*scales->type, columns);
  out->tensors.push_back(scales);
  return absl::OkStatus();
}

absl::StatusOr<StoredWeight> Plain(const Checkpoint& checkpoint, const TensorView& view, const StoredOptions& options) {
  if (!view.type || *view.type == DType::kI32) {
    return Unimplemented("{} is {}, an encoding that xjit does not read", Printable(view.name), view.type_name);
  }
  if (view.shape.empty() || view.shape.size() > 3) {
    return InvalidArgument("{} is {}, no vector or matrix", Printable(view.name), ShapeText(view.shape));
  }
  // The readers promise bytes for the whole shape: none is zero, and their product fits.
  if (view.data.empty()) {
    return InvalidArgument("{} is {}, which holds nothing", Printable(view.name), ShapeText(view.shape));
  }
  std::vector<int64_t> shape = view.shape;
  if (shape.size() == 2 && options.expert_vectors) shape.push_back(1);
  const DType type = *view.type;
  const bool scaled = type == DType::kI8 || type == DType::kF8E4M3;
  StoredWeight out;
  out.rank = static_cast<int>(shape.size());
  out.experts = out.rank == 3 ? shape[0] : 1;
  out.rows = shape[out.rank == 3 ? 1 : 0];
  out.columns = out.rank == 1 ? 1 : shape.back();
  out.encoding = type;
  out.tensors = {&view};
  StoredMatrix m;
  m.type = type;
  if (options.transposed && view.shape.size() == 3) {
    if (!IsFloat(type)) {
      return Unimplemented("{} is {} and transposed, which xjit does not read", Printable(view.name), view.type_name);
    }
    std::swap(out.rows, out.columns);
    m.layout = StoredMatrix::Layout::kColumns;
  }
  m.n = out.rows;
  m.k = out.columns;
  m.values = view.data.data();
  if (m.k == 1 && (IsQuantized(type) || scaled)) {
    return InvalidArgument("{} is a vector in {}", Printable(view.name), view.type_name);
  }
  if (m.k % Info(type).block_elems != 0) {
    return InvalidArgument("{} is {}, whose rows are no whole blocks of {}", Printable(view.name),
                           ShapeText(view.shape), view.type_name);
  }
  int64_t scale_stride = 0;
  if (scaled) XJIT_RETURN_IF_ERROR(AddScales(checkpoint, view, options, &out, &m, &scale_stride));
  const int64_t stride = m.n * RowBytes(type, m.k);
  out.matrices.reserve(static_cast<size_t>(out.experts));
  for (int64_t e = 0; e < out.experts; ++e) {
    out.matrices.push_back(m);
    m.values += stride;
    if (m.scales != nullptr) m.scales += scale_stride;
  }
  return out;
}

// Group numbers of all elements of k; whether they are other than in order.
absl::StatusOr<bool> IsActOrder(const TensorView& g_idx, int64_t group, int64_t groups) {
  bool act_order = false;
  for (int64_t i = 0; i < g_idx.shape[0]; ++i) {
    int32_t g;
    std::memcpy(&g, g_idx.data.data() + 4 * i, sizeof(g));
    if (g < 0 || g >= groups) {
      return InvalidArgument("{} has group {} at {}, of {} groups", Printable(g_idx.name), g, i, groups);
    }
    act_order |= g != i / group;
  }
  return act_order;
}

// That every zero point is the middle of the range.
bool AllEight(const TensorView& zeros, int offset) {
  const uint32_t eights = 0x11111111u * static_cast<uint32_t>(8 - offset);
  for (size_t i = 0; i < zeros.data.size(); i += 4) {
    uint32_t word;
    std::memcpy(&word, zeros.data.data() + i, sizeof(word));
    if (word != eights) return false;
  }
  return true;
}

// Zero points and group table, where the checkpoint has them, of int4 in groups; the rest of `m` is there.
absl::StatusOr<StoredWeight> FinishInt4(const Checkpoint& checkpoint, const std::string& zeros_name,
                                        const std::string& g_idx_name, std::initializer_list<int64_t> zeros_shape,
                                        StoredMatrix m, StoredWeight out) {
  const int64_t groups = m.k / m.scale_cols;
  if (checkpoint.Find(zeros_name) != nullptr) {
    XJIT_ASSIGN_OR_RETURN(const TensorView* zeros, WordsOf(checkpoint, zeros_name));
    if (!HasShape(*zeros, zeros_shape)) {
      return WrongShape(*zeros, ShapeText(std::span(zeros_shape.begin(), zeros_shape.size())));
    }
    // Symmetric quantisation stores zero points all the same.
    if (!AllEight(*zeros, m.zero_offset)) m.zeros = zeros->data.data();
    out.tensors.push_back(zeros);
  }
  bool act_order = false;
  if (checkpoint.Find(g_idx_name) != nullptr) {
    XJIT_ASSIGN_OR_RETURN(const TensorView* g_idx, WordsOf(checkpoint, g_idx_name));
    if (!HasShape(*g_idx, {m.k})) return WrongShape(*g_idx, fmt::format("[{}]", m.k));
    XJIT_ASSIGN_OR_RETURN(act_order, IsActOrder(*g_idx, m.scale_cols, groups));
    if (act_order) m.group_of = g_idx->data.data();
    out.tensors.push_back(g_idx);
  }
  m.type = DType::kI4;
  out.encoding = Encoding::Int4(static_cast<int32_t>(m.scale_cols), m.zeros != nullptr, act_order);
  out.rank = 2;
  out.rows = m.n;
  out.columns = m.k;
  out.matrices = {m};
  return out;
}

absl::Status CheckGroups(const TensorView& scales, int64_t k, int64_t groups) {
  if (groups >= 1 && k >= 1 && k % groups == 0 && k / groups <= INT32_MAX) return absl::OkStatus();
  return InvalidArgument("{} is {}: {} elements do not divide into {} groups", Printable(scales.name),
                         ShapeText(scales.shape), k, groups);
}

absl::StatusOr<StoredWeight> AwqOrGptq(const Checkpoint& checkpoint, const std::string& module,
                                       const StoredOptions& options) {
  XJIT_ASSIGN_OR_RETURN(const TensorView* words, WordsOf(checkpoint, module + ".qweight"));
  XJIT_ASSIGN_OR_RETURN(const TensorView* scales, ScalesOf(checkpoint, module + ".scales"));
  if (words->shape.size() != 2) return WrongShape(*words, "a matrix");
  if (scales->shape.size() != 2) return WrongShape(*scales, "[groups, n]");
  const int64_t groups = scales->shape[0], n = scales->shape[1];
  StoredWeight out;
  StoredMatrix m;
  using Method = QuantConfig::Method;
  if (n > 0 && n % 8 == 0 && words->shape[1] == n / 8 && options.method != Method::kGptq) {
    m.layout = StoredMatrix::Layout::kAwq;
    m.k = words->shape[0];
  } else if (n > 0 && n % 8 == 0 && words->shape[1] == n && options.method != Method::kAwq) {
    m.layout = StoredMatrix::Layout::kGptq;
    m.k = words->shape[0] * 8;
    m.zero_offset = options.gptq_zero_offset;
  } else {
    return InvalidArgument("{} is {}, no int4 for {} of {}", Printable(words->name), ShapeText(words->shape),
                           Printable(scales->name), ShapeText(scales->shape));
  }
  XJIT_RETURN_IF_ERROR(CheckGroups(*scales, m.k, groups));
  m.n = n;
  m.values = words->data.data();
  m.scales = scales->data.data();
  m.scale_type = *scales->type;
  m.scale_cols = m.k / groups;
  out.tensors = {words, scales};
  return FinishInt4(checkpoint, module + ".qzeros", module + ".g_idx", {groups, n / 8}, m, std::move(out));
}

// compressed-tensors, pack_quantized.py: values and zero points are stored with 8 added.
absl::StatusOr<StoredWeight> Packed(const Checkpoint& checkpoint, const std::string& name) {
  XJIT_ASSIGN_OR_RETURN(const TensorView* words, WordsOf(checkpoint, name + "_packed"));
  XJIT_ASSIGN_OR_RETURN(const TensorView* scales, ScalesOf(checkpoint, name + "_scale"));
  if (words->shape.size() != 2 || words->data.empty()) return WrongShape(*words, "a matrix");
  StoredWeight out;
  StoredMatrix m;
  m.layout = StoredMatrix::Layout::kPacked;
  m.n = words->shape[0];
  m.k = words->shape[1] * 8;
  if (scales->shape.size() != 2 || scales->shape[0] != m.n) {
    return WrongShape(*scales, fmt::format("[{}, groups]", m.n));
  }
  const int64_t groups = scales->shape[1];
  XJIT_RETURN_IF_ERROR(CheckGroups(*scales, m.k, groups));
  m.values = words->data.data();
  m.scales = scales->data.data();
  m.scale_type = *scales->type;
  m.scale_cols = m.k / groups;
  out.tensors = {words, scales};
  // Rows that are padded to whole words would show here.
  if (const TensorView* shape = checkpoint.Find(name + "_shape"); shape != nullptr) {
    int64_t size[2] = {0, 0};
    if (shape->type_name == "I64" && HasShape(*shape, {2})) std::memcpy(size, shape->data.data(), sizeof(size));
    if (size[0] != m.n || size[1] != m.k) {
      return Unimplemented("{} is of {} x {}, not of whole words as {}", Printable(shape->name), size[0], size[1],
                           ShapeText(words->shape));
    }
    out.tensors.push_back(shape);
  }
  return FinishInt4(checkpoint, name + "_zero_point", name + "_g_idx", {CeilDiv(m.n, 8), groups}, m, std::move(out));
}

absl::StatusOr<StoredWeight> Fp4(const Checkpoint& checkpoint, const std::string& name) {
  XJIT_ASSIGN_OR_RETURN(const TensorView* blocks, BytesOf(checkpoint, name + "_blocks"));
  XJIT_ASSIGN_OR_RETURN(const TensorView* scales, BytesOf(checkpoint, name + "_scales"));
  const auto& shape = blocks->shape;
  if ((shape.size() != 3 && shape.size() != 4) || shape.back() != 16) {
    return WrongShape(*blocks, "[experts, n, k / 32, 16]");
  }
  if (!std::equal(shape.begin(), shape.end() - 1, scales->shape.begin(), scales->shape.end())) {
    return WrongShape(*scales, ShapeText(std::span(shape).first(shape.size() - 1)));
  }
  if (blocks->data.empty()) {
    return InvalidArgument("{} is {}, which holds nothing", Printable(blocks->name), ShapeText(shape));
  }
  StoredWeight out;
  out.rank = static_cast<int>(shape.size()) - 1;
  out.experts = out.rank == 3 ? shape[0] : 1;
  out.rows = shape[shape.size() - 3];
  out.columns = shape[shape.size() - 2] * 32;
  out.encoding = DType::kMxfp4;
  out.tensors = {blocks, scales};
  StoredMatrix m;
  m.layout = StoredMatrix::Layout::kFp4;
  m.type = DType::kMxfp4;
  m.n = out.rows;
  m.k = out.columns;
  m.values = blocks->data.data();
  m.scales = scales->data.data();
  for (int64_t e = 0; e < out.experts; ++e) {
    out.matrices.push_back(m);
    m.values += m.n * (m.k / 2);
    m.scales += m.n * (m.k / 32);
  }
  return out;
}

// That a quantised weight is what the configuration says of it: a file whose tensors were exchanged or left out would
// else give wrong numbers without a word. Plain tensors may stay where a configuration would have them converted.
absl::Status CheckDeclared(const StoredWeight& found, const StoredOptions& options) {
  if (!options.declared || IsFloat(found.encoding.type) || found.rank < 2) return absl::OkStatus();
  const Encoding& want = *options.declared;
  const auto contradicts = [&](std::string_view what) {
    std::string said = ToString(want);
    if (want.scales.kind == Scales::Kind::kGroup && want.scales.cols == QuantConfig::kWholeRow) {
      const std::string group = fmt::format("group {}", want.scales.cols);
      said.replace(said.find(group), group.size(), "one group a row");
    }
    return InvalidArgument("{} {} where quantization_config says {}", Printable(found.tensors[0]->name), what, said);
  };
  const auto has = [&found](std::string_view suffix) {
    return std::any_of(found.tensors.begin(), found.tensors.end(),
                       [suffix](const TensorView* view) { return std::string_view(view->name).ends_with(suffix); });
  };
  const Scales &is = found.encoding.scales, &should = want.scales;
  const bool same_blocks = is.kind != Scales::Kind::kBlock || (is.rows == should.rows && is.cols == should.cols);
  if (found.encoding.type != want.type || is.kind != should.kind || !same_blocks) {
    return contradicts(fmt::format("is {}", ToString(found.encoding)));
  }
  if (is.kind != Scales::Kind::kGroup) return absl::OkStatus();
  if (is.cols != std::min<int64_t>(should.cols, found.columns))
    return contradicts(fmt::format("is in groups of {}", is.cols));
  if (should.zeros && !has(".qzeros") && !has("_zero_point")) return contradicts("has no zero points");
  if (!should.zeros && is.zeros) return contradicts("has zero points");
  if (should.act_order && !has("g_idx")) return contradicts("has no g_idx");
  if (!should.act_order && is.act_order) return contradicts("has a g_idx out of order");
  return absl::OkStatus();
}

absl::StatusOr<StoredWeight> FindAny(const Checkpoint& checkpoint, const std::string& name,
                                     const StoredOptions& options) {
  if (const TensorView* view = checkpoint.Find(name); view != nullptr) return Plain(checkpoint, *view, options);
  constexpr std::string_view kWeight = ".weight";
  if (name.ends_with(kWeight)) {
    const std::string module = name.substr(0, name.size() - kWeight.size());
    if (checkpoint.Find(module + ".qweight") != nullptr) return AwqOrGptq(checkpoint, module, options);
  }
  if (checkpoint.Find(name + "_packed") != nullptr) return Packed(checkpoint, name);
  if (checkpoint.Find(name + "_blocks") != nullptr) return Fp4(checkpoint, name);
  return Missing(name);
}

absl::StatusOr<StoredWeight> FindOne(const Checkpoint& checkpoint, const std::string& name,
                                     const StoredOptions& options) {
  XJIT_ASSIGN_OR_RETURN(StoredWeight found, FindAny(checkpoint, name, options));
  XJIT_RETURN_IF_ERROR(CheckDeclared(found, options));
  return found;
}

// The first number that is NaN or infinite: all bits of its exponent are set; -1: none.
template <typename Bits>
int64_t FirstNotFinite(std::span<const std::byte> data, Bits exponent) {
  for (size_t i = 0; i < data.size() / sizeof(Bits); ++i) {
    Bits bits;
    std::memcpy(&bits, data.data() + i * sizeof(Bits), sizeof(Bits));
    if ((bits & exponent) == exponent) return static_cast<int64_t>(i);
  }
  return -1;
}
int64_t FirstNotFinite(const TensorView& view) {
  if (view.type == DType::kF32) return FirstNotFinite<uint32_t>(view.data, 0x7f800000);
  if (view.type == DType::kF16) return FirstNotFinite<uint16_t>(view.data, 0x7c00);
  return FirstNotFinite<uint16_t>(view.data, 0x7f80);
}

// The same of MXFP4's, E8M0 (OCP Microscaling Formats 1.0, 5.4.1): powers of two but for 255.
int64_t FirstNanExponent(const TensorView& view) {
  const auto at = std::find(view.data.begin(), view.data.end(), std::byte{255});
  return at == view.data.end() ? -1 : at - view.data.begin();
}

bool Holds(const TensorView& view, const std::byte* at) {
  const std::less<> before;  // of pointers into other files too
  return !before(at, view.data.data()) && before(at, view.data.data() + view.data.size());
}

}  // namespace

absl::Status CheckScales(const StoredWeight& stored) {
  for (const TensorView* view : stored.tensors) {
    const bool scales = std::any_of(stored.matrices.begin(), stored.matrices.end(), [&](const StoredMatrix& m) {
      return m.scales != nullptr && Holds(*view, m.scales);
    });
    if (!scales) continue;
    if (const int64_t at = IsFloat(view->type) ? FirstNotFinite(*view) : FirstNanExponent(*view); at >= 0) {
      return InvalidArgument("{}: scale {} is infinite or no number", Printable(view->name), at);
    }
  }
  return absl::OkStatus();
}

absl::Status CheckBlocks(const StoredWeight& stored, const StoredMatrix& matrix, int64_t row) {
  if (matrix.layout != StoredMatrix::Layout::kRows || !IsQuantized(matrix.type)) return absl::OkStatus();
  const int64_t row_bytes = RowBytes(matrix.type, matrix.k);
  const std::byte* at = matrix.values + row * row_bytes;
  const int64_t block = BlockWithBadScale(matrix.type, at, matrix.k);
  if (block < 0) return absl::OkStatus();
  for (const TensorView* view : stored.tensors) {
    if (!Holds(*view, at)) continue;
    return InvalidArgument("{}: row {}: the scale of block {} is infinite or no number", Printable(view->name),
                           (at - view->data.data()) / row_bytes, block);
  }
  return Internal("a row of blocks lies in no tensor");
}

std::vector<int64_t> StoredWeight::shape() const {
  if (rank == 1) return {rows};
  if (rank == 2) return {rows, columns};
  return {experts, rows, columns};
}

std::string ShapeText(std::span<const int64_t> shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

absl::StatusOr<StoredWeight> FindStoredWeight(const Checkpoint& checkpoint, std::string_view name,
                                              const StoredOptions& options) {
  const size_t at = name.find("{e}");
  if (at == std::string_view::npos) return FindOne(checkpoint, std::string(name), options);
  StoredWeight all;
  std::string first;
  for (int64_t e = 0; e < options.experts; ++e) {
    const std::string own = fmt::format("{}{}{}", name.substr(0, at), e, name.substr(at + 3));
    XJIT_ASSIGN_OR_RETURN(StoredWeight one, FindOne(checkpoint, own, options));
    if (one.rank > 2) {
      return InvalidArgument("{} is {} instead of one expert's", Printable(own), ShapeText(one.shape()));
    }
    if (e == 0) {
      all = std::move(one);
      first = own;
      continue;
    }
    if (one.shape() != all.shape()) {
      return InvalidArgument("{} is {} where {} is {}", Printable(own), ShapeText(one.shape()), Printable(first),
                             ShapeText(all.shape()));
    }
    // Act order is a table an expert: one that happens to be in order is of the same encoding.
    all.encoding.scales.act_order |= one.encoding.scales.act_order;
    one.encoding.scales.act_order = all.encoding.scales.act_order;
    if (one.encoding != all.encoding) {
      return Unimplemented("{} is {} where {} is {}", Printable(own), ToString(one.encoding), Printable(first),
                           ToString(all.encoding));
    }
    all.matrices.push_back(one.matrices[0]);
    all.tensors.insert(all.tensors.end(), one.tensors.begin(), one.tensors.end());
  }
  if (all.matrices.empty()) return Missing(name);
  all.rank = 3;
  all.experts = options.experts;
  return all;
}

}  // namespace xjit
