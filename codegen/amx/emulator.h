// Executes AMX tile instructions in software on processors that have none: a SIGILL handler that decodes what stands at
// the faulting address, does it on a tile file of the thread's own, and goes on behind it. It runs the bytes that xjit
// emits, so that AMX kernels are tested, and `--isa amx` works, on machines without AMX.
//
// Understood: ldtilecfg sttilecfg tilerelease tilezero tileloadd tileloaddt1 tilestored tdpbf16ps tdpfp16ps tdpbssd
// tdpbsud tdpbusd tdpbuud, with every memory operand of 64-bit code without prefixes. Any other illegal instruction,
// and a tile instruction that the hardware answers with #UD, goes to the handler that was installed before. #GP (a bad
// configuration) becomes SIGSEGV, as the kernel does it; a bad address faults inside the handler with that address.
#pragma once

#include <cstdint>

#include "ir/support/status.h"

namespace xjit {

// Installs the emulator for the whole process; a second call does nothing. FailedPrecondition: not Linux on x86-64, the
// processor has no AVX2, FMA and F16C, or the system lets the processor execute tile instructions itself.
absl::Status EnableAmxEmulator();

// EnableAmxEmulator has succeeded in this process.
bool AmxEmulated();

// The 64 bytes that sttilecfg stores: the calling thread's configuration in the emulator.
void EmulatedTileConfig(uint8_t config[64]);

}  // namespace xjit
