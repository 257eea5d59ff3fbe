// The IR as text: parse(print(m)) == m. The language is described in ir/SPEC.md.
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
#include <vector>

#include "ir/graph.h"

namespace xjit {

std::string PrintModule(const Module& module);
std::string PrintFunction(const Function& function);
// An attribute's value; of a chain, which refers to its op's operands, only an empty one.
std::string PrintAttr(const Attr& attr);
// One op without its line end; weights are printed with their types.
std::string PrintOp(const Op& op);

// Parses and checks types op by op; does not run the whole verifier. The error is one line: "file:line:col: what
// (hint)", of several the first five and how many there are.
absl::StatusOr<std::unique_ptr<Module>> ParseModule(std::string_view text, std::string_view file);

// One error in a text.
struct Diagnostic {
  Loc loc;
  std::string what;  // one line
};
// So many errors are kept; a text that has them is not read further.
inline constexpr size_t kMostDiagnostics = 20;
// "7 errors", "the first 20 errors".
std::string CountText(const std::vector<Diagnostic>& diagnostics);

// As ParseModule, but reads on after an error, at the next op or function, and gives all of them in order. What a
// broken op or function defines causes no further errors where it is used. nullptr exactly if there are errors.
std::unique_ptr<Module> ParseModuleDiagnostics(std::string_view text, std::vector<Diagnostic>* diagnostics);

}  // namespace xjit
