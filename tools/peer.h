// Another library's matrix product, loaded as a module from beside the program: xjit itself never depends on it.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "ir/support/status.h"
#include "tools/onednn_peer.h"

namespace xjit::tools {

class PeerGemm {
 public:
  // `name` is "onednn". A usage error: another one. FailedPrecondition: xjit was built without it, or it has no such
  // product on this machine.
  static absl::StatusOr<std::unique_ptr<PeerGemm>> Load(std::string_view name, const XjitPeerGemm& gemm);
  ~PeerGemm();
  PeerGemm(const PeerGemm&) = delete;
  PeerGemm& operator=(const PeerGemm&) = delete;

  void Run(int64_t calls) { run_(peer_, calls); }

 private:
  PeerGemm() = default;
  void* peer_ = nullptr;
  XjitPeerRun run_ = nullptr;
  XjitPeerDestroy destroy_ = nullptr;
};

}  // namespace xjit::tools
