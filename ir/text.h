// The IR as text: parse(print(m)) == m.
//
//   module @llama {isa = "avx512_bf16"} {
//     func @layer(%x: tensor<T x 576 x f32>, %step: !step) -> tensor<T x 576 x f32> {
//       %n = rms_norm %x, @attn_norm<576 x f32> {eps = 1e-05} : tensor<T x 576 x f32>
//       ...
//       return %y
//     }
//   }
// A weight's shape and encoding stand at its first use in a function. `//` starts a comment.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "ir/graph.h"

namespace xjit {

std::string PrintModule(const Module& module);
std::string PrintFunction(const Function& function);
// One op without its line end; weights are printed with their types.
std::string PrintOp(const Op& op);

// Parses and checks types op by op; does not run the whole verifier. Errors: "file:line:col: what (hint)".
absl::StatusOr<std::unique_ptr<Module>> ParseModule(std::string_view text, std::string_view file);

}  // namespace xjit
