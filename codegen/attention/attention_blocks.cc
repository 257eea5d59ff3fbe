// Register blocks of the two products, and the softmax of one block of rows.
#include <limits>
#include <optional>
#include <vector>

#include "codegen/attention/attention_emit.h"

namespace xjit::attention {
namespace {

using Xbyak::Label;
using Xbyak::Xmm;

constexpr int kUnroll = 4;             // rows of K or V in a loop body; divides every number of them
constexpr uint32_t kOdd = 0xffff0000;  // the second bf16 of a pair, as an f32
constexpr uint32_t kOddHalves[8] = {kOdd, kOdd, kOdd, kOdd, kOdd, kOdd, kOdd, kOdd};

}  // namespace

AttentionEmitter::OddMask::OddMask(AttentionEmitter& emitter)
    : mask_(emitter.regs_.Vecs("odd_mask", emitter.Halves() == 2 && emitter.vec_.wide() ? 1 : 0)) {
  if (mask_.size() == 0) return;
  emitter.odd_mask_ = mask_[0];
  emitter.e_.vpbroadcastd(emitter.vec_(mask_[0]), emitter.e_.ptr[emitter.e_.ConstLabel32(kOdd)]);
}

void AttentionEmitter::PageAddress(const Reg& dst, const Reg& page_list) {
  e_.movsxd(dst, e_.dword[page_list]);
  e_.imul(dst, dst, static_cast<int>(PageBytes()));
  e_.add(dst, Var(kKv));
}

void AttentionEmitter::NextPageAddress(const Reg& dst, const Reg& page_list) {
  e_.lea(dst, e_.ptr[page_list + plan_.few_step_tokens / kPageTokens * 4]);
  e_.cmp(dst, Var(kLastPage));
  e_.cmova(dst, Var(kLastPage));
  PageAddress(dst, dst);
}

void AttentionEmitter::LoadB(int dst, const Reg& b, int64_t disp, int half) {
  const Xmm v = vec_(dst);
  const Xbyak::Address at = e_.ptr[b + static_cast<int>(disp)];
  if (Halves() == 1) {
    e_.vmovups(v, at);
  } else if (vec_.wide()) {
    if (half == 0) {
      e_.vpslld(v, at, 16);
    } else {
      e_.vpandd(v, vec_(odd_mask_), at);
    }
  } else {
    e_.vmovups(v, at);
    if (half == 0) {
      e_.vpslld(v, v, 16);
    } else {
      e_.vandps(v, v, e_.ConstYmm(kOddHalves));
    }
  }
}

void AttentionEmitter::Accumulate(int acc, int a, int b) {
  if (plan_.product == AttentionProduct::kDotBf16) {
    e_.vdpbf16ps(vec_(acc), vec_(a), vec_(b));
  } else {
    e_.vfmadd231ps(vec_(acc), vec_(a), vec_(b));
  }
}

int AttentionEmitter::Sets(int rows, int cols) const {
  const int limit = vec_.wide() ? 24 : 12;
  for (int sets : {4, 2}) {
    if (sets * rows * cols <= limit) return sets;
  }
  return 1;
}

void AttentionEmitter::AddSets(int rows, int cols, int sets, const Regs::VecList& acc) {
  const int n = rows * cols;
  for (int half = sets / 2; half > 0; half /= 2) {
    for (int i = 0; i < half * n; ++i) {
      const Xmm v = vec_(acc[static_cast<size_t>(i)]);
      e_.vaddps(v, v, vec_(acc[static_cast<size_t>(i + half * n)]));
    }
  }
}

void AttentionEmitter::Multiply(int rows, int cols, int set, const Regs::VecList& acc, const Reg& a, int64_t a_stride,
                                int64_t a_disp, const Reg& b, int64_t b_disp) {
  const auto at = [&](int r, int c) { return acc[static_cast<size_t>((set * rows + r) * cols + c)]; };
  for (int half = 0; half < Halves(); ++half) {
    const auto load_a = [&](int dst, int r) {
      e_.vbroadcastss(vec_(dst), e_.dword[a + static_cast<int>(r * a_stride + a_disp + 4 * half)]);
    };
    if (rows <= cols) {  // a stays in registers, b passes through one
      const auto va = regs_.Vecs("a", rows);
      const auto vb = regs_.Vecs("b");
      for (int r = 0; r < rows; ++r) load_a(va[static_cast<size_t>(r)], r);
      for (int c = 0; c < cols; ++c) {
        LoadB(vb[0], b, b_disp + c * vec_.bytes(), half);
        for (int r = 0; r < rows; ++r) Accumulate(at(r, c), va[static_cast<size_t>(r)], vb[0]);
      }
    } else {
      const auto vb = regs_.Vecs("b", cols);
      const auto va = regs_.Vecs("a");
      for (int c = 0; c < cols; ++c) LoadB(vb[static_cast<size_t>(c)], b, b_disp + c * vec_.bytes(), half);
      for (int r = 0; r < rows; ++r) {
        load_a(va[0], r);
        for (int c = 0; c < cols; ++c) Accumulate(at(r, c), va[0], vb[static_cast<size_t>(c)]);
      }
    }
  }
}

void AttentionEmitter::RegisterBlocks(int block, bool prefetch, const std::function<void(int, bool)>& body,
                                      const std::function<void()>& advance) {
  Label loop, done;
  const auto left = regs_.Gpr("rows_left");
  const auto tail = [&](bool first) {
    std::vector<Label> tails(static_cast<size_t>(block));
    for (int rows = 1; rows < block; ++rows) {
      e_.cmp(left, rows);
      e_.je(tails[static_cast<size_t>(rows)]);
    }
    e_.jmp(done);
    for (int rows = 1; rows < block; ++rows) {
      e_.L(tails[static_cast<size_t>(rows)]);
      body(rows, first);
      e_.jmp(done);
    }
  };
  e_.mov(left, Var(kBlockRows));
  if (prefetch) {
    Label small;
    e_.cmp(left, block);
    e_.jl(small);
    body(block, true);
    advance();
    e_.sub(left, block);
    e_.jmp(loop);
    e_.L(small);
    tail(true);
  }
  e_.L(loop);
  if (prefetch && block >= plan_.block_rows) {
    e_.L(done);
    return;  // no second block
  }
  {
    Label small;
    e_.cmp(left, block);
    e_.jl(small);
    body(block, false);
    advance();
    e_.sub(left, block);
    e_.jmp(loop);
    e_.L(small);
    tail(false);
  }
  e_.L(done);
}

void AttentionEmitter::ScoreBlock(int rows, bool prefetch, const Reg& q, const Reg& s) {
  const int cols = ScoreVectors();
  const int sets = Sets(rows, cols);
  const auto acc = regs_.Vecs("scores", sets * rows * cols);
  const auto page_list = regs_.Gpr("page_list"), pages_left = regs_.Gpr("pages_left"), k = regs_.Gpr("k"),
             a = regs_.Gpr("a"), left = regs_.Gpr("depth_left"), out = regs_.Gpr("out");
  Label page, depth;
  e_.mov(page_list, Var(kPageList));
  e_.mov(pages_left, Var(kPageCount));
  e_.mov(out, s);
  e_.L(page);
  PageAddress(k, page_list);
  for (size_t i = 0; i < acc.size(); ++i) vec_.Zero(acc[i]);
  e_.mov(a, q);
  e_.mov(left, KRows() / kUnroll);
  e_.L(depth);
  for (int u = 0; u < kUnroll; ++u) {
    if (prefetch) {
      for (int line = 0; line < 4 * kPageTokens; line += 64) {
        e_.prefetcht0(e_.ptr[*k + static_cast<int>(u * 4 * kPageTokens + line + PageBytes() / 2)]);
      }
    }
    Multiply(rows, cols, u % sets, acc, a, QRowBytes(), u * 4 * Halves(), k, u * 4 * kPageTokens);
  }
  e_.add(a, kUnroll * 4 * Halves());
  e_.add(k, kUnroll * 4 * kPageTokens);
  e_.sub(left, 1);
  e_.jnz(depth);
  AddSets(rows, cols, sets, acc);
  for (int r = 0; r < rows; ++r) {
    for (int c = 0; c < cols; ++c) {
      e_.vmovups(e_.ptr[*out + static_cast<int>(r * plan_.s_row_bytes + c * vec_.bytes())],
                 vec_(acc[static_cast<size_t>(r * cols + c)]));
    }
  }
  e_.add(out, 4 * kPageTokens);
  e_.add(page_list, 4);
  e_.sub(pages_left, 1);
  e_.jnz(page);
}

// s[r][token - first] of the block's rows.
void AttentionEmitter::Scores(bool few) {
  const auto q = regs_.Gpr("q"), s = regs_.Gpr("s");
  e_.mov(q, Var(kQ));
  e_.lea(s, e_.ptr[*scratch_ + static_cast<int>(plan_.s_offset)]);
  const OddMask mask(*this);
  RegisterBlocks(
      plan_.qk_rows, few && plan_.few_prefetch, [&](int rows, bool prefetch) { ScoreBlock(rows, prefetch, q, s); },
      [&] {
        e_.add(q, static_cast<int>(plan_.qk_rows * QRowBytes()));
        e_.add(s, static_cast<int>(plan_.qk_rows * plan_.s_row_bytes));
      });
}

// Writes -inf over the scores of tokens a row does not see. Whole vectors are stored outwards from the visible range;
// what they write beyond the row lands in the gap between rows.
void AttentionEmitter::Mask() {
  const auto row = regs_.Gpr("row"), s = regs_.Gpr("s"), from = regs_.Gpr("from"), position = regs_.Gpr("position"),
             left = regs_.Gpr("left"), tokens = regs_.Gpr("tokens"), zero = regs_.Gpr("zero");
  const auto inf = regs_.Vecs("-inf");
  Label rows, upper, upper_done, lower, lower_done;
  vec_.Broadcast(inf[0], -std::numeric_limits<float>::infinity());
  e_.lea(s, e_.ptr[*scratch_ + static_cast<int>(plan_.s_offset)]);
  e_.mov(row, Var(kRow));
  e_.mov(left, Var(kBlockRows));
  e_.mov(tokens, Var(kTokens));
  e_.xor_(zero, zero);
  e_.L(rows);
  TokenOfRow(position, row);
  e_.add(position, Var(kPosition));
  e_.lea(from, e_.ptr[*position + 1]);
  e_.cmp(from, Var(kKvEnd));
  e_.cmovg(from, Var(kKvEnd));
  e_.sub(from, Var(kFirst));
  e_.cmovl(from, zero);  // the row ends before the block's first page
  e_.L(upper);
  e_.cmp(from, tokens);
  e_.jge(upper_done);
  e_.vmovups(e_.ptr[*s + *from * 4], vec_(inf[0]));
  e_.add(from, vec_.lanes());
  e_.jmp(upper);
  e_.L(upper_done);
  if (desc_.window > 0) {
    e_.lea(from, e_.ptr[*position + (1 - desc_.window)]);
    e_.sub(from, Var(kFirst));
    e_.cmp(from, tokens);
    e_.cmovg(from, tokens);
    e_.L(lower);
    e_.test(from, from);
    e_.jle(lower_done);
    e_.sub(from, vec_.lanes());
    e_.vmovups(e_.ptr[*s + *from * 4], vec_(inf[0]));
    e_.jmp(lower);
    e_.L(lower_done);
  }
  e_.add(s, static_cast<int>(plan_.s_row_bytes));
  e_.add(row, 1);
  e_.sub(left, 1);
  e_.jnz(rows);
}

// For each row of the block: m' = max(m, S), alpha = 2^(m - m'), P = 2^(S - m') over S in place (bf16: in the first
// half of the row), l = l * alpha + sum(P). l is kept as a vector of partial sums. One pass a row, so that the chains
// of several rows overlap. bf16: the sum is taken of the rounded values, by a dot product with ones: then the weights P
// / l add up to 1 as if nothing had been rounded, and only differences within V see the rounding.
void AttentionEmitter::Softmax(bool prefetch) {
  const bool bf16 = plan_.product == AttentionProduct::kDotBf16;
  const auto s = regs_.Gpr("s"), in = regs_.Gpr("in"), out = regs_.Gpr("out"), m = regs_.Gpr("m"), l = regs_.Gpr("l"),
             alpha = regs_.Gpr("alpha"), rows_left = regs_.Gpr("rows_left"), left = regs_.Gpr("left"),
             pages = regs_.Gpr("pages"), next = regs_.Gpr("next");
  const int vectors = ScoreVectors();
  Label rows, max_page, page;
  const Exp2 exact(e_, vec_, regs_, 5, true);
  std::optional<Exp2> coarse;
  if (plan_.exp_degree != 5) coarse.emplace(e_, vec_, regs_, plan_.exp_degree, false);
  const Exp2& exp2 = coarse ? *coarse : exact;
  const auto ones = regs_.Vecs("ones", bf16 ? 1 : 0);
  if (bf16) e_.vpbroadcastd(vec_(ones[0]), e_.ptr[e_.ConstLabel32(0x3f803f80)]);
  e_.lea(s, e_.ptr[*scratch_ + static_cast<int>(plan_.s_offset)]);
  e_.lea(alpha, e_.ptr[*scratch_ + static_cast<int>(plan_.alpha_offset)]);
  e_.mov(m, Var(kM));
  e_.mov(l, Var(kL));
  e_.mov(rows_left, Var(kBlockRows));
  e_.mov(pages, Var(kPageCount));
  if (prefetch) {
    e_.mov(in, Var(kPageList));
    NextPageAddress(next, in);
  }
  e_.L(rows);
  if (prefetch) {  // keeps memory busy: the first lines of the page to come
    for (int line = 0; line < plan_.few_softmax_prefetch; ++line) e_.prefetcht0(e_.ptr[*next + line * 64]);
    e_.add(next, plan_.few_softmax_prefetch * 64);
  }
  const auto vm = regs_.Vecs("m"), scale = regs_.Vecs("alpha"), t0 = regs_.Vecs("t0"), t1 = regs_.Vecs("t1");
  {
    const auto maximum = regs_.Vecs("maximum", vectors / 2);
    e_.vbroadcastss(vec_(scale[0]), e_.dword[*m]);
    for (int i = 0; i < vectors / 2; ++i) e_.vmovaps(vec_(maximum[static_cast<size_t>(i)]), vec_(scale[0]));
    e_.mov(in, s);
    e_.mov(left, pages);
    e_.L(max_page);
    for (int i = 0; i < vectors; ++i) {
      const Xmm v = vec_(maximum[static_cast<size_t>(i / 2)]);
      e_.vmaxps(v, v, e_.ptr[*in + i * vec_.bytes()]);
    }
    e_.add(in, 4 * kPageTokens);
    e_.sub(left, 1);
    e_.jnz(max_page);
    for (int i = 1; i < vectors / 2; ++i) {
      e_.vmaxps(vec_(maximum[0]), vec_(maximum[0]), vec_(maximum[static_cast<size_t>(i)]));
    }
    vec_.MaxOfLanes(maximum[0], t0[0]);
    e_.vmovss(e_.dword[*m], Xmm(maximum[0]));
    e_.vmovaps(vec_(vm[0]), vec_(maximum[0]));
  }
  e_.vsubps(vec_(scale[0]), vec_(scale[0]), vec_(vm[0]));
  exact.Emit(scale[0], t0[0], t1[0]);
  e_.vmovss(e_.dword[*alpha], Xmm(scale[0]));

  const auto sum = regs_.Vecs("sum"), x = regs_.Vecs("x", bf16 ? 2 : 1);
  e_.vmulps(vec_(sum[0]), vec_(scale[0]), e_.ptr[*l]);
  e_.mov(in, s);
  e_.mov(out, s);
  e_.mov(left, pages);
  e_.L(page);
  if (bf16) {
    for (size_t i = 0; i < 2; ++i) {
      e_.vmovups(vec_(x[i]), e_.ptr[*in + static_cast<int>(i) * vec_.bytes()]);
      e_.vsubps(vec_(x[i]), vec_(x[i]), vec_(vm[0]));
      exp2.Emit(x[i], t0[0], t1[0]);
    }
    e_.vcvtne2ps2bf16(vec_(x[0]), vec_(x[1]), vec_(x[0]));
    e_.vmovups(e_.ptr[*out], vec_(x[0]));
    e_.vdpbf16ps(vec_(sum[0]), vec_(x[0]), vec_(ones[0]));
    e_.add(out, 2 * kPageTokens);
  } else {
    for (int i = 0; i < vectors; ++i) {
      e_.vmovups(vec_(x[0]), e_.ptr[*in + i * vec_.bytes()]);
      e_.vsubps(vec_(x[0]), vec_(x[0]), vec_(vm[0]));
      exp2.Emit(x[0], t0[0], t1[0]);
      e_.vmovups(e_.ptr[*in + i * vec_.bytes()], vec_(x[0]));
      e_.vaddps(vec_(sum[0]), vec_(sum[0]), vec_(x[0]));
    }
  }
  e_.add(in, 4 * kPageTokens);
  e_.sub(left, 1);
  e_.jnz(page);
  e_.vmovups(e_.ptr[*l], vec_(sum[0]));
  e_.add(s, static_cast<int>(plan_.s_row_bytes));
  e_.add(m, 4);
  e_.add(alpha, 4);
  e_.add(l, vec_.bytes());
  e_.sub(rows_left, 1);
  e_.jnz(rows);
}

void AttentionEmitter::SumBlock(int rows, int cols, bool prefetch, const Reg& p, const Reg& o, const Reg& alpha,
                                const Reg& column) {
  const int sets = Sets(rows, cols);
  const auto acc = regs_.Vecs("sums", sets * rows * cols);
  const auto page_list = regs_.Gpr("page_list"), pages_left = regs_.Gpr("pages_left"), v = regs_.Gpr("v"),
             a = regs_.Gpr("a"), left = regs_.Gpr("depth_left"), out = regs_.Gpr("out"), next = regs_.Gpr("next");
  const auto at = [&](int r, int c) { return vec_(acc[static_cast<size_t>(r * cols + c)]); };
  const auto o_at = [&](int r, int c) { return e_.ptr[*out + static_cast<int>(r * ORowBytes() + c * vec_.bytes())]; };
  Label page, depth;
  e_.mov(page_list, Var(kPageList));
  e_.mov(pages_left, Var(kPageCount));
  e_.mov(a, p);
  e_.lea(out, e_.ptr[o + column]);
  for (int r = 0; r < rows; ++r) {
    const auto scale = regs_.Vecs("scale");
    e_.vbroadcastss(vec_(scale[0]), e_.dword[alpha + 4 * r]);
    for (int c = 0; c < cols; ++c) e_.vmulps(at(r, c), vec_(scale[0]), o_at(r, c));
  }
  for (size_t i = static_cast<size_t>(rows * cols); i < acc.size(); ++i) vec_.Zero(acc[i]);
  e_.L(page);
  PageAddress(v, page_list);
  e_.lea(v, e_.ptr[*v + column + static_cast<int>(PageBytes() / 2)]);
  if (prefetch) {
    NextPageAddress(next, page_list);
    e_.add(next, column);
    e_.sub(next, v);
  }
  e_.mov(left, VRows() / kUnroll);
  e_.L(depth);
  for (int u = 0; u < kUnroll; ++u) {
    if (prefetch) {
      for (int line = 0; line < cols * vec_.bytes(); line += 64) {
        e_.prefetcht0(e_.ptr[*next + *v + static_cast<int>(u * VRowBytes() + line)]);
      }
    }
    Multiply(rows, cols, u % sets, acc, a, plan_.s_row_bytes, u * 4 * Halves(), v, u * VRowBytes());
  }
  e_.add(a, kUnroll * 4 * Halves());
  e_.add(v, static_cast<int>(kUnroll * VRowBytes()));
  e_.sub(left, 1);
  e_.jnz(depth);
  e_.add(page_list, 4);
  e_.sub(pages_left, 1);
  e_.jnz(page);
  AddSets(rows, cols, sets, acc);
  for (int r = 0; r < rows; ++r) {
    for (int c = 0; c < cols; ++c) e_.vmovups(o_at(r, c), at(r, c));
  }
}

// O = O * alpha + P V for the block's rows.
void AttentionEmitter::WeightedSum(bool few) {
  const int block_rows = few ? plan_.few_pv_rows : plan_.pv_rows, block_cols = few ? plan_.few_pv_cols : plan_.pv_cols;
  const int vectors = static_cast<int>(ORowBytes()) / vec_.bytes();
  const int full = vectors / block_cols, rest = vectors % block_cols;
  const auto p = regs_.Gpr("p"), o = regs_.Gpr("o"), alpha = regs_.Gpr("alpha"), column = regs_.Gpr("column");
  e_.lea(p, e_.ptr[*scratch_ + static_cast<int>(plan_.s_offset)]);
  e_.mov(o, Var(kO));
  e_.lea(alpha, e_.ptr[*scratch_ + static_cast<int>(plan_.alpha_offset)]);
  const OddMask mask(*this);
  RegisterBlocks(
      block_rows, few && plan_.few_prefetch,
      [&](int rows, bool prefetch) {
        Label columns;
        e_.xor_(column, column);
        e_.L(columns);
        SumBlock(rows, block_cols, prefetch, p, o, alpha, column);
        e_.add(column, block_cols * vec_.bytes());
        if (full > 1) {
          e_.cmp(column, full * block_cols * vec_.bytes());
          e_.jb(columns);
        }
        if (rest > 0) SumBlock(rows, rest, prefetch, p, o, alpha, column);
      },
      [&] {
        e_.add(p, static_cast<int>(block_rows * plan_.s_row_bytes));
        e_.add(o, static_cast<int>(block_rows * ORowBytes()));
        e_.add(alpha, 4 * block_rows);
      });
}

}  // namespace xjit::attention
