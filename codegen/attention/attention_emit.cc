// The walk of an attention kernel over items, KV steps and blocks of rows.
#include "codegen/attention/attention_emit.h"

#include <cstddef>
#include <limits>

#include "ir/support/align.h"

namespace xjit::attention {
namespace {

using Xbyak::Label;
using Xbyak::Xmm;
using Xbyak::Ymm;

constexpr int kCopyBytes = 32;  // a head of 16 bf16 values

}  // namespace

AttentionEmitter::AttentionEmitter(const AttentionDesc& desc, const AttentionPlan& plan, Emitter& e)
    : desc_(desc),
      plan_(plan),
      e_(e),
      vec_(e, plan.vector_bytes),
      regs_(plan.vector_bytes == 64 ? 32 : 16),
      scratch_(regs_.Gpr("scratch")) {}

absl::Status AttentionEmitter::Emit() {
  Label item, done;
  e_.Prologue(8 * kSlots);
  e_.mov(Var(kArgs), e_.arg_args);
  e_.mov(Var(kIndex), e_.arg_n0);
  e_.mov(Var(kEnd), e_.arg_n1);
  e_.mov(scratch_, e_.qword[e_.arg_args + offsetof(AttentionArgs, scratch)]);
  regs_.FreeArguments();
  e_.L(item);
  {
    const auto index = regs_.Gpr("index");
    e_.mov(index, Var(kIndex));
    e_.cmp(index, Var(kEnd));
    e_.jge(done);
  }
  LoadItem();
  CopyQuery();
  ClearState();
  Steps();
  WriteResult();
  e_.add(Var(kIndex), 1);
  e_.jmp(item);
  e_.L(done);
  e_.Epilogue();
  return regs_.status();
}

void AttentionEmitter::LoadItem() {
  const auto args = regs_.Gpr("args"), step = regs_.Gpr("step"), item = regs_.Gpr("item"), seq = regs_.Gpr("seq"),
             x = regs_.Gpr("x"), y = regs_.Gpr("y");
  const auto field = [&](const Reg& dst, size_t offset) { e_.movsxd(dst, e_.dword[*item + static_cast<int>(offset)]); };
  e_.mov(args, Var(kArgs));
  e_.mov(step, e_.qword[*args + offsetof(AttentionArgs, step)]);
  e_.mov(item, Var(kIndex));
  e_.imul(item, item, sizeof(AttentionItem));
  e_.add(item, e_.qword[*step + offsetof(StepView, item)]);
  e_.mov(Var(kItem), item);
  field(seq, offsetof(AttentionItem, seq));
  e_.imul(seq, seq, sizeof(SeqView));
  e_.add(seq, e_.qword[*step + offsetof(StepView, seq)]);
  e_.mov(x, e_.qword[*seq + offsetof(SeqView, pages)]);
  e_.mov(Var(kPages), x);

  field(x, offsetof(AttentionItem, kv_head));
  e_.imul(x, e_.qword[*args + offsetof(AttentionArgs, kv_head_bytes)]);
  e_.add(x, e_.qword[*args + offsetof(AttentionArgs, kv)]);
  e_.mov(Var(kKv), x);

  field(x, offsetof(AttentionItem, row0));
  e_.movsxd(y, e_.dword[*seq + offsetof(SeqView, row0)]);
  e_.sub(x, y);
  e_.movsxd(y, e_.dword[*seq + offsetof(SeqView, past)]);
  e_.add(x, y);
  e_.mov(Var(kPosition), x);

  // The item's KV: from the page of the first token that its first row sees to the last that its last row sees.
  if (desc_.window > 0) {
    const auto first = regs_.Gpr("first");
    field(first, offsetof(AttentionItem, kv_begin));
    e_.lea(y, e_.ptr[*x + (1 - desc_.window)]);
    e_.and_(y, -kPageTokens);
    e_.cmp(y, first);
    e_.cmovl(y, first);
  } else {
    field(y, offsetof(AttentionItem, kv_begin));
  }
  e_.mov(Var(kBegin), y);
  field(y, offsetof(AttentionItem, rows));
  e_.add(x, y);
  field(step, offsetof(AttentionItem, kv_end));
  e_.cmp(x, step);
  e_.cmovg(x, step);
  e_.mov(Var(kKvEnd), x);
  e_.sub(x, 1);
  e_.shr(x, 5);
  e_.shl(x, 2);
  e_.add(x, Var(kPages));
  e_.mov(Var(kLastPage), x);

  e_.imul(y, y, desc_.group());
  e_.mov(Var(kRows), y);
  e_.mov(x, plan_.step_tokens);
  e_.mov(step, plan_.few_step_tokens);
  e_.cmp(y, plan_.few_rows);
  e_.cmovle(x, step);
  e_.mov(Var(kStep), x);
}

// The item's query rows, token after token and in it head after head, at one stride.
void AttentionEmitter::CopyQuery() {
  const auto args = regs_.Gpr("args"), item = regs_.Gpr("item"), from = regs_.Gpr("from"), to = regs_.Gpr("to"),
             tokens = regs_.Gpr("tokens"), left = regs_.Gpr("left"), x = regs_.Gpr("x");
  const auto data = regs_.Vecs("data");
  const int64_t token_bytes = desc_.group() * QRowBytes();
  Label token, chunk;
  e_.mov(args, Var(kArgs));
  e_.mov(item, Var(kItem));
  e_.movsxd(from, e_.dword[*item + offsetof(AttentionItem, row0)]);
  e_.imul(from, from, static_cast<int>(desc_.ldq_bytes));
  e_.movsxd(x, e_.dword[*item + offsetof(AttentionItem, kv_head)]);
  e_.imul(x, x, static_cast<int>(token_bytes));
  e_.add(from, x);
  e_.add(from, e_.qword[*args + offsetof(AttentionArgs, q)]);
  e_.lea(to, e_.ptr[*scratch_ + static_cast<int>(plan_.q_offset)]);
  e_.movsxd(tokens, e_.dword[*item + offsetof(AttentionItem, rows)]);
  e_.L(token);
  e_.mov(left, static_cast<int>(token_bytes));
  e_.L(chunk);
  e_.vmovups(Ymm(data[0]), e_.ptr[*from + *left - kCopyBytes]);
  e_.vmovups(e_.ptr[*to + *left - kCopyBytes], Ymm(data[0]));
  e_.sub(left, kCopyBytes);
  e_.jnz(chunk);
  e_.add(from, static_cast<int>(desc_.ldq_bytes));
  e_.add(to, static_cast<int>(token_bytes));
  e_.sub(tokens, 1);
  e_.jnz(token);
}

// O = 0, l = 0, m = the lowest finite value: a step that shows a row nothing leaves all of them as they are.
void AttentionEmitter::ClearState() {
  const auto at = regs_.Gpr("at"), left = regs_.Gpr("left");
  const auto value = regs_.Vecs("value");
  const auto fill = [&](int64_t offset, int64_t bytes_a_row) {
    Label loop;
    e_.lea(at, e_.ptr[*scratch_ + static_cast<int>(offset)]);
    e_.mov(left, Var(kRows));
    if (bytes_a_row != vec_.bytes()) e_.imul(left, left, static_cast<int>(bytes_a_row / vec_.bytes()));
    e_.L(loop);
    e_.vmovups(e_.ptr[*at], vec_(value[0]));
    e_.add(at, vec_.bytes());
    e_.sub(left, 1);
    e_.jnz(loop);
  };
  vec_.Zero(value[0]);
  fill(plan_.o_offset, ORowBytes());
  fill(plan_.l_offset, vec_.bytes());
  vec_.Broadcast(value[0], std::numeric_limits<float>::lowest());
  Label chunk;
  e_.lea(at, e_.ptr[*scratch_ + static_cast<int>(plan_.m_offset)]);
  e_.mov(left, Var(kRows));
  e_.L(chunk);  // whole vectors: the array is padded
  e_.vmovups(e_.ptr[*at], vec_(value[0]));
  e_.add(at, vec_.bytes());
  e_.sub(left, vec_.lanes());
  e_.jg(chunk);
}

void AttentionEmitter::TokenOfRow(const Reg& dst, const Reg& row) {
  if (desc_.group() == 1) {
    e_.mov(dst, row);
    return;
  }
  // ceil(2^32 / group) overestimates 2^32 / group by less than 1, so the product is exact for rows below 2^32 / group.
  const int64_t reciprocal = CeilDiv(int64_t{1} << 32, desc_.group());
  e_.mov(dst, reciprocal);
  e_.imul(dst, row);
  e_.shr(dst, 32);
}

void AttentionEmitter::Steps() {
  Label step, block, next_block, done;
  e_.L(step);
  {
    const auto begin = regs_.Gpr("begin"), end = regs_.Gpr("end");
    e_.mov(begin, Var(kBegin));
    e_.cmp(begin, Var(kKvEnd));
    e_.jge(done, e_.T_NEAR);
    e_.add(begin, Var(kStep));
    e_.mov(end, Var(kKvEnd));
    e_.cmp(begin, end);
    e_.cmovg(begin, end);
    e_.mov(Var(kStepEnd), begin);
    e_.mov(Var(kRow), 0);
    e_.lea(begin, e_.ptr[*scratch_ + static_cast<int>(plan_.q_offset)]);
    e_.mov(Var(kQ), begin);
    e_.lea(begin, e_.ptr[*scratch_ + static_cast<int>(plan_.o_offset)]);
    e_.mov(Var(kO), begin);
    e_.lea(begin, e_.ptr[*scratch_ + static_cast<int>(plan_.l_offset)]);
    e_.mov(Var(kL), begin);
    e_.lea(begin, e_.ptr[*scratch_ + static_cast<int>(plan_.m_offset)]);
    e_.mov(Var(kM), begin);
  }
  e_.L(block);
  Block();
  e_.add(Var(kQ), static_cast<int>(plan_.block_rows * QRowBytes()));
  e_.add(Var(kO), static_cast<int>(plan_.block_rows * ORowBytes()));
  e_.add(Var(kL), plan_.block_rows * vec_.bytes());
  e_.add(Var(kM), 4 * plan_.block_rows);
  {
    const auto row = regs_.Gpr("row");
    e_.mov(row, Var(kRow));
    e_.add(row, plan_.block_rows);
    e_.mov(Var(kRow), row);
    e_.cmp(row, Var(kRows));
    e_.jl(block);
    e_.mov(row, Var(kBegin));
    e_.add(row, Var(kStep));
    e_.mov(Var(kBegin), row);
  }
  e_.jmp(step);
  e_.L(done);
}

// One block of rows against the tokens of one step that it sees.
void AttentionEmitter::Block() {
  Label skip, mask, seen;
  {
    const auto first_row = regs_.Gpr("first_row"), last_row = regs_.Gpr("last_row"), pa = regs_.Gpr("pa"),
               pb = regs_.Gpr("pb"), begin = regs_.Gpr("begin"), end = regs_.Gpr("end"), x = regs_.Gpr("x");
    e_.mov(first_row, Var(kRow));
    e_.mov(last_row, Var(kRows));
    e_.sub(last_row, first_row);
    e_.mov(x, plan_.block_rows);
    e_.cmp(last_row, x);
    e_.cmovg(last_row, x);
    e_.mov(Var(kBlockRows), last_row);
    e_.lea(last_row, e_.ptr[*last_row + *first_row - 1]);
    TokenOfRow(pa, first_row);
    TokenOfRow(pb, last_row);
    e_.add(pa, Var(kPosition));  // positions of the block's first and last token
    e_.add(pb, Var(kPosition));

    e_.mov(begin, Var(kBegin));
    if (desc_.window > 0) {
      e_.lea(x, e_.ptr[*pa + (1 - desc_.window)]);
      e_.cmp(begin, x);
      e_.cmovl(begin, x);
    }
    e_.lea(end, e_.ptr[*pb + 1]);
    e_.cmp(end, Var(kStepEnd));
    e_.cmovg(end, Var(kStepEnd));
    e_.cmp(begin, end);
    e_.jge(skip);
    e_.and_(begin, -kPageTokens);
    e_.mov(Var(kFirst), begin);
    e_.sub(end, begin);
    e_.add(end, kPageTokens - 1);
    e_.shr(end, 5);
    e_.mov(Var(kPageCount), end);
    e_.shl(end, 5);
    e_.mov(Var(kTokens), end);
    e_.mov(x, begin);
    e_.shr(x, 5);
    e_.shl(x, 2);
    e_.add(x, Var(kPages));
    e_.mov(Var(kPageList), x);
  }
  const auto branch = [&](const std::function<void(bool)>& body) {
    Label few, done;
    e_.cmp(Var(kRows), plan_.few_rows);
    e_.jle(few);
    body(false);
    e_.jmp(done);
    e_.L(few);
    body(true);
    e_.L(done);
  };
  branch([this](bool few) { Scores(few); });
  {
    // All tokens of the pages are seen by all rows unless the first row ends, or the last row begins, inside.
    const auto first_row = regs_.Gpr("first_row"), x = regs_.Gpr("x"), y = regs_.Gpr("y");
    e_.mov(first_row, Var(kRow));
    TokenOfRow(x, first_row);
    e_.add(x, Var(kPosition));
    e_.add(x, 1);
    e_.cmp(x, Var(kKvEnd));
    e_.cmovg(x, Var(kKvEnd));
    e_.mov(y, Var(kFirst));
    e_.add(y, Var(kTokens));
    e_.cmp(y, x);
    e_.jg(mask);
    if (desc_.window > 0) {
      e_.add(first_row, Var(kBlockRows));
      e_.sub(first_row, 1);
      TokenOfRow(x, first_row);
      e_.add(x, Var(kPosition));
      e_.sub(x, desc_.window - 1);
      e_.cmp(x, Var(kFirst));
      e_.jg(mask);
    }
    e_.jmp(seen);
  }
  e_.L(mask);
  Mask();
  e_.L(seen);
  branch([this](bool few) {
    Softmax(few && plan_.few_prefetch);
    WeightedSum(few);
  });
  e_.L(skip);
}

void AttentionEmitter::WriteResult() {
  const auto item = regs_.Gpr("item"), o = regs_.Gpr("o"), l = regs_.Gpr("l"), m = regs_.Gpr("m"),
             out = regs_.Gpr("out"), token = regs_.Gpr("token"), head = regs_.Gpr("head"), x = regs_.Gpr("x"),
             y = regs_.Gpr("y");
  const auto sum = regs_.Vecs("sum"), tmp = regs_.Vecs("tmp"), scale = regs_.Vecs("scale"), data = regs_.Vecs("data");
  const Xmm l_sum(sum[0]), seen(tmp[0]);
  Label normal, heads, partial, copy, done;
  const auto row_loop = [&](const std::function<void(const Xmm&)>& store) {
    Label loop;
    e_.xor_(x, x);
    e_.L(loop);
    store(vec_(data[0]));
    e_.add(x, vec_.bytes());
    e_.cmp(x, static_cast<int>(ORowBytes()));
    e_.jb(loop);
    e_.add(o, static_cast<int>(ORowBytes()));
    e_.add(l, vec_.bytes());
  };
  e_.mov(item, Var(kItem));
  e_.lea(o, e_.ptr[*scratch_ + static_cast<int>(plan_.o_offset)]);
  e_.lea(l, e_.ptr[*scratch_ + static_cast<int>(plan_.l_offset)]);
  e_.mov(y, Var(kArgs));
  e_.movsxd(x, e_.dword[*item + offsetof(AttentionItem, slot)]);
  e_.test(x, x);
  e_.jns(partial);

  // out = O / l, 0 where nothing was seen.
  e_.movsxd(out, e_.dword[*item + offsetof(AttentionItem, row0)]);
  e_.imul(out, out, static_cast<int>(desc_.ldo_bytes));
  e_.movsxd(x, e_.dword[*item + offsetof(AttentionItem, kv_head)]);
  e_.imul(x, x, static_cast<int>(desc_.group() * ORowBytes()));
  e_.add(out, x);
  e_.add(out, e_.qword[*y + offsetof(AttentionArgs, out)]);
  e_.movsxd(token, e_.dword[*item + offsetof(AttentionItem, rows)]);
  e_.L(normal);
  e_.mov(head, desc_.group());
  e_.L(heads);
  e_.vmovups(vec_(sum[0]), e_.ptr[*l]);
  vec_.SumOfLanes(sum[0], tmp[0]);
  e_.vxorps(seen, seen, seen);
  e_.vcmpps(seen, l_sum, seen, 4);  // _CMP_NEQ_UQ
  e_.vmovss(Xmm(scale[0]), e_.ConstF32(1));
  e_.vdivss(l_sum, Xmm(scale[0]), l_sum);
  e_.vandps(l_sum, l_sum, seen);
  e_.vbroadcastss(vec_(scale[0]), l_sum);
  row_loop([&](const Xmm& v) {
    e_.vmulps(v, vec_(scale[0]), e_.ptr[*o + *x]);
    e_.vmovups(e_.ptr[*out + *x], v);
  });
  e_.add(out, static_cast<int>(ORowBytes()));
  e_.sub(head, 1);
  e_.jnz(heads);
  e_.add(out, static_cast<int>(desc_.ldo_bytes - desc_.group() * ORowBytes()));
  e_.sub(token, 1);
  e_.jnz(normal);
  e_.jmp(done);

  e_.L(partial);
  e_.imul(out, x, static_cast<int>(PartialSlotBytes(desc_.group(), desc_.head_dim)));
  e_.add(out, e_.qword[*y + offsetof(AttentionArgs, partial)]);
  e_.lea(m, e_.ptr[*scratch_ + static_cast<int>(plan_.m_offset)]);
  e_.mov(head, desc_.group());
  e_.L(copy);
  e_.vmovups(vec_(sum[0]), e_.ptr[*l]);
  vec_.SumOfLanes(sum[0], tmp[0]);
  row_loop([&](const Xmm& v) {
    e_.vmovups(v, e_.ptr[*o + *x]);
    e_.vmovups(e_.ptr[*out + *x], v);
  });
  e_.add(out, static_cast<int>(ORowBytes()));
  e_.mov((*y).cvt32(), e_.dword[*m]);
  e_.mov(e_.dword[*out], (*y).cvt32());
  e_.vmovss(e_.dword[*out + 4], l_sum);
  e_.add(out, 8);
  e_.add(m, 4);
  e_.sub(head, 1);
  e_.jnz(copy);
  e_.L(done);
}

}  // namespace xjit::attention

namespace xjit {

absl::Status EmitAttentionBf16Dot(const AttentionDesc& desc, const AttentionPlan& plan, Emitter& e) {
  return attention::AttentionEmitter(desc, plan, e).Emit();
}
absl::Status EmitAttentionFma512(const AttentionDesc& desc, const AttentionPlan& plan, Emitter& e) {
  return attention::AttentionEmitter(desc, plan, e).Emit();
}
absl::Status EmitAttentionFma2(const AttentionDesc& desc, const AttentionPlan& plan, Emitter& e) {
  return attention::AttentionEmitter(desc, plan, e).Emit();
}

}  // namespace xjit
