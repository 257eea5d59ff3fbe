// A kernel in machine code: its calling convention, its owner, and the arena that holds its bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ir/support/status.h"

namespace xjit {

// Every kernel, emitted or C++, has this signature (System V AMD64: rdi, rsi, rdx, rcx, r8).
// `args` is the family's argument struct (GemmArgs, AttentionArgs, ...), bound when the program is built.
// [n0, n1) x [m0, m1) is the part of the stage's grid that this call computes; what n and m count is the family's
// choice (gemm: column panels x rows). A part is computed identically whatever the partition was.
using KernelFn = void (*)(const void* args, int64_t n0, int64_t n1, int64_t m0, int64_t m1);

struct Kernel {
  std::string name;  // gemm.avx512_vnni.q8act_q4_k_f32.m1n8960k1536.silu_mul
  KernelFn fn = nullptr;
  const uint8_t* code = nullptr;  // nullptr for a kernel that is C++
  size_t code_bytes = 0;          // of which text_bytes are instructions; constants follow
  size_t text_bytes = 0;
  int64_t scratch_bytes = 0;  // of each thread, 64-byte aligned, passed in the args
  // Of a matrix product for many rows: GemmPlan::n_block, by which SharePanels() cuts it into tasks.
  int64_t panels_together = 0;
};

// Executable memory, W^X: chunks are written once, then made read-execute for good. Thread-compatible.
class CodeArena {
 public:
  CodeArena();
  ~CodeArena();
  CodeArena(const CodeArena&) = delete;
  CodeArena& operator=(const CodeArena&) = delete;

  // Copies position-independent code and returns where it runs; Seal() must follow before it is called.
  absl::StatusOr<const uint8_t*> Add(std::span<const uint8_t> code);
  // Makes everything added so far read-execute.
  absl::Status Seal();

  int64_t bytes_used() const { return bytes_used_; }

 private:
  struct Chunk;
  std::vector<std::unique_ptr<Chunk>> chunks_;
  int64_t bytes_used_ = 0;
};

// Appends `name` at [code, code + bytes) to /tmp/perf-PID.map, for perf(1).
absl::Status WritePerfMap(std::span<const Kernel> kernels);

// Disassembles with Zydis, Intel syntax, one instruction a line.
std::string Disassemble(std::span<const uint8_t> code);

}  // namespace xjit
