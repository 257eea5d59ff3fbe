// kernels.inc as typed rows, a span for each family: what selection walks, and what tests and benchmarks call by row.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "codegen/attention/attention_plan.h"
#include "codegen/emitter.h"
#include "codegen/gemm/convert.h"
#include "codegen/gemm/gemm_plan.h"
#include "codegen/kernels.h"
#include "codegen/rows/rows_plan.h"

namespace xjit {

// A family: its name, plan type and the name of a kernel of it.
template <typename Desc>
struct Family;
template <>
struct Family<GemmDesc> {
  using Plan = GemmPlan;
  static constexpr std::string_view kName = "gemm";
  static std::string KernelName(const GemmDesc& desc, const char* row) { return GemmName(desc, row); }
};
template <>
struct Family<AttentionDesc> {
  using Plan = AttentionPlan;
  static constexpr std::string_view kName = "attention";
  static std::string KernelName(const AttentionDesc& desc, const char* row) { return AttentionName(desc, row); }
};
template <>
struct Family<AttentionMergeDesc> {
  using Plan = AttentionMergePlan;
  static constexpr std::string_view kName = "attention_merge";
  static std::string KernelName(const AttentionMergeDesc& desc, const char* row) {
    return AttentionMergeName(desc, row);
  }
};
template <>
struct Family<RopeStoreDesc> {
  using Plan = RopeStorePlan;
  static constexpr std::string_view kName = "rope_store";
  static std::string KernelName(const RopeStoreDesc& desc, const char* row) { return RopeStoreName(desc, row); }
};
template <>
struct Family<PrepareDesc> {
  using Plan = PreparePlan;
  static constexpr std::string_view kName = "prepare";
  static std::string KernelName(const PrepareDesc& desc, const char* row) { return PrepareName(desc, row); }
};
template <>
struct Family<EltwiseDesc> {
  using Plan = EltwisePlan;
  static constexpr std::string_view kName = "eltwise";
  static std::string KernelName(const EltwiseDesc& desc, const char* row) { return EltwiseName(desc, row); }
};
template <>
struct Family<ConvertDesc> {
  using Plan = ConvertPlan;
  static constexpr std::string_view kName = "convert";
  static std::string KernelName(const ConvertDesc& desc, const char* row) { return ConvertName(desc, row); }
};

template <typename Desc>
struct TypedRow {
  using Plan = typename Family<Desc>::Plan;
  const char* name;
  Isa isa;
  absl::StatusOr<Plan> (*plan)(const Desc& desc, const TargetInfo& target);
  absl::Status (*emit)(const Desc& desc, const Plan& plan, Emitter& emitter);
};

// The rows of Desc's family, in the order of kernels.inc.
template <typename Desc>
std::span<const TypedRow<Desc>> RowsOf();
template <>
std::span<const TypedRow<GemmDesc>> RowsOf();
template <>
std::span<const TypedRow<AttentionDesc>> RowsOf();
template <>
std::span<const TypedRow<AttentionMergeDesc>> RowsOf();
template <>
std::span<const TypedRow<RopeStoreDesc>> RowsOf();
template <>
std::span<const TypedRow<PrepareDesc>> RowsOf();
template <>
std::span<const TypedRow<EltwiseDesc>> RowsOf();
template <>
std::span<const TypedRow<ConvertDesc>> RowsOf();

}  // namespace xjit
