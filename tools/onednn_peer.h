// The functions of the module xjit_onednn: a matrix product by oneDNN, weights packed as it likes best.
#pragma once

#include <cstdint>

extern "C" {

struct XjitPeerGemm {
  enum class Type : int { kF32, kBf16, kInt8 };  // kInt8: u8 by s8, sums of int32
  Type type = Type::kF32;
  int64_t m = 0, n = 0, k = 0;
  int threads = 1;
  const int* cpus = nullptr;  // thread t runs on cpus[t]; -1: anywhere
};

// nullptr, with one line in `error`, where oneDNN has no such product here.
using XjitPeerCreate = void* (*)(const XjitPeerGemm* gemm, char* error, int error_size);
using XjitPeerRun = void (*)(void* peer, int64_t calls);
using XjitPeerDestroy = void (*)(void* peer);
}
