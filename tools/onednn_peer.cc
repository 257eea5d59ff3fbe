// oneDNN's matrix product behind tools/onednn_peer.h.
#include "tools/onednn_peer.h"

#include <dnnl.h>
#include <omp.h>
#include <sched.h>

#include <cstdio>
#include <cstring>
#include <initializer_list>

namespace {

struct Peer {
  dnnl_engine_t engine = nullptr;
  dnnl_stream_t stream = nullptr;
  dnnl_primitive_desc_t description = nullptr;
  dnnl_primitive_t product = nullptr;
  dnnl_memory_t a = nullptr, w = nullptr, c = nullptr;
  int threads = 1;
};

// Memory that the library allocates, filled with small numbers: denormals or infinities would change its speed.
dnnl_status_t Make(Peer* peer, const_dnnl_memory_desc_t desc, int fill, dnnl_memory_t* memory) {
  const dnnl_status_t status = dnnl_memory_create(memory, desc, peer->engine, DNNL_MEMORY_ALLOCATE);
  if (status != dnnl_success) return status;
  void* data = nullptr;
  dnnl_memory_get_data_handle(*memory, &data);
  std::memset(data, fill, dnnl_memory_desc_get_size(desc));
  return dnnl_success;
}

void Destroy(Peer* peer) {
  for (dnnl_memory_t memory : {peer->a, peer->w, peer->c}) dnnl_memory_destroy(memory);
  if (peer->product != nullptr) dnnl_primitive_destroy(peer->product);
  if (peer->description != nullptr) dnnl_primitive_desc_destroy(peer->description);
  if (peer->stream != nullptr) dnnl_stream_destroy(peer->stream);
  if (peer->engine != nullptr) dnnl_engine_destroy(peer->engine);
  delete peer;
}

dnnl_status_t Build(Peer* peer, const XjitPeerGemm& gemm) {
  using Type = XjitPeerGemm::Type;
  const dnnl_data_type_t a = gemm.type == Type::kF32 ? dnnl_f32 : gemm.type == Type::kBf16 ? dnnl_bf16 : dnnl_u8;
  const dnnl_data_type_t w = gemm.type == Type::kInt8 ? dnnl_s8 : a;
  const dnnl_data_type_t c = gemm.type == Type::kInt8 ? dnnl_s32 : a;
  const dnnl_dims_t a_dims = {gemm.m, gemm.k}, w_dims = {gemm.k, gemm.n}, c_dims = {gemm.m, gemm.n};
  dnnl_memory_desc_t a_desc = nullptr, w_desc = nullptr, c_desc = nullptr;
  dnnl_status_t status = dnnl_engine_create(&peer->engine, dnnl_cpu, 0);
  if (status == dnnl_success) status = dnnl_stream_create(&peer->stream, peer->engine, dnnl_stream_default_flags);
  if (status == dnnl_success) status = dnnl_memory_desc_create_with_tag(&a_desc, 2, a_dims, a, dnnl_ab);
  if (status == dnnl_success) status = dnnl_memory_desc_create_with_tag(&w_desc, 2, w_dims, w, dnnl_format_tag_any);
  if (status == dnnl_success) status = dnnl_memory_desc_create_with_tag(&c_desc, 2, c_dims, c, dnnl_ab);
  if (status == dnnl_success) {
    status =
        dnnl_matmul_primitive_desc_create(&peer->description, peer->engine, a_desc, w_desc, nullptr, c_desc, nullptr);
  }
  if (status == dnnl_success) status = dnnl_primitive_create(&peer->product, peer->description);
  if (status == dnnl_success) status = Make(peer, a_desc, gemm.type == Type::kInt8 ? 1 : 0x3c, &peer->a);
  if (status == dnnl_success) status = Make(peer, c_desc, 0, &peer->c);
  if (status == dnnl_success) {
    const_dnnl_memory_desc_t packed = dnnl_primitive_desc_query_md(peer->description, dnnl_query_weights_md, 0);
    status = Make(peer, packed, gemm.type == Type::kInt8 ? 1 : 0x3c, &peer->w);
  }
  for (dnnl_memory_desc_t desc : {a_desc, w_desc, c_desc}) dnnl_memory_desc_destroy(desc);
  return status;
}

}  // namespace

extern "C" {

void* xjit_peer_create(const XjitPeerGemm* gemm, char* error, int error_size) {
  omp_set_dynamic(0);
  omp_set_num_threads(gemm->threads);
  // Threads of the caller's pool are bound; those that OpenMP makes would all inherit the caller's one processor.
#pragma omp parallel num_threads(gemm->threads)
  {
    const int cpu = gemm->cpus == nullptr ? -1 : gemm->cpus[omp_get_thread_num()];
    if (cpu >= 0) {
      cpu_set_t set;
      CPU_ZERO(&set);
      CPU_SET(static_cast<size_t>(cpu), &set);
      sched_setaffinity(0, sizeof(set), &set);
    }
  }
  Peer* peer = new Peer;
  peer->threads = gemm->threads;
  const dnnl_status_t status = Build(peer, *gemm);
  if (status == dnnl_success) return peer;
  std::snprintf(error, static_cast<size_t>(error_size), "oneDNN has no such product here (status %d)",
                static_cast<int>(status));
  Destroy(peer);
  return nullptr;
}

void xjit_peer_run(void* handle, int64_t calls) {
  Peer* peer = static_cast<Peer*>(handle);
  omp_set_num_threads(peer->threads);
  const dnnl_exec_arg_t args[] = {{DNNL_ARG_SRC, peer->a}, {DNNL_ARG_WEIGHTS, peer->w}, {DNNL_ARG_DST, peer->c}};
  for (int64_t i = 0; i < calls; ++i) {
    dnnl_primitive_execute(peer->product, peer->stream, 3, args);
    dnnl_stream_wait(peer->stream);
  }
}

void xjit_peer_destroy(void* handle) { Destroy(static_cast<Peer*>(handle)); }
}
