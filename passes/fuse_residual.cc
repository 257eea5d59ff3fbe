// fuse_residual: add(x, gemm) becomes the gemm's epilogue, which then updates x in place; likewise of a grouped_gemm
// that combines its experts. x + (experts + shared expert), where both are products, is added in the order (x +
// experts)
// + shared expert, so that both update x. Gain: one pass over [m, n] less, and no buffer for the product. After
// fuse_bias, fuse_glu, fuse_combine and fuse_scale.
#include "passes/pass.h"
#include "passes/rewrite.h"

namespace xjit {
namespace {

const char* Blocker(const Function& f, const Op& add, const Op* product, const Value* other) {
  if (product == nullptr) return "no operand is a gemm";
  if (OnlyUser(f, product->result()) != &add) return "the gemm has a second user";
  if (const char* why = EpilogueBlocker(*product, "residual")) return why;
  if (other->def != nullptr && f.IndexOf(other->def) > f.IndexOf(product))
    return "the other operand is made after the gemm";
  return nullptr;
}

void Fuse(Function& f, PassContext& context, Op* add, Op* product, Value* other) {
  product->AddItem("epilogue", "residual", {{other, nullptr}});
  FoldInto(f, add, product);
  context.Fused(f, *product, "residual fused");
}

// Fuses add(x, sum) where sum = add(a, b) of two products; false: it does not fit.
bool FuseBoth(Function& f, PassContext& context, Op* add, Value* x, Op* sum) {
  if (sum == nullptr || OnlyUser(f, sum->result()) != add) return false;
  Op *a = ProductOf(sum->operand(0)), *b = ProductOf(sum->operand(1));
  if (a == nullptr || b == nullptr || a == b) return false;
  if (f.IndexOf(a) > f.IndexOf(b)) std::swap(a, b);
  if (Blocker(f, *sum, a, x) != nullptr || Blocker(f, *sum, b, a->result()) != nullptr) return false;
  a->AddItem("epilogue", "residual", {{x, nullptr}});
  Fuse(f, context, sum, b, a->result());
  // What the sum's name stood for is now the whole.
  FoldInto(f, add, b);
  context.Fused(f, *b, "two products are added to the residual one after the other");
  return true;
}

}  // namespace

absl::StatusOr<PassResult> FuseResidual(Module& module, PassContext& context) {
  int fused = 0;
  for (auto& f : module.functions) {
    // Outer additions first, as they see both products of an inner one.
    for (size_t i = f->ops.size(); i-- > 0;) {
      Op* add = f->ops[i].get();
      if (add->code != OpCode::kAdd) continue;
      if (FuseBoth(*f, context, add, add->operand(0), DefOf(add->operand(1), OpCode::kAdd)) ||
          FuseBoth(*f, context, add, add->operand(1), DefOf(add->operand(0), OpCode::kAdd))) {
        fused += 2;
        i = f->ops.size();
      }
    }
    for (size_t i = 0; i < f->ops.size(); ++i) {
      Op* add = f->ops[i].get();
      if (add->code != OpCode::kAdd) continue;
      Op* product = ProductOf(add->operand(1));
      Value* other = add->operand(0);
      const char* why = Blocker(*f, *add, product, other);
      if (why != nullptr) {
        product = ProductOf(add->operand(0));
        other = add->operand(1);
        if (Blocker(*f, *add, product, other) != nullptr) {
          context.Missed(*f, *add, why);
          continue;
        }
      }
      Fuse(*f, context, add, product, other);
      ++fused;
      --i;
    }
  }
  return PassResult::Changed(fused);
}

}  // namespace xjit
