// A kernel on random data against its scalar reference: what `--verify-kernels` runs for each kernel of a model.
#pragma once

#include "codegen/kernels.h"

namespace xjit {

// Runs `kernel` (sealed, of a row the host can run) on random data of the descriptor's shape, or of a part of it where
// the whole would take the scalar reference more than about 0.1 s. Internal error, naming the kernel, the first place
// that differs and both values, when a result is further from the reference than the order of its sums explains.
absl::Status VerifyKernel(const GemmDesc& desc, const Kernel& kernel);
absl::Status VerifyKernel(const AttentionDesc& desc, const Kernel& kernel);
absl::Status VerifyKernel(const AttentionMergeDesc& desc, const Kernel& kernel);
absl::Status VerifyKernel(const RopeStoreDesc& desc, const Kernel& kernel);
absl::Status VerifyKernel(const PrepareDesc& desc, const Kernel& kernel);
absl::Status VerifyKernel(const EltwiseDesc& desc, const Kernel& kernel);
absl::Status VerifyKernel(const ConvertDesc& desc, const Kernel& kernel);

}  // namespace xjit
