// The products of a mixture of experts: each unit (moe_route.h) of an expert's run is a call of an ordinary gemm kernel
// with the expert's matrix, the kernel chosen by the unit's rows. C++ around those calls; all experts' work is one
// grid, whose tasks idle threads take.
//
// The panels of the experts lie one after the other. Rows of a unit lie side by side, those of a unit of many rows in
// strips where the kernel wants them: gate and up gather them into the thread's scratch, and leave them so for down.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "codegen/gemm/gemm_desc.h"
#include "codegen/kernel.h"
#include "codegen/moe/moe_route.h"
#include "ir/support/act_layout.h"

namespace xjit {

// How rows of activations lie.
struct MoeRowLayout {
  DType type = DType::kF32;
  int64_t k = 0;
  int64_t row_bytes = 0;  // that mean something
  int64_t stride = 0;     // from row to row, a multiple of 64
  StripLayout strips;     // kBF16, kF16, kI8Act
};
MoeRowLayout MoeRowLayoutOf(DType type, int64_t k);

// A matrix for each expert.
struct GroupedWeights {
  const std::byte* w = nullptr;
  int64_t expert_bytes = 0;
  int64_t panels = 0, panel_bytes = 0;
  // By rows of a unit; [0] for more than few_rows.
  std::array<KernelFn, kMaxFewRows + 1> fn = {};
  int few_rows = 0;

  KernelFn FnFor(int64_t rows) const { return fn[static_cast<size_t>(rows <= few_rows ? rows : 0)]; }
};

// The unit whose rows a thread's scratch holds.
struct alignas(64) GatherTag {
  const MoeRuns* runs = nullptr;
  int64_t generation = 0;
  int64_t unit = 0;
};

// grouped_up: c[row] = silu(gate . x) * (up . x) of each sorted row; where the last task of a unit ends, its rows are
// converted to what down reads. Grid n = units x chunks: task n is chunk n % chunks of unit n / chunks, of which there
// may be fewer; m is all rows of the step, so that there is no call for none.
struct GroupedUpArgs {
  GroupedWeights weights;
  const MoeRuns* runs = nullptr;
  int64_t slots = 0;   // of a token
  int64_t chunk = 0;   // panels of a task
  int64_t chunks = 0;  // of all panels

  const std::byte* x = nullptr;  // a row for each token
  MoeRowLayout x_layout;
  int64_t ldx_bytes = 0;     // from token to token
  bool many_strips = false;  // how units of many rows are to be

  float* c = nullptr;  // [sorted rows]
  int64_t ldc_bytes = 0;
  KernelFn convert = nullptr, convert_strips = nullptr;  // prepare kernels; nullptr: c is what down reads
  bool mid_strips = false;                               // units of many rows go to strips
  std::byte* mid = nullptr;                              // [sorted rows]
  int64_t mid_stride = 0;
  int32_t* done = nullptr;  // [units] tasks of each unit that have ended; zeros between steps

  GatherTag* tag = nullptr;   // this thread's
  std::byte* rows = nullptr;  // this thread's, for the rows of a unit
  void* scratch = nullptr;    // this thread's, for the kernels
};
void GroupedUpKernel(const void* args, int64_t n0, int64_t n1, int64_t m0, int64_t m1);

// grouped_down: out[token] = residual[token] + sum over the token's slots of weight * (down . mid[row]), in order of
// expert, each product rounded before it is weighed. Who takes a range of columns does so for all tokens, so that no
// sum has two writers and bits do not depend on who takes what. Grid n = panels in chunks of at most `chunk`, m = all
// rows of the step in one call.
struct GroupedDownArgs {
  GroupedWeights weights;
  const MoeRuns* runs = nullptr;
  int64_t slots = 0;
  int64_t columns = 0;  // of out

  const std::byte* mid = nullptr;
  int64_t mid_stride = 0;
  const float* weight = nullptr;  // [slots] a token
  int64_t ldweight_bytes = 0;
  const float* residual = nullptr;  // nullptr: none; may be out itself
  int64_t ldr_bytes = 0;
  float* out = nullptr;
  int64_t ldo_bytes = 0;

  float* c = nullptr;  // this thread's: unit rows x chunk of columns
  int64_t ldc_bytes = 0;
  void* scratch = nullptr;  // this thread's, for the kernels
};
void GroupedDownKernel(const void* args, int64_t n0, int64_t n1, int64_t m0, int64_t m1);

}  // namespace xjit
