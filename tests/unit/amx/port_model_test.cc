// The static bar on loops whose answer is worked out by hand.
#include "codegen/amx/port_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "codegen/emitter.h"

namespace xjit {
namespace {

using ::testing::HasSubstr;
using Xbyak::Label;
using Xbyak::Tmm;

template <typename EmitFn>
std::vector<uint8_t> Bytes(EmitFn emit) {
  Emitter e;
  emit(e);
  e.ret();
  CodeArena arena;
  const auto kernel = e.Finish("test", arena);
  if (!kernel.ok()) std::abort();
  return {kernel->code, kernel->code + kernel->text_bytes};
}

// A loop of the body: two instructions besides.
template <typename BodyFn>
TilePortReport Loop(BodyFn body, const TileLoopHints& hints = {}) {
  const auto text = Bytes([&](Emitter& e) {
    Label loop;
    e.mov(e.ecx, 10);
    e.L(loop);
    body(e);
    e.dec(e.rcx);
    e.jnz(loop);
  });
  const auto report = AnalyzeTileLoop(text, hints);
  EXPECT_TRUE(report.ok()) << report.status().ToString();
  return report.value_or(TilePortReport());
}

// m x n accumulators from tmm0 on, then a tile of A and one of B; A is walked by rsi, B by rdx.
void Block(Emitter& e, int m, int n) {
  const Tmm b(m * n + m);
  for (int i = 0; i < m; ++i) e.tileloadd(Tmm(m * n + i), e.ptr[e.rsi + e.rax + 1024 * i]);
  for (int j = 0; j < n; ++j) {
    e.tileloadd(b, e.ptr[e.rdx + e.rbx + 64 * j]);
    for (int i = 0; i < m; ++i) e.tdpbf16ps(Tmm(i * n + j), Tmm(m * n + i), b);
  }
}

const TileLoopHints kBFromL2 = {.from_l2 = [](const TileLoad& load) { return load.base == 2; }};

TEST(PortModel, TwoByTwoFromL2) {
  const TilePortReport r = Loop([](Emitter& e) { Block(e, 2, 2); });
  EXPECT_EQ(r.instructions, 10);
  EXPECT_EQ(r.uops, 4 + 4 * 8 + 2);
  EXPECT_EQ(r.products, 4);
  EXPECT_EQ(r.loads, 4);
  EXPECT_EQ(r.l2_loads, 4);
  EXPECT_EQ(r.multiplier, 64);
  EXPECT_EQ(r.latency, 64);
  EXPECT_EQ(r.load_ports, 32);
  EXPECT_DOUBLE_EQ(r.cycles, 4 * 1024 / 48.0);
  EXPECT_DOUBLE_EQ(r.busy(), 0.75);  // what was measured: notes of usstq/mm_amx
  EXPECT_EQ(r.l2_tiles_per_product(), 1);
  EXPECT_EQ(r.limit, "L2");
}

TEST(PortModel, TwoByTwoWithAInL1) {
  const TilePortReport r = Loop([](Emitter& e) { Block(e, 2, 2); }, kBFromL2);
  EXPECT_EQ(r.cycles, 64);
  EXPECT_EQ(r.busy(), 1);
  EXPECT_EQ(r.l2_tiles_per_product(), 0.5);
  EXPECT_EQ(r.limit, "multiplier");
}

TEST(PortModel, OneByFourIsWhatL2Gives) {
  const TilePortReport r = Loop([](Emitter& e) { Block(e, 1, 4); }, kBFromL2);
  EXPECT_EQ(r.loads, 5);
  EXPECT_EQ(r.l2_tiles_per_product(), 1);
  EXPECT_DOUBLE_EQ(r.cycles, 4 * 1024 / 48.0);
  EXPECT_DOUBLE_EQ(r.busy(), 0.75);
}

TEST(PortModel, OneByOneWaitsForItself) {
  const TilePortReport r = Loop([](Emitter& e) { Block(e, 1, 1); }, kBFromL2);
  EXPECT_EQ(r.cycles, 52);
  EXPECT_DOUBLE_EQ(r.busy(), 16.0 / 52);
  EXPECT_EQ(r.limit, "latency");
}

TEST(PortModel, ProductsStartInOrder) {
  const auto order = [](std::initializer_list<int> accumulators) {
    return Loop([&](Emitter& e) {
             for (const int i : accumulators) e.tdpbssd(Tmm(i), Tmm(6), Tmm(7));
           })
        .latency;
  };
  EXPECT_EQ(order({0, 0, 1, 1}), 136);  // 0, 52, 68, 120, again 136
  EXPECT_EQ(order({0, 1, 0, 1}), 104);
  EXPECT_EQ(order({0, 1, 2, 3, 0, 1, 2, 3}), 128);
  EXPECT_EQ(order({0, 1, 2}), 52);
}

TEST(PortModel, AClearedTileIsNew) {
  const TilePortReport r = Loop([](Emitter& e) {
    e.tilezero(Tmm(0));
    e.tdpbusd(Tmm(0), Tmm(1), Tmm(2));
    e.tileloadd(Tmm(3), e.ptr[e.rsi + e.rax]);
    e.tdpbuud(Tmm(3), Tmm(1), Tmm(2));
  });
  EXPECT_EQ(r.latency, 32);
  EXPECT_EQ(r.products, 2);
}

TEST(PortModel, VectorInstructionsTakePorts) {
  const auto with = [](auto&& vectors) {
    return Loop(
        [&](Emitter& e) {
          Block(e, 2, 2);
          vectors(e);
        },
        kBFromL2);
  };
  TilePortReport r = with([](Emitter& e) {
    for (int i = 0; i < 200; ++i) e.vaddps(Xbyak::Zmm(i % 32), Xbyak::Zmm(0), Xbyak::Zmm(1));
  });
  EXPECT_EQ(r.vectors, 200);
  EXPECT_EQ(r.vector_ports, (200 + 4) / 2);
  EXPECT_EQ(r.limit, "vector ports");
  EXPECT_DOUBLE_EQ(r.busy(), 64.0 / 102);
  r = with([](Emitter& e) {
    for (int i = 0; i < 70; ++i) e.vpermb(Xbyak::Zmm(i % 32), Xbyak::Zmm(0), Xbyak::Zmm(1));
  });
  EXPECT_EQ(r.vector_ports, 70 + 4);  // all on port 5
  r = with([](Emitter& e) {
    for (int i = 0; i < 10; ++i) e.vpermi2b(Xbyak::Zmm(i), Xbyak::Zmm(10), Xbyak::Zmm(11));
  });
  EXPECT_EQ(r.vector_ports, 2 * 10 + 4);
  r = with([](Emitter& e) {  // loads and stores alone take no vector port
    for (int i = 0; i < 30; ++i) e.vmovups(Xbyak::Zmm(i), e.ptr[e.r8 + 64 * i]);
    for (int i = 0; i < 20; ++i) e.vmovups(e.ptr[e.r9 + 64 * i], Xbyak::Zmm(i));
    for (int i = 0; i < 6; ++i) e.prefetcht0(e.ptr[e.r10 + 64 * i]);
    e.vmovups(e.ptr[e.r9], Xbyak::Ymm(1));
    e.vpbroadcastd(Xbyak::Zmm(1), e.ptr[e.r8]);
    e.vfmadd231ps(Xbyak::Zmm(2), Xbyak::Zmm(3), e.ptr[e.r8]);
  });
  EXPECT_EQ(r.vectors, 1);
  EXPECT_EQ(r.load_ports, 32 + (30 + 6 + 1 + 1) / 2.0);
  EXPECT_EQ(r.store_ports, 20.5);
}

TEST(PortModel, StoresAndTheFrontEnd) {
  TilePortReport r = Loop([](Emitter& e) {
    Block(e, 1, 2);
    for (int i = 0; i < 5; ++i) e.tilestored(e.ptr[e.r8 + e.rax + 1024 * i], Tmm(i % 2));
  });
  EXPECT_EQ(r.stores, 5);
  EXPECT_EQ(r.store_ports, 80);
  EXPECT_EQ(r.limit, "store ports");
  r = Loop(
      [](Emitter& e) {
        Block(e, 2, 2);
        for (int i = 0; i < 412; ++i) e.add(e.r8, 1);
      },
      kBFromL2);
  EXPECT_EQ(r.front_end, 75);  // 4 + 32 + 412 + 2 uops
  EXPECT_EQ(r.limit, "front end");
}

TEST(PortModel, HintsSeeTheAddress) {
  std::vector<TileLoad> seen;
  const TileLoopHints hints = {.from_l2 = [&](const TileLoad& load) {
    seen.push_back(load);
    return load.tile == 7;
  }};
  const TilePortReport r = Loop(
      [](Emitter& e) {
        e.tileloadd(Tmm(6), e.ptr[e.r13 + e.r12 * 2 - 64]);
        e.tileloaddt1(Tmm(7), e.ptr[e.rsp + e.rax + 4096]);
        e.tdpbf16ps(Tmm(0), Tmm(6), Tmm(7));
      },
      hints);
  ASSERT_EQ(seen.size(), 2u);
  EXPECT_EQ(seen[0].base, 13);
  EXPECT_EQ(seen[0].index, 12);
  EXPECT_EQ(seen[0].disp, -64);
  EXPECT_EQ(seen[1].base, 4);
  EXPECT_EQ(seen[1].index, 0);
  EXPECT_EQ(seen[1].disp, 4096);
  EXPECT_EQ(r.l2_loads, 1);
}

TEST(PortModel, InnermostLoopsAndTheLargest) {
  const auto text = Bytes([](Emitter& e) {
    Label outer, first, second, plain;
    e.L(outer);
    e.tilezero(Tmm(0));
    e.L(plain);  // no products
    e.dec(e.rdx);
    e.jnz(plain);
    e.L(first);
    Block(e, 1, 1);
    e.dec(e.rcx);
    e.jnz(first);
    e.L(second);
    Block(e, 2, 2);
    e.dec(e.r8);
    e.jnz(second);
    for (int i = 0; i < 6; ++i) e.tdpbf16ps(Tmm(i), Tmm(6), Tmm(7));
    e.dec(e.r9);
    e.jnz(outer);
  });
  const auto loops = AnalyzeTileLoops(text, {});
  ASSERT_TRUE(loops.ok());
  ASSERT_EQ(loops->size(), 2u);
  EXPECT_EQ((*loops)[0].products, 1);
  EXPECT_EQ((*loops)[1].products, 4);
  EXPECT_LT((*loops)[0].end, (*loops)[1].end);
  EXPECT_EQ(AnalyzeTileLoop(text, {})->products, 4);
  EXPECT_THAT((*loops)[1].ToString(), HasSubstr("4 products, 4 tile loads (4 from L2)"));
}

TEST(PortModel, Fp16ProductsAreKnown) {
  const auto body = [](Emitter& e) {
    e.tdpfp16ps(Tmm(3), Tmm(5), Tmm(7));
    e.tdpfp16ps(Tmm(4), Tmm(6), Tmm(7));
  };
  EXPECT_EQ(Loop(body).products, 2);
  EXPECT_EQ(Loop(body).latency, 52);
  EXPECT_THAT(Disassemble(Bytes(body)), HasSubstr("tdpfp16ps tmm3, tmm5, tmm7\n     5: tdpfp16ps tmm4, tmm6, tmm7\n"));
}

TEST(PortModel, WhatCannotBeCounted) {
  const auto message = [](const std::vector<uint8_t>& text) {
    return std::string(Message(AnalyzeTileLoop(text, {}).status()));
  };
  EXPECT_EQ(message(Bytes([](Emitter& e) { Block(e, 2, 2); })), "tile loop: no loop of the kernel multiplies tiles");
  EXPECT_EQ(message(Bytes([](Emitter& e) {
              Label loop;
              e.L(loop);
              Block(e, 1, 1);
              e.call(e.rax);
              e.jmp(loop);
            })),
            "tile loop: there is a call at byte 17");
  EXPECT_EQ(message({0x90, 0x06}), "tile loop: byte 1 is the beginning of no instruction");
  EXPECT_EQ(message({}), "tile loop: no loop of the kernel multiplies tiles");
}

}  // namespace
}  // namespace xjit
