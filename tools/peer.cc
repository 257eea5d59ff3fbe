#include "tools/peer.h"

#include <dlfcn.h>

#include <filesystem>

namespace xjit::tools {

absl::StatusOr<std::unique_ptr<PeerGemm>> PeerGemm::Load(std::string_view name, const XjitPeerGemm& gemm) {
  if (name != "onednn") return UsageError("--vs {}: not known; known is onednn", name);
  std::error_code error;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", error);
  const std::string path = (program.parent_path() / "xjit_onednn.so").string();
  void* module = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (module == nullptr) {
    return FailedPrecondition(
        "--vs onednn: xjit was built without oneDNN, or it has moved since (docs/performance.md)");
  }
  const auto create = reinterpret_cast<XjitPeerCreate>(dlsym(module, "xjit_peer_create"));
  std::unique_ptr<PeerGemm> peer(new PeerGemm);
  peer->run_ = reinterpret_cast<XjitPeerRun>(dlsym(module, "xjit_peer_run"));
  peer->destroy_ = reinterpret_cast<XjitPeerDestroy>(dlsym(module, "xjit_peer_destroy"));
  if (create == nullptr || peer->run_ == nullptr || peer->destroy_ == nullptr) {
    return FailedPrecondition("--vs onednn: {} is not xjit's module", path);
  }
  char why[256] = {};
  peer->peer_ = create(&gemm, why, sizeof(why));
  if (peer->peer_ == nullptr) return FailedPrecondition("--vs onednn: {}", why);
  return peer;
}

PeerGemm::~PeerGemm() {
  if (peer_ != nullptr) destroy_(peer_);
}

}  // namespace xjit::tools
