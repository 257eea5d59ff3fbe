// Loads, stores, configurations, every addressing form, and what must survive a tile instruction.
#include <sys/mman.h>

#include <algorithm>
#include <barrier>
#include <random>
#include <thread>

#include "codegen/cpu.h"
#include "tests/unit/amx/amx_fixture.h"

namespace xjit {
namespace {

using Xbyak::Reg64;
using Xbyak::Tmm;

const void* Stride(int64_t bytes) { return reinterpret_cast<const void*>(bytes); }

TEST(TileConfig, IsStoredAsLoaded) {
  XJIT_NEED_TILES();
  const Program load([](Emitter& e) { e.ldtilecfg(e.ptr[e.rdi]); });
  const Program store([](Emitter& e) { e.sttilecfg(e.ptr[e.rdi]); });
  const Program release([](Emitter& e) { e.tilerelease(); });
  const TileConfig zero;
  TileConfig out = TileConfig::Full();
  release();
  store(&out);
  EXPECT_EQ(std::memcmp(&out, &zero, 64), 0);

  TileConfig config;
  config.Set(0, 16, 64).Set(1, 1, 4).Set(3, 7, 3).Set(7, 5, 60);
  config.bytes[1] = 3;  // start row
  load(&config);
  store(&out);
  EXPECT_EQ(std::memcmp(&out, &config, 64), 0);

  TileConfig palette0;  // nothing else of it is read
  std::memset(palette0.bytes + 1, 0xff, 63);
  load(&palette0);
  store(&out);
  EXPECT_EQ(std::memcmp(&out, &zero, 64), 0);
}

TEST(TileLoad, PartOfATileAndStrides) {
  XJIT_NEED_TILES();
  const Program program([](Emitter& e) {  // config, from, stride, to
    e.ldtilecfg(e.ptr[e.rdi]);
    e.tileloadd(Tmm(5), e.ptr[e.rsi + e.rdx]);
    e.mov(e.rax, 64);
    e.tilestored(e.ptr[e.rcx + e.rax], Tmm(5));
  });
  std::vector<uint8_t> memory(1 << 14);
  std::mt19937 random(1);
  for (uint8_t& byte : memory) byte = static_cast<uint8_t>(random());
  for (const int64_t stride : {64, -64, 0, 100, -300, 7, 1}) {
    for (int rows = 1; rows <= 16; ++rows) {
      const int bytes = 4 * (1 + static_cast<int>(random() % 16));
      TileConfig config;
      config.Set(5, rows, bytes);
      uint8_t out[16][64];
      std::memset(out, 0xcd, sizeof out);
      const uint8_t* from = memory.data() + 8000;
      program(&config, from, Stride(stride), out);
      for (int r = 0; r < 16; ++r) {
        for (int c = 0; c < 64; ++c) {
          const uint8_t expected = r < rows && c < bytes ? from[r * stride + c] : 0xcd;
          ASSERT_EQ(out[r][c], expected) << rows << " " << bytes << " " << stride << ": " << r << " " << c;
        }
      }
    }
  }
}

TEST(TileLoad, StartRowIsWhereItGoesOnAndIsCleared) {
  XJIT_NEED_TILES();
  const Program program([](Emitter& e) {
    e.ldtilecfg(e.ptr[e.rdi]);
    e.mov(e.rax, 64);
    e.tileloadd(Tmm(0), e.ptr[e.rsi + e.rax]);
    e.sttilecfg(e.ptr[e.rdi]);
    e.tilestored(e.ptr[e.rdx + e.rax], Tmm(0));
  });
  TileConfig config = TileConfig::Full();
  config.bytes[1] = 10;
  uint8_t in[16][64], out[16][64];
  std::memset(in, 0x11, sizeof in);
  program(&config, in, out);
  for (int r = 0; r < 16; ++r) EXPECT_EQ(out[r][63], r < 10 ? 0 : 0x11) << r;
  EXPECT_EQ(config.bytes[1], 0);
}

TEST(TileZero, ClearsOneTileAndReleaseClearsAll) {
  XJIT_NEED_TILES();
  const Program program([](Emitter& e) {
    e.ldtilecfg(e.ptr[e.rdi]);
    e.mov(e.rax, 64);
    for (int t = 0; t < 8; ++t) e.tileloadd(Tmm(t), e.ptr[e.rsi + e.rax]);
    e.tilezero(Tmm(6));
    for (int t = 0; t < 8; ++t) e.tilestored(e.ptr[e.rdx + e.rax + 1024 * t], Tmm(t));
    e.tilerelease();
    e.ldtilecfg(e.ptr[e.rdi]);
    for (int t = 0; t < 8; ++t) e.tilestored(e.ptr[e.rcx + e.rax + 1024 * t], Tmm(t));
  });
  const TileConfig config = TileConfig::Full();
  std::vector<uint8_t> in(1024, 0x33), out(8192), after(8192, 0xff);
  program(&config, in.data(), out.data(), after.data());
  for (int t = 0; t < 8; ++t) {
    EXPECT_EQ(std::count(out.begin() + 1024 * t, out.begin() + 1024 * (t + 1), t == 6 ? 0 : 0x33), 1024) << t;
  }
  EXPECT_EQ(std::count(after.begin(), after.end(), 0), 8192);
}

// Signal frames go to a stack of their own, so that rsp may be a base with any value.
class AltStack {
 public:
  AltStack() {
    const stack_t stack = {.ss_sp = memory_.data(), .ss_flags = 0, .ss_size = memory_.size()};
    sigaltstack(&stack, &before_);
  }
  ~AltStack() { sigaltstack(&before_, nullptr); }

 private:
  std::vector<uint8_t> memory_ = std::vector<uint8_t>(1 << 18);
  stack_t before_ = {};
};

TEST(TileAddress, EveryBaseIndexScaleAndDisplacement) {
  XJIT_NEED_TILES();
  constexpr int kRows = 3, kRowBytes = 8;
  const AltStack alt_stack;
  std::vector<uint8_t> memory(1 << 16);
  std::mt19937 random(1);
  for (uint8_t& byte : memory) byte = static_cast<uint8_t>(random());
  static uint64_t saved_rsp;
  struct Case {
    std::string name;
    const uint8_t* row0;
    int64_t stride;
    const uint8_t* out;
  };
  std::vector<Case> cases;
  std::vector<uint8_t> outs(16 * 16 * 4 * 64);
  TileConfig config;
  config.Set(4, kRows, kRowBytes);
  const Program program([&](Emitter& e) {
    const std::vector<Reg64> kept = {e.rbx, e.rbp, e.r12, e.r13, e.r14, e.r15};
    for (const Reg64& reg : kept) e.push(reg);
    e.ldtilecfg(e.ptr[e.rdi]);
    e.mov(e.rax, e.rsp);
    e.mov(e.ptr[reinterpret_cast<uint64_t>(&saved_rsp)], e.rax);
    for (int base = 0; base < 16; ++base) {
      for (int index = 0; index < 16; ++index) {
        if (index == 4 || index == base) continue;  // rsp is no index
        for (const int disp : {0, 48, -128, 5000}) {
          const int scale = static_cast<int>(random() % 4);
          const int64_t index_value = static_cast<int64_t>(random() % 401) - 200;
          const Case c = {.name = fmt::format("[{} + {} * {} + {}]", Reg64(base).toString(), Reg64(index).toString(),
                                              1 << scale, disp),
                          .row0 = memory.data() + 20000 + random() % 20000,
                          .stride = index_value << scale,
                          .out = outs.data() + 64 * cases.size()};
          e.mov(Reg64(base), reinterpret_cast<uint64_t>(c.row0) - static_cast<uint64_t>(int64_t{disp}));
          e.mov(Reg64(index), static_cast<uint64_t>(index_value));
          e.tileloadd(Tmm(4), e.ptr[Reg64(base) + Reg64(index) * (1 << scale) + disp]);
          e.mov(e.rax, e.ptr[reinterpret_cast<uint64_t>(&saved_rsp)]);
          e.mov(e.rsp, e.rax);
          e.mov(e.r9, reinterpret_cast<uint64_t>(c.out));
          e.mov(e.r10, 16);
          e.tilestored(e.ptr[e.r9 + e.r10], Tmm(4));
          cases.push_back(c);
        }
      }
    }
    for (auto reg = kept.rbegin(); reg != kept.rend(); ++reg) e.pop(*reg);
  });
  program(&config);
  ASSERT_EQ(cases.size(), (16u * 15 - 15) * 4);
  for (const Case& c : cases) {
    for (int r = 0; r < kRows; ++r) {
      ASSERT_EQ(std::memcmp(c.out + 16 * r, c.row0 + r * c.stride, kRowBytes), 0) << c.name << " row " << r;
    }
  }
}

// [disp32] and [index * scale + disp32], which Xbyak does not write for tiles, and no index.
TEST(TileAddress, NoBaseAndNoIndex) {
  XJIT_NEED_TILES();
  void* low = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT, -1, 0);
  ASSERT_NE(low, MAP_FAILED);
  auto* bytes = static_cast<uint8_t*>(low);
  for (int i = 0; i < 4096; ++i) bytes[i] = static_cast<uint8_t>(i * 7 + i / 256);
  const TileConfig config = TileConfig::Full();
  uint8_t indexed[16][64], repeated[16][64], absolute[16][64];
  const auto disp = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(low));
  const Program program([&](Emitter& e) {
    e.push(e.r12);
    e.push(e.r13);
    e.ldtilecfg(e.ptr[e.rdi]);
    e.mov(e.r13, 40);
    e.mov(e.r12, reinterpret_cast<uintptr_t>(low) + 128);
    EmitBytes(e, {0xc4, 0xa2, 0x7b, 0x4b, 0x0c, 0xad});  // tileloadd tmm1, [r13 * 4 + disp32]
    e.dd(disp);
    EmitBytes(e, {0xc4, 0xc2, 0x7b, 0x4b, 0x14, 0x24});  // tileloadd tmm2, [r12]
    EmitBytes(e, {0xc4, 0xe2, 0x7b, 0x4b, 0x1c, 0x25});  // tileloadd tmm3, [disp32]
    e.dd(disp + 64);
    e.mov(e.rax, 64);
    e.tilestored(e.ptr[e.rsi + e.rax], Tmm(1));
    e.tilestored(e.ptr[e.rdx + e.rax], Tmm(2));
    e.tilestored(e.ptr[e.rcx + e.rax], Tmm(3));
    e.pop(e.r13);
    e.pop(e.r12);
  });
  program(&config, indexed, repeated, absolute);
  for (int r = 0; r < 16; ++r) {
    EXPECT_EQ(std::memcmp(indexed[r], bytes + 160 * r, 64), 0) << r;
    EXPECT_EQ(std::memcmp(repeated[r], bytes + 128, 64), 0) << r;
    EXPECT_EQ(std::memcmp(absolute[r], bytes + 64, 64), 0) << r;
  }
  munmap(low, 4096);
}

TEST(TileAddress, OfAConfiguration) {
  XJIT_NEED_TILES();
  struct alignas(64) {
    TileConfig in, out[4];
  } data;
  data.in = TileConfig::Full();
  data.in.Set(2, 9, 12);
  TileConfig constant = TileConfig::Full();
  constant.Set(1, 3, 28);
  const Program program([&](Emitter& e) {
    e.mov(e.r11, 8);
    e.ldtilecfg(e.ptr[e.rdi]);
    e.sttilecfg(e.ptr[e.rdi + 64]);
    e.ldtilecfg(e.ConstZmm(&constant));  // rip-relative
    e.sttilecfg(e.ptr[e.rdi + e.r11 * 8 + 64]);
    e.ldtilecfg(e.ptr[e.rdi + e.r11 * 8 - 64]);
    e.lea(e.r8, e.ptr[e.rdi + 1000]);
    e.sttilecfg(e.ptr[e.r8 - 1000 + 64 * 3]);
    e.tilerelease();
    e.sttilecfg(e.ptr[e.rdi + 256]);
  });
  program(&data);
  const TileConfig zero;
  EXPECT_EQ(std::memcmp(&data.out[0], &data.in, 64), 0);
  EXPECT_EQ(std::memcmp(&data.out[1], &constant, 64), 0);
  EXPECT_EQ(std::memcmp(&data.out[2], &data.in, 64), 0);
  EXPECT_EQ(std::memcmp(&data.out[3], &zero, 64), 0);
}

TEST(TileState, IsEachThreadsOwn) {
  XJIT_NEED_TILES();
  const Program configure([](Emitter& e) {
    e.ldtilecfg(e.ptr[e.rdi]);
    e.mov(e.rax, 64);
    e.tileloadd(Tmm(0), e.ptr[e.rsi + e.rax]);
  });
  const Program read([](Emitter& e) {
    e.sttilecfg(e.ptr[e.rdi]);
    e.mov(e.rax, 64);
    e.tilestored(e.ptr[e.rsi + e.rax], Tmm(0));
  });
  const Program config_of([](Emitter& e) { e.sttilecfg(e.ptr[e.rdi]); });
  std::barrier barrier(2);
  bool ok[2] = {};
  const auto run = [&](int t) {
    TileConfig at_first, config, out;
    config_of(&at_first);  // a new thread is not configured
    const int rows = t == 0 ? 16 : 5;
    config.Set(0, rows, t == 0 ? 64 : 20);
    uint8_t in[16][64], back[16][64] = {};
    std::memset(in, 0x40 + t, sizeof in);
    configure(&config, in);
    barrier.arrive_and_wait();
    read(&out, back);
    ok[t] = at_first.bytes[0] == 0 && std::memcmp(&out, &config, 64) == 0 && back[rows - 1][19] == 0x40 + t &&
            back[15][63] == (t == 0 ? 0x40 : 0);
  };
  std::thread first(run, 0), second(run, 1);
  first.join();
  second.join();
  EXPECT_TRUE(ok[0]);
  EXPECT_TRUE(ok[1]);
}

// Vector registers, flags and general registers as they were before a load, a product of each kind and a store.
TEST(TileState, NothingElseChanges) {
  XJIT_NEED_TILES();
  const bool wide = HostIsa() >= Isa::kAvx512;
  const int registers = wide ? 32 : 16;
  struct alignas(64) {
    TileConfig config = TileConfig::Full();
    uint8_t tile[1024] = {}, in[32 * 64], out[32 * 64] = {};
    uint64_t masks[8] = {}, gpr[16] = {}, flags = 0;
  } data;
  for (int i = 0; i < 32 * 64; ++i) data.in[i] = static_cast<uint8_t>(i * 31 + 5);
  std::memset(data.tile, 0x3f, sizeof data.tile);
  using Data = decltype(data);
  const Program program([&](Emitter& e) {
    const std::vector<Reg64> kept = {e.rbx, e.rbp, e.r12, e.r13, e.r14, e.r15};
    for (const Reg64& reg : kept) e.push(reg);
    for (int i = 0; i < registers; ++i) {
      const auto from = e.ptr[e.rdi + offsetof(Data, in) + 64 * i];
      wide ? e.vmovdqu32(Xbyak::Zmm(i), from) : e.vmovdqu(Xbyak::Ymm(i), from);
    }
    for (int i = 1; i < 8 && wide; ++i) e.kmovq(Xbyak::Opmask(i), e.ptr[e.rdi + offsetof(Data, in) + 8 * i]);
    for (int i = 0; i < 16; ++i) {
      if (i != 4 && i != 7) e.mov(Reg64(i), 0x0123456789abcdef * static_cast<uint64_t>(i + 1));
    }
    e.mov(e.r15, 64);
    e.mov(e.rax, 0x7fffffffffffffff);
    e.add(e.rax, 1);  // overflow, sign
    e.stc();
    e.ldtilecfg(e.ptr[e.rdi]);
    e.tileloadd(Tmm(0), e.ptr[e.rdi + e.r15 + offsetof(Data, tile)]);
    e.tileloadd(Tmm(1), e.ptr[e.rdi + e.r15 + offsetof(Data, tile)]);
    e.tileloadd(Tmm(2), e.ptr[e.rdi + e.r15 + offsetof(Data, tile)]);
    e.tdpbf16ps(Tmm(0), Tmm(1), Tmm(2));
    e.tdpbssd(Tmm(0), Tmm(1), Tmm(2));
    e.tilestored(e.ptr[e.rdi + e.r15 + offsetof(Data, tile)], Tmm(0));
    e.pushfq();
    for (int i = 0; i < 16; ++i) e.mov(e.ptr[e.rdi + offsetof(Data, gpr) + 8 * i], Reg64(i));
    e.pop(e.rax);
    e.mov(e.ptr[e.rdi + offsetof(Data, flags)], e.rax);
    for (int i = 0; i < registers; ++i) {
      const auto to = e.ptr[e.rdi + offsetof(Data, out) + 64 * i];
      wide ? e.vmovdqu32(to, Xbyak::Zmm(i)) : e.vmovdqu(to, Xbyak::Ymm(i));
    }
    for (int i = 1; i < 8 && wide; ++i) e.kmovq(e.ptr[e.rdi + offsetof(Data, masks) + 8 * i], Xbyak::Opmask(i));
    e.vzeroupper();
    for (auto reg = kept.rbegin(); reg != kept.rend(); ++reg) e.pop(*reg);
  });
  program(&data);
  for (int i = 0; i < registers; ++i) {
    EXPECT_EQ(std::memcmp(data.out + 64 * i, data.in + 64 * i, wide ? 64 : 32), 0) << i;
  }
  for (int i = 1; i < 8 && wide; ++i) EXPECT_EQ(std::memcmp(&data.masks[i], data.in + 8 * i, 8), 0) << i;
  for (int i = 1; i < 15; ++i) {
    if (i == 4 || i == 7) continue;
    EXPECT_EQ(data.gpr[i], 0x0123456789abcdef * static_cast<uint64_t>(i + 1)) << i;
  }
  EXPECT_EQ(data.flags & 0x8d5, 0x885u | (data.flags & 0x50));  // OF SF PF CF
}

}  // namespace
}  // namespace xjit
