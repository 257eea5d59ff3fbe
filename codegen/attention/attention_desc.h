// Attention over a paged KV cache, and the rotary embedding that fills it: what the kernels compute and where KV lies.
//
// A page holds 32 tokens of one KV head of one layer, K then V, each as its product reads it:
//   bf16:  K [head_dim/2][32][2]  then  V [16][head_dim][2]   (pairs of depth; pairs of tokens)
//   f32:   K [head_dim][32]       then  V [32][head_dim]
// Page p of KV head h of a layer is at kv + h * kv_head_bytes + p * KvPageBytes().
#pragma once

#include <cstdint>
#include <string>

#include "ir/support/align.h"
#include "ir/support/dtype.h"

namespace xjit {

inline constexpr int kPageTokens = 32;

inline constexpr int64_t KvPageBytes(DType kv, int64_t head_dim) {
  return 2 * kPageTokens * head_dim * (kv == DType::kF32 ? 4 : 2);
}

// A page as text: "k: 64 x 32 x 2; v: 16 x 128 x 2". Empty: no such layout. The one row of an MLA cache is both: K of
// its whole depth, and V, its first v_dim values, in parts of 64 columns, one after the other ("v: 8 x 16 x 64 x 2"): a
// part's 16 steps of pairs are then one ascending stream, with a prefetch of the
// next page 88% of the read bandwidth against 64% (measured on a 2-core Zen 4, 16 heads of 512 + 64, 8192 tokens).
std::string KvLayout(DType kv, int64_t k_dim, int64_t v_dim, bool latent);

// One sequence of a step: rows [row0, row0 + rows) of the step are its tokens at positions past, past + 1, ...
struct SeqView {
  const int32_t* pages = nullptr;  // page numbers; the token at position p is in pages[p / 32]
  int32_t row0 = 0;
  int32_t rows = 0;
  int32_t past = 0;
};

// One unit of attention work, made once a step and used by every layer: `rows` query tokens of one KV head (all its
// query heads) against KV tokens [kv_begin, kv_end) (kv_begin a multiple of 32). Causality and the window are applied
// by position, so kv_end may be past what the first rows see.
struct AttentionItem {
  int32_t seq = 0;
  int32_t kv_head = 0;
  int32_t row0 = 0;  // row of the step
  int32_t rows = 0;  // at most kAttentionItemRows
  int32_t kv_begin = 0;
  int32_t kv_end = 0;
  int32_t slot = -1;  // -1: all of KV is in this item, write the result; else write a partial result to this slot
};
inline constexpr int kAttentionItemRows = 32;

// Which items are efficient. Rows: 32 for long chunks (an item reads each step of 256 KV tokens into the core's cache
// once); a chunk's last item may have any number. A token alone is an item of 1 row: while rows * group is at most
// AttentionPlan::few_rows, pages are streamed in memory order. Work is proportional to rows * (kv_end - kv_begin), less
// the causal triangle of the item itself.
// KV splits (1 row): multiples of 32 tokens. An item costs about 8 tokens of setting up and writing, and 3 more for
// each of its splits in the merge (Zen 5, 6 heads x 128, from L2), so 256 tokens lose 4%. Where a split lies changes
// rounding: choose it by length, never by thread.

// A row whose KV was split: its partial results are slots first_slot + j * slot_stride, j < slots. Splits have 1 row
// each.
struct AttentionMerge {
  int32_t kv_head = 0;
  int32_t row = 0;
  int32_t first_slot = 0;
  int32_t slots = 0;
  int32_t slot_stride = 1;
};

// What a step looks like to the kernels. Lives at one address for the life of a program; filled before each step.
struct StepView {
  int64_t rows = 0;        // T
  int64_t logit_rows = 0;  // L
  int64_t seqs = 0;
  int64_t items = 0;
  int64_t merges = 0;
  const SeqView* seq = nullptr;           // [seqs]
  const AttentionItem* item = nullptr;    // [items]
  const AttentionMerge* merge = nullptr;  // [merges]
  const int32_t* ids = nullptr;           // [rows] token ids
  const int32_t* position = nullptr;      // [rows]
  const int32_t* row_seq = nullptr;       // [rows] index into seq
  const int32_t* logit_row = nullptr;     // [logit_rows] rows whose logits are wanted, ascending
};

struct AttentionDesc {
  int heads = 0, kv_heads = 0, head_dim = 0;  // head_dim a multiple of 16, at most 256; heads a multiple of kv_heads
  DType q = DType::kBF16;                     // kBF16: products by vdpbf16ps; kF32: f32 FMA whatever the KV type
  DType kv = DType::kBF16;                    // kBF16 or kF32 (then q is kF32)
  int window = 0;                             // > 0: a token sees itself and the window - 1 tokens before it
  int64_t ldq_bytes = 0;                      // from token to token of q; query head h at + h * head_dim elements
  int64_t ldo_bytes = 0;                      // from token to token of the f32 output, heads * head_dim values
  bool operator==(const AttentionDesc&) const = default;
  int group() const { return heads / kv_heads; }
};

// Bytes of a partial-result slot: for each of the group's query heads one record of f32 o[head_dim] (not normalised), m
// (running maximum, in base-2 units; -FLT_MAX where no token is visible), l (sum); the whole slot padded to 64.
inline constexpr int64_t PartialSlotBytes(int64_t group, int64_t head_dim) {
  return AlignUp(group * (head_dim + 2) * 4, 64);
}

// attention: grid n = items of step->item, m unused. q is already scaled by scale * log2(e), so softmax is in base 2.
struct AttentionArgs {
  const void* q = nullptr;
  float* out = nullptr;
  const void* kv = nullptr;  // this layer's
  int64_t kv_head_bytes = 0;
  const StepView* step = nullptr;
  void* partial = nullptr;  // slots
  void* scratch = nullptr;
};

// rope_store: for each token, norms the heads of q and k if asked to, rotates q and k, writes q scaled and converted,
// and stores k and v into their page. Grid m = rows of the step, n unused.
struct RopeStoreDesc {
  int heads = 0, kv_heads = 0, head_dim = 0;
  int rope_dim = 0;        // rotated leading dimensions of a head, pairs (i, i + rope_dim/2); a multiple of 2
  DType q = DType::kBF16;  // kBF16 or kF32
  DType kv = DType::kBF16;
  float q_scale = 1;  // softmax scale * log2(e)
  // Each head of q and k first becomes x * gain / sqrt(mean(x^2) + eps).
  bool head_norm = false;
  float eps = 0;
  // From row to row of the f32 inputs, which may be columns of one joined matrix, and of the output.
  int64_t ldqin_bytes = 0, ldkin_bytes = 0, ldvin_bytes = 0;
  int64_t ldq_bytes = 0;
  bool operator==(const RopeStoreDesc&) const = default;
};
struct RopeStoreArgs {
  const float* q_in = nullptr;  // [rows][heads * head_dim]
  const float* k_in = nullptr;  // [rows][kv_heads * head_dim]
  const float* v_in = nullptr;
  const float* cos_sin = nullptr;  // [rows][2][rope_dim/2]: cosines, then sines, of the row's position
  void* q = nullptr;
  void* kv = nullptr;
  int64_t kv_head_bytes = 0;
  const StepView* step = nullptr;
  const float* q_gain = nullptr;  // [head_dim], with head_norm
  const float* k_gain = nullptr;
};

// attention_merge: combines the partial results of step->merge[m0..m1) into rows of out. Grid m = merges, n unused.
struct AttentionMergeArgs {
  float* out = nullptr;
  const void* partial = nullptr;
  const StepView* step = nullptr;
};

std::string AttentionName(const AttentionDesc& desc, const char* row);
std::string RopeStoreName(const RopeStoreDesc& desc, const char* row);
std::string AttentionMergeName(const AttentionDesc& desc, const char* row);

}  // namespace xjit
