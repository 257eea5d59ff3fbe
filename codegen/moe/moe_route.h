// Choosing experts and sorting a step's rows by them, in C++: there is no inner loop worth emitting. Signature and
// grids as KernelFn says.
//
// A slot is one expert of one token: slot s of token t is number t * slots + s. An expert's slots of a step, earlier
// tokens first, are its run. A run is cut into units of rows that one kernel call takes: up to `few_rows` rows are one
// unit for the kernel of exactly that many rows, more are units of at most `unit_rows` rows for the many-row kernel.
#pragma once

#include <cstdint>

#include "ir/support/ref/moe.h"

namespace xjit {

// route: for each row of logits the experts and their weights, the same bits as ref::Route, and behind them `constant`
// experts more (numbers params.experts ..) of weight 1. Grid m = rows, n unused.
struct RouteArgs {
  ref::RouteParams params;
  int64_t constant = 0;
  const float* logits = nullptr;
  int64_t ldl_bytes = 0;
  const float* bias = nullptr;  // [experts] or nullptr
  int32_t* experts = nullptr;   // [top_k + constant] a row
  int64_t lde_bytes = 0;
  float* weights = nullptr;  // [top_k + constant] a row
  int64_t ldw_bytes = 0;
  void* scratch = nullptr;  // RouteScratchBytes(params)
};
int64_t RouteScratchBytes(const ref::RouteParams& params);
void RouteKernel(const void* args, int64_t n0, int64_t n1, int64_t m0, int64_t m1);

struct MoeUnit {
  int32_t expert = 0;  // which matrix
  int32_t rows = 0;
  int32_t row0 = 0;   // first row of the unit's place among sorted rows; a multiple of 16 where rows > few_rows
  int32_t first = 0;  // slots slot[first .. first + rows) are the unit's rows
};

// The sorted slots of a step: units in order of expert.
struct MoeRuns {
  MoeUnit* unit = nullptr;  // [MoeSizes::units]
  int32_t* slot = nullptr;  // [MoeSizes::slots]
  int64_t units = 0;
  int64_t generation = 0;  // one more with each sort
};

// How much a step of at most `rows` tokens can need, whose experts differ from each other in each token.
struct MoeSizes {
  int64_t slots = 0;
  int64_t units = 0;
  int64_t sorted_rows = 0;  // the units' places
};
MoeSizes MoeSizesOf(int64_t rows, int64_t slots, int64_t experts, int few_rows, int64_t unit_rows);

// moe_sort: fills the runs. Grid m = all rows of the step in one call, n unused.
struct MoeSortArgs {
  const int32_t* experts = nullptr;  // [slots] a row, as route leaves them
  int64_t lde_bytes = 0;
  int64_t slots = 0;
  int64_t first = 0, count = 0;  // experts first .. first + count - 1 are matrices 0 ..; other slots are left out
  int few_rows = 0;
  int64_t unit_rows = 0;  // a multiple of 16
  MoeRuns* runs = nullptr;
  int32_t* begin = nullptr;  // [count + 1], scratch
};
void MoeSortKernel(const void* args, int64_t n0, int64_t n1, int64_t m0, int64_t m1);

}  // namespace xjit
