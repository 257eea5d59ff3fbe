// The kernel registry: from a descriptor and a target to machine code. Selection is one rule for all families: of the
// kernels.inc rows whose ISA the target grants, each plan says a cost or refuses; the cheapest wins.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "codegen/attention/attention_desc.h"
#include "codegen/gemm/convert.h"
#include "codegen/gemm/gemm_desc.h"
#include "codegen/kernel.h"
#include "codegen/rows/rows_desc.h"
#include "ir/support/encoding.h"
#include "ir/support/status.h"
#include "ir/support/target.h"

namespace xjit {

// attention_merge belongs to the attention whose partial results it combines.
struct AttentionMergeDesc : AttentionDesc {
  bool operator==(const AttentionMergeDesc&) const = default;
};

// One row of kernels.inc.
struct KernelRow {
  std::string_view family;  // "gemm", "attention", "attention_merge", "rope_store", "prepare", "eltwise", "convert"
  std::string_view row;     // "avx512_vnni"
  Isa isa;                  // the least that grants it
};
std::vector<KernelRow> KernelRows();

// What selection found out about one row for one descriptor.
struct Candidate {
  std::string_view row;
  Isa isa;
  absl::StatusOr<double> cost;  // in the unit of the family's plans, or why the plan refuses
  bool chosen = false;
};

// The type in which activations enter a matrix product with such a weight. i8act: i8 with a scale a column or one in
// all, unless it is weight_only. q8act: GGUF's encodings and i4 from avx512_vnni on; but bf16 for many rows on tiles,
// since a block of 32 fills a bf16 tile and half an int8 one, whose sums would have to leave the tile after each. bf16:
// bf16, f8e4m3 and other i8 from avx512_bf16 on. f16: f16 for many rows on tiles that multiply it. Else f32.
DType ActivationFor(const Encoding& weight, const TargetInfo& target, bool many_rows);
// Whether so many rows of that type come to a matrix product in strips (GemmDesc::strips).
bool StripsFor(DType activation, bool many_rows);

struct KernelLibraryOptions {
  // Runs each kernel, when it is first asked for, on random data against its scalar reference (`--verify-kernels`);
  // needs a host that has the target's ISA.
  bool verify = false;
};

// The kernels of one target, each emitted on first use and kept; equal descriptors share one. Pointers stay valid as
// long as the library. Thread-compatible.
class KernelLibrary {
 public:
  explicit KernelLibrary(TargetInfo target, KernelLibraryOptions options = {});
  ~KernelLibrary();
  KernelLibrary(const KernelLibrary&) = delete;
  KernelLibrary& operator=(const KernelLibrary&) = delete;

  // The cheapest kernel for the descriptor, or with `row` that row's. Seal() must follow before its fn is called.
  // InvalidArgument: a descriptor that no kernel takes, with each row's reason; a row name that the family has not.
  // FailedPrecondition: a row above the target's ISA. Internal: a kernel that differs from its reference.
  absl::StatusOr<const Kernel*> Get(const GemmDesc& desc, std::string_view row = {});
  absl::StatusOr<const Kernel*> Get(const AttentionDesc& desc, std::string_view row = {});
  absl::StatusOr<const Kernel*> Get(const AttentionMergeDesc& desc, std::string_view row = {});
  absl::StatusOr<const Kernel*> Get(const RopeStoreDesc& desc, std::string_view row = {});
  absl::StatusOr<const Kernel*> Get(const PrepareDesc& desc, std::string_view row = {});
  absl::StatusOr<const Kernel*> Get(const EltwiseDesc& desc, std::string_view row = {});
  absl::StatusOr<const Kernel*> Get(const ConvertDesc& desc, std::string_view row = {});
  // A kernel that is C++: "embed", "rope_table", "gather_rows", "route", "moe_sort", "grouped_up", "grouped_down".
  absl::StatusOr<const Kernel*> Fixed(std::string_view name);

  // The C++ kernel that adds up what `part` computes (codegen/gemm/split.h), named after it.
  const Kernel* Split(const Kernel& part);

  // Makes all code so far executable. More kernels may be asked for afterwards (and sealed again).
  absl::Status Seal();

  // Every row that the target grants, in the order of kernels.inc.
  std::vector<Candidate> Candidates(const GemmDesc& desc) const;
  std::vector<Candidate> Candidates(const AttentionDesc& desc) const;
  std::vector<Candidate> Candidates(const AttentionMergeDesc& desc) const;
  std::vector<Candidate> Candidates(const RopeStoreDesc& desc) const;
  std::vector<Candidate> Candidates(const PrepareDesc& desc) const;
  std::vector<Candidate> Candidates(const EltwiseDesc& desc) const;
  std::vector<Candidate> Candidates(const ConvertDesc& desc) const;
  // The same as text, a line each: "avx512_vnni  cost 52.1  <- chosen", "avx512_bf16  refused: ...".
  template <typename Desc>
  std::string Explain(const Desc& desc) const {
    return Format(Candidates(desc));
  }

  // Every emitted kernel so far with its candidates.
  std::string ExplainAll() const;

  const TargetInfo& target() const { return target_; }
  // In the order in which they were first asked for.
  std::vector<const Kernel*> kernels() const;
  double compile_ms() const { return compile_ms_; }  // planning, emitting and, with it, verifying
  int64_t code_bytes() const { return arena_.bytes_used(); }

 private:
  template <typename Desc>
  struct Cached {
    Desc desc;
    std::string row;  // as asked for: empty for the cheapest
    const Kernel* kernel;
  };
  template <typename Desc>
  absl::StatusOr<const Kernel*> GetFrom(std::vector<Cached<Desc>>& cache, const Desc& desc, std::string_view row);
  const Kernel* Cpp(std::string_view name, KernelFn fn);
  template <typename Desc>
  absl::StatusOr<Kernel> Build(const Desc& desc, std::string_view row);
  template <typename Desc>
  void ExplainCached(const std::vector<Cached<Desc>>& cache, std::string* text) const;
  static std::string Format(const std::vector<Candidate>& candidates);

  TargetInfo target_;
  KernelLibraryOptions options_;
  CodeArena arena_;
  std::deque<Kernel> kernels_;
  std::vector<Cached<GemmDesc>> gemm_;
  std::vector<Cached<AttentionDesc>> attention_;
  std::vector<Cached<AttentionMergeDesc>> attention_merge_;
  std::vector<Cached<RopeStoreDesc>> rope_store_;
  std::vector<Cached<PrepareDesc>> prepare_;
  std::vector<Cached<EltwiseDesc>> eltwise_;
  std::vector<Cached<ConvertDesc>> convert_;
  double compile_ms_ = 0;
};

}  // namespace xjit
