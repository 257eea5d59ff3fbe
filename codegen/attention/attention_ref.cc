#include "codegen/attention/attention_ref.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "ir/support/ref/norm.h"

namespace xjit {
namespace {

template <typename T>
T Load(const void* base, int64_t offset) {
  T value;
  std::memcpy(&value, static_cast<const std::byte*>(base) + offset, sizeof value);
  return value;
}
template <typename T>
void Store(void* base, int64_t offset, T value) {
  std::memcpy(static_cast<std::byte*>(base) + offset, &value, sizeof value);
}

float LoadAs(DType type, const void* base, int64_t offset) {
  return type == DType::kBF16 ? Bf16ToF32(Load<uint16_t>(base, offset)) : Load<float>(base, offset);
}
void StoreAs(DType type, void* base, int64_t offset, float value) {
  if (type == DType::kBF16) {
    Store(base, offset, F32ToBf16(value));
  } else {
    Store(base, offset, value);
  }
}
int64_t Bytes(DType type) { return type == DType::kBF16 ? 2 : 4; }

}  // namespace

float Bf16ToF32(uint16_t value) { return std::bit_cast<float>(static_cast<uint32_t>(value) << 16); }

uint16_t F32ToBf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if (std::isnan(value)) return static_cast<uint16_t>(bits >> 16 | 0x40);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

int64_t KvPageKOffset(DType kv, int64_t head_dim, int64_t slot, int64_t d) {
  static_cast<void>(head_dim);
  if (kv == DType::kF32) return (d * kPageTokens + slot) * 4;
  return ((d / 2 * kPageTokens + slot) * 2 + d % 2) * 2;
}

int64_t KvPageVOffset(DType kv, int64_t head_dim, int64_t slot, int64_t d) {
  const int64_t v = KvPageBytes(kv, head_dim) / 2;
  if (kv == DType::kF32) return v + (slot * head_dim + d) * 4;
  return v + ((slot / 2 * head_dim + d) * 2 + slot % 2) * 2;
}

void AttentionRef(const AttentionDesc& desc, const AttentionArgs& args, int64_t n0, int64_t n1, int64_t, int64_t) {
  const int64_t dim = desc.head_dim, page_bytes = KvPageBytes(desc.kv, dim);
  for (int64_t n = n0; n < n1; ++n) {
    const AttentionItem& item = args.step->item[n];
    const SeqView& seq = args.step->seq[item.seq];
    const std::byte* kv = static_cast<const std::byte*>(args.kv) + item.kv_head * args.kv_head_bytes;
    for (int64_t row = item.row0; row < item.row0 + item.rows; ++row) {
      const int64_t position = seq.past + row - seq.row0;
      const int64_t end = std::min<int64_t>(item.kv_end, position + 1);
      const int64_t begin = std::max<int64_t>(item.kv_begin, desc.window > 0 ? position - desc.window + 1 : 0);
      for (int64_t g = 0; g < desc.group(); ++g) {
        const int64_t head = item.kv_head * desc.group() + g;
        std::vector<double> score;
        double m = std::numeric_limits<float>::lowest(), l = 0;
        for (int64_t t = begin; t < end; ++t) {
          const std::byte* page = kv + seq.pages[t / kPageTokens] * page_bytes;
          double s = 0;
          for (int64_t d = 0; d < dim; ++d) {
            s += double{LoadAs(desc.q, args.q, row * desc.ldq_bytes + (head * dim + d) * Bytes(desc.q))} *
                 LoadAs(desc.kv, page, KvPageKOffset(desc.kv, dim, t % kPageTokens, d));
          }
          score.push_back(s);
          m = std::max(m, s);
        }
        std::vector<double> o(static_cast<size_t>(dim));
        for (int64_t t = begin; t < end; ++t) {
          const std::byte* page = kv + seq.pages[t / kPageTokens] * page_bytes;
          const double p = std::exp2(score[static_cast<size_t>(t - begin)] - m);
          l += p;
          for (int64_t d = 0; d < dim; ++d) {
            o[static_cast<size_t>(d)] += p * LoadAs(desc.kv, page, KvPageVOffset(desc.kv, dim, t % kPageTokens, d));
          }
        }
        if (item.slot < 0) {
          for (int64_t d = 0; d < dim; ++d) {
            Store(args.out, row * desc.ldo_bytes + (head * dim + d) * 4,
                  l == 0 ? 0.0f : static_cast<float>(o[static_cast<size_t>(d)] / l));
          }
        } else {
          const int64_t record = item.slot * PartialSlotBytes(desc.group(), dim) + g * (dim + 2) * 4;
          for (int64_t d = 0; d < dim; ++d) {
            Store(args.partial, record + d * 4, static_cast<float>(o[static_cast<size_t>(d)]));
          }
          Store(args.partial, record + dim * 4, static_cast<float>(m));
          Store(args.partial, record + dim * 4 + 4, static_cast<float>(l));
        }
      }
    }
  }
}

void AttentionMergeRef(const AttentionDesc& desc, const AttentionMergeArgs& args, int64_t, int64_t, int64_t m0,
                       int64_t m1) {
  const int64_t dim = desc.head_dim;
  for (int64_t i = m0; i < m1; ++i) {
    const AttentionMerge& merge = args.step->merge[i];
    for (int64_t g = 0; g < desc.group(); ++g) {
      const auto value = [&](int64_t j, int64_t at) {
        const int64_t slot = merge.first_slot + j * merge.slot_stride;
        return Load<float>(args.partial, slot * PartialSlotBytes(desc.group(), dim) + (g * (dim + 2) + at) * 4);
      };
      float m = std::numeric_limits<float>::lowest();
      for (int64_t j = 0; j < merge.slots; ++j) m = std::max(m, value(j, dim));
      std::vector<double> o(static_cast<size_t>(dim));
      double l = 0;
      for (int64_t j = 0; j < merge.slots; ++j) {
        const double w = std::exp2(double{value(j, dim)} - m);
        l += w * value(j, dim + 1);
        for (int64_t d = 0; d < dim; ++d) o[static_cast<size_t>(d)] += w * value(j, d);
      }
      for (int64_t d = 0; d < dim; ++d) {
        Store(args.out, merge.row * desc.ldo_bytes + ((merge.kv_head * desc.group() + g) * dim + d) * 4,
              l == 0 ? 0.0f : static_cast<float>(o[static_cast<size_t>(d)] / l));
      }
    }
  }
}

void RopeStoreRef(const RopeStoreDesc& desc, const RopeStoreArgs& args, int64_t, int64_t, int64_t m0, int64_t m1) {
  const int64_t dim = desc.head_dim, half = desc.rope_dim / 2;
  for (int64_t row = m0; row < m1; ++row) {
    const float* q_in = args.q_in + row * desc.ldqin_bytes / 4;
    const float* k_in = args.k_in + row * desc.ldkin_bytes / 4;
    const float* v_in = args.v_in + row * desc.ldvin_bytes / 4;
    const float* cosine = args.cos_sin + row * desc.rope_dim;
    const float* sine = cosine + half;
    const int64_t position = args.step->position[row];
    const SeqView& seq = args.step->seq[args.step->row_seq[row]];
    for (int64_t head = 0; head < desc.heads + 2 * desc.kv_heads; ++head) {
      const float* x = head < desc.heads                   ? q_in + head * dim
                       : head < desc.heads + desc.kv_heads ? k_in + (head - desc.heads) * dim
                                                           : v_in + (head - desc.heads - desc.kv_heads) * dim;
      std::vector<float> y(x, x + dim), normed;
      if (desc.head_norm && head < desc.heads + desc.kv_heads) {
        normed.resize(y.size());
        ref::RmsNorm(x, head < desc.heads ? args.q_gain : args.k_gain, dim, desc.eps, normed.data());
        x = normed.data();
      }
      if (head < desc.heads + desc.kv_heads) {
        for (int64_t i = 0; i < half; ++i) {
          y[static_cast<size_t>(i)] = std::fma(x[i], cosine[i], -(x[i + half] * sine[i]));
          y[static_cast<size_t>(i + half)] = std::fma(x[i + half], cosine[i], x[i] * sine[i]);
        }
      }
      if (head < desc.heads) {
        for (int64_t d = 0; d < dim; ++d) {
          StoreAs(desc.q, args.q, row * desc.ldq_bytes + (head * dim + d) * Bytes(desc.q),
                  y[static_cast<size_t>(d)] * desc.q_scale);
        }
        continue;
      }
      const bool is_v = head >= desc.heads + desc.kv_heads;
      const int64_t kv_head = head - desc.heads - (is_v ? desc.kv_heads : 0), slot = position % kPageTokens;
      std::byte* page = static_cast<std::byte*>(args.kv) + kv_head * args.kv_head_bytes +
                        seq.pages[position / kPageTokens] * KvPageBytes(desc.kv, dim);
      for (int64_t d = 0; d < dim; ++d) {
        StoreAs(desc.kv, page, is_v ? KvPageVOffset(desc.kv, dim, slot, d) : KvPageKOffset(desc.kv, dim, slot, d),
                y[static_cast<size_t>(d)]);
      }
    }
  }
}

}  // namespace xjit
