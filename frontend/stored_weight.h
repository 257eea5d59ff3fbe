// The tensors that hold one weight, whichever layout a checkpoint has for it, found by the weight's name and checked
// against each other: what is returned can be decoded without a further look.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "frontend/checkpoint.h"
#include "ir/support/encoding.h"
#include "ir/support/ref/stored_matrix.h"

namespace xjit {

struct StoredWeight {
  int rank = 0;  // 1: rows, 2: [rows, columns], 3: [experts, rows, columns]
  int64_t experts = 1;
  int64_t rows = 0;
  int64_t columns = 1;
  Encoding encoding;
  std::vector<StoredMatrix> matrices;      // one an expert; a vector is one column
  std::vector<const TensorView*> tensors;  // all that they lie in

  std::vector<int64_t> shape() const;
};

struct StoredOptions {
  // What the checkpoint's configuration says of the weight: the size of blocks and whether int8 is weight_only, which
  // tensors do not tell, and what quantised tensors are held against; nullopt: nothing.
  std::optional<Encoding> declared;
  // AWQ's and GPTQ's words are told apart by it; kNone: by their shape.
  QuantConfig::Method method = QuantConfig::Method::kNone;
  bool transposed = false;  // a plain tensor of rank 3 is [experts, columns, rows]
  // A tensor of rank 2 is a vector an expert: [experts, rows, 1].
  bool expert_vectors = false;
  int64_t experts = 0;  // for names with "{e}", which stands for an expert's number
  // What GPTQ's stored zero points lack: 1 in its first format, 0 in "gptq_v2".
  int gptq_zero_offset = 1;
};

// `name` is that of the plain tensor, "X.weight" for a module X. Looked for, in this order:
//   X.weight                              plain or GGUF blocks
//     with X.weight_scale_inv             FP8 E4M3 in blocks (DeepSeek)
//     or X.weight_scale                   FP8 or int8 by tensor, row, group or block (compressed-tensors)
//   X.qweight, .scales, .qzeros, .g_idx   AWQ, GPTQ
//   X.weight_packed, _scale, _zero_point, _g_idx, _shape   int4 in groups (compressed-tensors)
//   NAME_blocks, NAME_scales              MXFP4 (gpt-oss)
// NotFound where there is none of them; other errors say what is wrong with which tensor.
absl::StatusOr<StoredWeight> FindStoredWeight(const Checkpoint& checkpoint, std::string_view name,
                                              const StoredOptions& options);

// That all scales of int8, FP8 and int4 are numbers: reads them, which FindStoredWeight() does not. InvalidArgument
// names the tensor and the element.
absl::Status CheckScales(const StoredWeight& stored);
// The same of the f16 scales within a row's blocks (GGUF), of one of the matrices; of other encodings nothing is read.
// Apart from CheckScales, since it reads the row: best where that is read anyway. InvalidArgument names the tensor, the
// row in it and the block.
absl::Status CheckBlocks(const StoredWeight& stored, const StoredMatrix& matrix, int64_t row);

// "[3, 4]".
std::string ShapeText(std::span<const int64_t> shape);

}  // namespace xjit
