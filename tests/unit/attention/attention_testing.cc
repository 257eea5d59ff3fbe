#include "tests/unit/attention/attention_testing.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "tests/unit/watched_call.h"

namespace xjit::testing {

bool CallKeepsRegisters(KernelFn fn, const void* args, int64_t n0, int64_t n1, int64_t m0, int64_t m1) {
  return WatchedCall(fn, args, n0, n1, m0, m1).empty();
}

std::string UsesEvex(const Kernel& kernel) {
  const std::string text = Disassemble({kernel.code, kernel.code_bytes});
  std::string found;
  size_t begin = 0;
  while (begin < text.size()) {
    const size_t end = text.find('\n', begin);
    const std::string line = text.substr(begin, end - begin);
    if (line.find("ret") != std::string::npos) break;  // constants follow
    for (const char* word : {"zmm", "{k", "mm16", "mm17", "mm18", "mm19", "mm2", "mm30", "mm31", " vpaddd k", "kmov",
                             "dpbf16", "vpord", "vpxord", "vpandd", "f32x", "f64x", "vpmovdw"}) {
      const size_t at = line.find(word);
      // "mm2" alone is ymm2; ymm20 to ymm29 are not.
      if (at == std::string::npos || (std::strcmp(word, "mm2") == 0 && !std::isdigit(line[at + 3]))) continue;
      found += line + "\n";
    }
    begin = end + 1;
  }
  return found;
}

AttentionCase::AttentionCase(const AttentionDesc& d, const std::vector<SeqSpec>& seqs, uint32_t seed, float q_scale)
    : desc(d) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal;
  const int64_t dim = desc.head_dim, page_bytes = KvPageBytes(desc.kv, dim);
  int64_t page_count = 0;
  for (const SeqSpec& s : seqs) {
    page_count += (s.total() + kPageTokens - 1) / kPageTokens;
    rows += s.rows;
  }
  std::vector<int32_t> order(static_cast<size_t>(page_count));
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), rng);

  const int64_t q_bytes = desc.q == DType::kBF16 ? 2 : 4;
  desc.ldq_bytes = desc.heads * dim * q_bytes + 64;
  desc.ldo_bytes = desc.heads * dim * 4 + 128;
  q = std::make_unique<GuardedBuffer>(rows * desc.ldq_bytes - 64, 0xff);
  out = std::make_unique<GuardedBuffer>(rows * desc.ldo_bytes - 128, 0xff);
  kv = std::make_unique<GuardedBuffer>(desc.kv_heads * page_count * page_bytes);
  for (size_t i = 0; i < kv->size(); i += 2) {
    // bf16 0x7e.., or f32 with such an upper half: about +-1e38
    const uint16_t stale = static_cast<uint16_t>(rng() % 2 * 0x8000 + 0x7e00 + rng() % 256);
    std::memcpy(kv->data() + i, &stale, 2);
  }
  double q_norm = 0, k_norm = 0;
  const auto store = [](DType type, uint8_t* at, float value) {
    const uint16_t rounded = F32ToBf16(value);
    std::memcpy(at, type == DType::kBF16 ? static_cast<const void*>(&rounded) : &value, type == DType::kBF16 ? 2 : 4);
  };
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t h = 0; h < desc.heads; ++h) {
      double norm = 0;
      for (int64_t i = 0; i < dim; ++i) {
        const float x = normal(rng) * q_scale / std::sqrt(static_cast<float>(dim));
        norm += double{x} * x;
        store(desc.q, q->data() + row * desc.ldq_bytes + (h * dim + i) * q_bytes, x);
      }
      q_norm = std::max(q_norm, norm);
    }
  }
  size_t next = 0;
  int32_t row0 = 0;
  for (const SeqSpec& s : seqs) {
    auto& list = pages_.emplace_back();
    for (int t = 0; t < s.total(); t += kPageTokens) list.push_back(order[next++]);
    seq.push_back({nullptr, row0, s.rows, s.past});
    row0 += s.rows;
    for (int64_t h = 0; h < desc.kv_heads; ++h) {
      for (int t = 0; t < s.total(); ++t) {
        uint8_t* page = kv->data() + (h * page_count + list[static_cast<size_t>(t / kPageTokens)]) * page_bytes;
        double norm = 0;
        for (int64_t i = 0; i < dim; ++i) {
          const float k = normal(rng), v = normal(rng) + 0.5f;
          norm += double{k} * k;
          store(desc.kv, page + KvPageKOffset(desc.kv, dim, t % kPageTokens, i), k);
          store(desc.kv, page + KvPageVOffset(desc.kv, dim, t % kPageTokens, i), v);
        }
        k_norm = std::max(k_norm, norm);
      }
    }
  }
  score_norm_ = std::sqrt(q_norm * k_norm) * 1.01;  // rounding to bf16
  args.kv_head_bytes = page_count * page_bytes;
  Bind();
}

void AttentionCase::Bind() {
  for (size_t i = 0; i < seq.size(); ++i) seq[i].pages = pages_[i].data();
  step.rows = rows;
  step.seqs = static_cast<int64_t>(seq.size());
  step.seq = seq.data();
  step.items = static_cast<int64_t>(items.size());
  step.item = items.data();
  step.merges = static_cast<int64_t>(merges.size());
  step.merge = merges.data();
  args.q = q->data();
  args.kv = kv->data();
  args.out = out->as<float>();
  args.step = &step;
  args.partial = partial ? partial->data() : nullptr;
  args.scratch = scratch ? scratch->data() : nullptr;
}

void AttentionCase::MakeItems(int item_rows) {
  items.clear();
  for (size_t i = 0; i < seq.size(); ++i) {
    for (int32_t h = 0; h < desc.kv_heads; ++h) {
      for (int32_t r = 0; r < seq[i].rows; r += item_rows) {
        items.push_back({static_cast<int32_t>(i), h, seq[i].row0 + r, std::min(item_rows, seq[i].rows - r), 0,
                         seq[i].past + seq[i].rows, -1});
      }
    }
  }
  Bind();
}

void AttentionCase::MakeSplits(int tokens) {
  items.clear();
  merges.clear();
  int32_t slot = 0;
  for (size_t i = 0; i < seq.size(); ++i) {
    for (int32_t r = 0; r < seq[i].rows; ++r) {
      const int32_t end = seq[i].past + r + 1, parts = (end + tokens - 1) / tokens;
      // Slots of a row's heads interleaved: stride kv_heads.
      for (int32_t h = 0; h < desc.kv_heads; ++h) {
        for (int32_t part = 0; part < parts; ++part) {
          items.push_back({static_cast<int32_t>(i), h, seq[i].row0 + r, 1, part * tokens,
                           std::min(end, (part + 1) * tokens), slot + h + part * desc.kv_heads});
        }
        merges.push_back({h, seq[i].row0 + r, slot + h, parts, desc.kv_heads});
      }
      slot += parts * desc.kv_heads;
    }
  }
  partial = std::make_unique<GuardedBuffer>(slot * PartialSlotBytes(desc.group(), desc.head_dim), 0xff);
  Bind();
}

void AttentionCase::TakeScratch(int64_t bytes) {
  scratch = std::make_unique<GuardedBuffer>((bytes + 63) / 64 * 64, 0xff);
  Bind();
}

// The bound. With u = 2^-24 (f32), every probability p has the relative error
//   e = ln 2 * d u |q||k| (its score, and that of the maximum: twice) + exp2's polynomial + 4 u
// and, where P is rounded to bf16, 2^-9 more. o = sum(p v) / sum(p) then errs by at most 2 e sum(p |v|) / sum(p), and
// summing n terms in f32 adds n u of the same, twice (numerator and denominator). A rescaling when the maximum rises
// errs by 5 u (not at all otherwise), at most once in 32 terms, which n u has room for: P V of a page adds 32 terms in
// pairs or lanes.
void AttentionCase::Reference(AttentionProduct product, std::vector<float>* value, std::vector<float>* bound) {
  const GuardedBuffer* kernel_out = out.get();
  std::vector<float> result(static_cast<size_t>(rows * desc.ldo_bytes / 4));
  args.out = result.data();
  AttentionRef(desc, args, 0, step.items, 0, 1);
  *value = result;
  std::vector<uint8_t> absolute(kv->data(), kv->data() + kv->size());
  const int64_t page_bytes = KvPageBytes(desc.kv, desc.head_dim);
  const int64_t elem = desc.kv == DType::kBF16 ? 2 : 4;
  for (size_t page = 0; page < absolute.size(); page += static_cast<size_t>(page_bytes)) {
    for (int64_t i = page_bytes / 2 + elem - 1; i < page_bytes; i += elem)
      absolute[page + static_cast<size_t>(i)] &= 0x7f;
  }
  args.kv = absolute.data();
  AttentionRef(desc, args, 0, step.items, 0, 1);
  int64_t longest = 0;
  for (const AttentionItem& item : items) longest = std::max<int64_t>(longest, item.kv_end);
  const double u = std::exp2(-24.0);
  double e = 2 * std::log(2.0) * desc.head_dim * u * score_norm_ + 4 * u;
  e += product == AttentionProduct::kDotBf16 ? 7.5e-5 + std::exp2(-9.0) : 2.9e-7;
  const double factor = 2 * e + 2 * (static_cast<double>(longest) + 64) * u;
  for (float& x : result) x = static_cast<float>(x * factor);
  *bound = result;
  args.kv = kv->data();
  args.out = const_cast<GuardedBuffer*>(kernel_out)->as<float>();
}

void AttentionCase::ExpectNear(AttentionProduct product, const std::string& what) {
  std::vector<float> value, bound;
  Reference(product, &value, &bound);
  int64_t wrong = 0;
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t i = 0; i < desc.heads * desc.head_dim; ++i) {
      const size_t at = static_cast<size_t>(row * desc.ldo_bytes / 4 + i);
      const float got = Out(row, i);
      if (std::abs(got - value[at]) <= bound[at]) continue;
      if (++wrong <= 3) {
        ADD_FAILURE() << what << ": row " << row << " value " << i << ": " << got << ", not " << value[at] << " +- "
                      << bound[at];
      }
    }
    if (row + 1 == rows) break;
    for (int64_t i = desc.heads * desc.head_dim; i < desc.ldo_bytes / 4; ++i) {
      uint32_t bits;
      std::memcpy(&bits, out->as<float>() + row * desc.ldo_bytes / 4 + i, 4);
      ASSERT_EQ(bits, 0xffffffffu) << what << ": wrote past the row";
    }
  }
  EXPECT_EQ(wrong, 0) << what;
}

}  // namespace xjit::testing
