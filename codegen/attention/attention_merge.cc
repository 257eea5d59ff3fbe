// attention_merge: out = sum_j w_j o_j / sum_j w_j l_j with w_j = 2^(m_j - max m), for each head of a row.
#include <algorithm>
#include <cstddef>
#include <limits>

#include "codegen/attention/attention_plan.h"
#include "codegen/attention/attention_vec.h"

namespace xjit {

absl::Status EmitAttentionMerge(const AttentionDesc& desc, const AttentionMergePlan& plan, Emitter& e) {
  using attention::Exp2;
  using attention::Vec;
  using Xbyak::Label;
  using Xbyak::Xmm;
  enum Slot { kArgs, kIndex, kEnd, kSlots };
  const auto var = [&](Slot slot) { return e.qword[e.rsp + 8 * slot]; };
  const int o_bytes = 4 * desc.head_dim, head_bytes = o_bytes + 8;
  const int slot_bytes = static_cast<int>(PartialSlotBytes(desc.group(), desc.head_dim));
  e.Prologue(8 * kSlots);
  e.mov(var(kArgs), e.arg_args);
  e.mov(var(kIndex), e.arg_m0);
  e.mov(var(kEnd), e.arg_m1);

  const Vec vec(e, plan.vector_bytes);
  const int columns = vec.wide() ? 8 : 2;  // vectors of a head that one pass over the slots sums
  Regs regs(vec.registers());
  regs.FreeArguments();
  const auto merge = regs.Gpr("merge"), args = regs.Gpr("args"), first = regs.Gpr("first"), stride = regs.Gpr("stride"),
             out = regs.Gpr("out"), head = regs.Gpr("head"), at = regs.Gpr("at"), left = regs.Gpr("left"),
             slots = regs.Gpr("slots"), x = regs.Gpr("x");
  const auto m = regs.Vecs("m"), l = regs.Vecs("l"), w = regs.Vecs("w"), acc = regs.Vecs("acc", columns),
             t0 = regs.Vecs("t0"), t1 = regs.Vecs("t1");
  const Exp2 exp2(e, vec, regs, 5, true);
  const auto field = [&](const Xbyak::Reg64& dst, size_t offset) {
    e.movsxd(dst, e.dword[*merge + static_cast<int>(offset)]);
  };
  // Runs body once a slot, `at` on the head's record.
  const auto each_slot = [&](auto body) {
    Label loop;
    e.mov(at, first);
    e.mov(left, slots);
    e.L(loop);
    body();
    e.add(at, stride);
    e.sub(left, 1);
    e.jnz(loop);
  };
  Label row, heads, done;
  e.L(row);
  e.mov(x, var(kIndex));
  e.cmp(x, var(kEnd));
  e.jge(done);
  e.mov(args, var(kArgs));
  e.mov(merge, e.qword[*args + offsetof(AttentionMergeArgs, step)]);
  e.mov(merge, e.qword[*merge + offsetof(StepView, merge)]);
  e.imul(x, x, sizeof(AttentionMerge));
  e.add(merge, x);
  field(first, offsetof(AttentionMerge, first_slot));
  e.imul(first, first, slot_bytes);
  e.add(first, e.qword[*args + offsetof(AttentionMergeArgs, partial)]);
  field(stride, offsetof(AttentionMerge, slot_stride));
  e.imul(stride, stride, slot_bytes);
  field(slots, offsetof(AttentionMerge, slots));
  field(out, offsetof(AttentionMerge, row));
  e.imul(out, out, static_cast<int>(desc.ldo_bytes));
  field(x, offsetof(AttentionMerge, kv_head));
  e.imul(x, x, desc.group() * o_bytes);
  e.add(out, x);
  e.add(out, e.qword[*args + offsetof(AttentionMergeArgs, out)]);
  e.mov(head, desc.group());

  e.L(heads);
  vec.Broadcast(m[0], std::numeric_limits<float>::lowest());
  each_slot([&] {
    e.vbroadcastss(vec(w[0]), e.dword[*at + o_bytes]);
    e.vmaxps(vec(m[0]), vec(m[0]), vec(w[0]));
  });
  const auto weight = [&] {
    e.vbroadcastss(vec(w[0]), e.dword[*at + o_bytes]);
    e.vsubps(vec(w[0]), vec(w[0]), vec(m[0]));
    exp2.Emit(w[0], t0[0], t1[0]);
  };
  vec.Zero(l[0]);
  each_slot([&] {
    weight();
    e.vbroadcastss(vec(t0[0]), e.dword[*at + o_bytes + 4]);
    e.vfmadd231ps(vec(l[0]), vec(w[0]), vec(t0[0]));
  });
  // l = l == 0 ? 0 : 1 / l
  e.vxorps(Xmm(t0[0]), Xmm(t0[0]), Xmm(t0[0]));
  e.vcmpps(Xmm(t0[0]), Xmm(t0[0]), Xmm(l[0]), 4);  // _CMP_NEQ_UQ
  e.vmovss(Xmm(t1[0]), e.ConstF32(1));
  e.vdivss(Xmm(l[0]), Xmm(t1[0]), Xmm(l[0]));
  e.vandps(Xmm(l[0]), Xmm(l[0]), Xmm(t0[0]));
  e.vbroadcastss(vec(l[0]), Xmm(l[0]));
  const int vectors = o_bytes / vec.bytes();
  for (int c0 = 0; c0 < vectors; c0 += columns) {
    const int cols = std::min(columns, vectors - c0);
    const auto disp = [&](int c) { return (c0 + c) * vec.bytes(); };
    for (int c = 0; c < cols; ++c) vec.Zero(acc[static_cast<size_t>(c)]);
    each_slot([&] {
      weight();
      for (int c = 0; c < cols; ++c) e.vfmadd231ps(vec(acc[static_cast<size_t>(c)]), vec(w[0]), e.ptr[*at + disp(c)]);
    });
    for (int c = 0; c < cols; ++c) {
      const Xmm v = vec(acc[static_cast<size_t>(c)]);
      e.vmulps(v, v, vec(l[0]));
      e.vmovups(e.ptr[*out + disp(c)], v);
    }
  }
  e.add(first, head_bytes);
  e.add(out, o_bytes);
  e.sub(head, 1);
  e.jnz(heads);
  e.add(var(kIndex), 1);
  e.jmp(row);
  e.L(done);
  e.Epilogue();
  return regs.status();
}

}  // namespace xjit
