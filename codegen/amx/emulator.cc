#include "codegen/amx/emulator.h"

#include <atomic>
#include <cstring>
#include <mutex>

#if defined(__linux__) && defined(__x86_64__)
#include <signal.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#include <cerrno>

#include "codegen/amx/tile_math.h"
#include "codegen/cpu.h"

namespace xjit {
namespace {

// Intel SDM vol. 1, 18.3: palette 1 has 8 tiles of 16 rows of 64 bytes.
constexpr int kTiles = 8, kMaxRows = 16, kRowBytes = 64;

// XTILECFG and XTILEDATA of a thread. Zeros, as a new thread has them: not configured.
struct TileFile {
  Tile tile[kTiles];
  // What sttilecfg stores: palette, start row, at 16 the bytes of a row of each tile (16 bits), at 48 its rows.
  alignas(64) uint8_t config[64];

  bool configured() const { return config[0] != 0; }
  int start_row() const { return config[1]; }
  int rows(int t) const { return config[48 + t]; }
  int row_bytes(int t) const { return config[16 + 2 * t]; }  // at most 64: the high byte is 0
};

// Tile instructions interrupt emitted code only, never an allocation: where the linker makes this variable's first use
// in a thread allocate (in a shared library), the handler may.
constinit thread_local TileFile tile_file = {};

std::atomic<bool> enabled{false};
struct sigaction previous;  // written before the handler is installed

enum class Outcome : uint8_t {
  kDone,
  kForeign,     // no instruction of ours, or #UD
  kBadGeneral,  // #GP
};

// What stands at an address.
struct Instruction {
  uint8_t opcode = 0, prefix = 0;  // prefix: VEX.pp
  uint8_t reg = 0, rm = 0, vvvv = 0;
  bool memory = false, sib = false;
  uint64_t base = 0, stride = 0;  // address without the index, and the index scaled
  uint8_t length = 0;
};
constexpr uint8_t kNone = 0, k66 = 1, kF3 = 2, kF2 = 3;  // VEX.pp

// ModRM numbers in the order of the encoding.
constexpr int kGreg[16] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI,
                           REG_R8,  REG_R9,  REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15};

uint64_t Gpr(const mcontext_t& context, int number) { return static_cast<uint64_t>(context.gregs[kGreg[number]]); }

// Reads no byte behind the instruction. False: not VEX.128.0F38.W0 with one of the four opcodes.
bool Decode(const uint8_t* code, const mcontext_t& context, Instruction* out) {
  if (code[0] != 0xC4) return false;
  const uint8_t vex1 = code[1], vex2 = code[2];
  if ((vex1 & 31) != 2 || (vex2 & 0x84) != 0) return false;  // map 0F38, W0, L0
  out->opcode = code[3];
  if (out->opcode != 0x49 && out->opcode != 0x4B && out->opcode != 0x5C && out->opcode != 0x5E) return false;
  out->prefix = vex2 & 3;
  out->vvvv = ~(vex2 >> 3) & 15;
  const int r = (vex1 & 0x80) != 0 ? 0 : 8, x = (vex1 & 0x40) != 0 ? 0 : 8, b = (vex1 & 0x20) != 0 ? 0 : 8;
  const uint8_t modrm = code[4];
  const int mod = modrm >> 6, rm = modrm & 7;
  out->reg = static_cast<uint8_t>((modrm >> 3 & 7) | r);
  out->rm = static_cast<uint8_t>(rm | b);
  out->memory = mod != 3;
  const uint8_t* next = code + 5;
  if (out->memory) {
    int disp_bytes = mod == 1 ? 1 : mod == 2 ? 4 : 0;
    bool rip_relative = false;
    out->sib = rm == 4;
    if (out->sib) {
      const uint8_t sib = *next++;
      const int index = (sib >> 3 & 7) | x, base = sib & 7;
      if (index != 4) out->stride = Gpr(context, index) << (sib >> 6);
      if (base == 5 && mod == 0) {
        disp_bytes = 4;
      } else {
        out->base = Gpr(context, base | b);
      }
    } else if (rm == 5 && mod == 0) {
      rip_relative = true;
      disp_bytes = 4;
    } else {
      out->base = Gpr(context, out->rm);
    }
    int32_t disp = 0;
    if (disp_bytes == 1) disp = static_cast<int8_t>(*next);
    if (disp_bytes == 4) std::memcpy(&disp, next, 4);
    next += disp_bytes;
    if (rip_relative) out->base = reinterpret_cast<uint64_t>(next);
    out->base += static_cast<uint64_t>(int64_t{disp});
  }
  out->length = static_cast<uint8_t>(next - code);
  return true;
}

bool AnyNonzero(const uint8_t* bytes, int count) {
  uint8_t any = 0;
  for (int i = 0; i < count; ++i) any |= bytes[i];
  return any != 0;
}

// Intel SDM vol. 2, LDTILECFG, Operation.
Outcome LoadConfig(TileFile& file, uint64_t address) {
  uint8_t config[64];
  std::memcpy(config, reinterpret_cast<const void*>(address), sizeof config);
  const uint8_t palette = config[0];
  if (palette > 1) return Outcome::kBadGeneral;
  if (palette == 1) {
    if (AnyNonzero(config + 2, 14) || AnyNonzero(config + 32, 16) || AnyNonzero(config + 56, 8)) {
      return Outcome::kBadGeneral;
    }
    for (int t = 0; t < kTiles; ++t) {
      const int row_bytes = config[16 + 2 * t] | config[17 + 2 * t] << 8, rows = config[48 + t];
      if (row_bytes > kRowBytes || rows > kMaxRows || (row_bytes == 0) != (rows == 0)) return Outcome::kBadGeneral;
    }
  } else {
    std::memset(config, 0, sizeof config);
  }
  std::memset(file.tile, 0, sizeof file.tile);
  std::memcpy(file.config, config, sizeof config);
  return Outcome::kDone;
}

bool Valid(const TileFile& file, int t) {
  return file.configured() && t < kTiles && file.rows(t) > 0 && file.row_bytes(t) % 4 == 0;
}

Outcome LoadTile(TileFile& file, int t, const Instruction& insn) {
  if (!Valid(file, t) || file.start_row() >= file.rows(t)) return Outcome::kForeign;
  Tile& tile = file.tile[t];
  const size_t bytes = static_cast<size_t>(file.row_bytes(t));
  uint64_t address = insn.base + static_cast<uint64_t>(file.start_row()) * insn.stride;
  for (int row = file.start_row(); row < file.rows(t); ++row, address += insn.stride) {
    const auto* from = reinterpret_cast<const void*>(address);
    if (bytes == kRowBytes) {
      std::memcpy(tile.row[row], from, kRowBytes);
    } else {
      std::memcpy(tile.row[row], from, bytes);  // what is beyond has been zero since ldtilecfg
    }
  }
  file.config[1] = 0;
  return Outcome::kDone;
}

Outcome StoreTile(TileFile& file, int t, const Instruction& insn) {
  if (!Valid(file, t) || file.start_row() >= file.rows(t)) return Outcome::kForeign;
  uint64_t address = insn.base + static_cast<uint64_t>(file.start_row()) * insn.stride;
  for (int row = file.start_row(); row < file.rows(t); ++row, address += insn.stride) {
    std::memcpy(reinterpret_cast<void*>(address), file.tile[t].row[row], static_cast<size_t>(file.row_bytes(t)));
  }
  file.config[1] = 0;
  return Outcome::kDone;
}

// Exception class AMX-E4 (Intel SDM vol. 2, 2.10), then the product.
Outcome Multiply(TileFile& file, const Instruction& insn) {
  const int d = insn.reg, a = insn.rm, b = insn.vvvv;
  if (d == a || d == b || a == b || !Valid(file, d) || !Valid(file, a) || !Valid(file, b)) return Outcome::kForeign;
  const int m = file.rows(d), n = file.row_bytes(d) / 4, k = file.rows(b);
  if (file.rows(a) != m || file.row_bytes(b) / 4 != n || file.row_bytes(a) / 4 != k) return Outcome::kForeign;
  if (insn.opcode == 0x5C) {
    if (insn.prefix != kF3 && insn.prefix != kF2) return Outcome::kForeign;
    TileDotFloat(&file.tile[d], file.tile[a], file.tile[b], m, n, k,
                 insn.prefix == kF3 ? TileFloat::kBf16 : TileFloat::kFp16);
  } else {  // F2 bssd, F3 bsud, 66 busd, none buud
    TileDotInt8(&file.tile[d], file.tile[a], file.tile[b], m, k, insn.prefix == kF2 || insn.prefix == kF3,
                insn.prefix == kF2 || insn.prefix == k66);
  }
  file.config[1] = 0;
  return Outcome::kDone;
}

Outcome Execute(TileFile& file, const Instruction& insn) {
  if (insn.opcode == 0x5C || insn.opcode == 0x5E) return insn.memory ? Outcome::kForeign : Multiply(file, insn);
  if (insn.vvvv != 0) return Outcome::kForeign;
  if (insn.opcode == 0x4B) {
    if (!insn.memory || !insn.sib) return Outcome::kForeign;
    switch (insn.prefix) {
      case kF2:
      case k66:
        return LoadTile(file, insn.reg, insn);
      case kF3:
        return StoreTile(file, insn.reg, insn);
      default:
        return Outcome::kForeign;
    }
  }
  if (insn.memory) {
    if (insn.reg != 0) return Outcome::kForeign;
    if (insn.prefix == kNone) return LoadConfig(file, insn.base + insn.stride);
    if (insn.prefix != k66) return Outcome::kForeign;
    std::memcpy(reinterpret_cast<void*>(insn.base + insn.stride), file.config, sizeof file.config);
    return Outcome::kDone;
  }
  if (insn.rm != 0) return Outcome::kForeign;
  if (insn.prefix == kNone && insn.reg == 0) {  // tilerelease
    std::memset(&file, 0, sizeof file);
    return Outcome::kDone;
  }
  if (insn.prefix != kF2 || insn.reg >= kTiles || !file.configured() || file.rows(insn.reg) == 0) {
    return Outcome::kForeign;
  }
  std::memset(&file.tile[insn.reg], 0, sizeof(Tile));  // tilezero
  file.config[1] = 0;
  return Outcome::kDone;
}

void SendToSelf(int signal, siginfo_t* info) { syscall(SYS_rt_tgsigqueueinfo, getpid(), gettid(), signal, info); }

// SIGSEGV as the kernel sends it for #GP, seen at the instruction: blocked until the handler has returned.
void DeliverBadGeneral(ucontext_t* context) {
  sigset_t segv;
  sigemptyset(&segv);
  sigaddset(&segv, SIGSEGV);
  pthread_sigmask(SIG_BLOCK, &segv, nullptr);
  if (sigismember(&context->uc_sigmask, SIGSEGV) == 1) {  // a fault that is blocked kills
    sigdelset(&context->uc_sigmask, SIGSEGV);
    signal(SIGSEGV, SIG_DFL);
  }
  siginfo_t info = {};
  info.si_signo = SIGSEGV;
  info.si_code = SI_KERNEL;
  SendToSelf(SIGSEGV, &info);
}

// What would have happened without the emulator.
void DeliverToPrevious(int number, siginfo_t* info, void* context) {
  const bool plain = (previous.sa_flags & SA_SIGINFO) == 0;
  const bool sent = info->si_code <= 0;  // by kill(2) and its kin: no instruction will fault again
  if (plain && previous.sa_handler == SIG_IGN && sent) return;
  if (plain && (previous.sa_handler == SIG_DFL || previous.sa_handler == SIG_IGN)) {
    signal(number, SIG_DFL);
    if (sent) SendToSelf(number, info);
    return;
  }
  pthread_sigmask(SIG_BLOCK, &previous.sa_mask, nullptr);
  if (plain) {
    previous.sa_handler(number);
  } else {
    previous.sa_sigaction(number, info, context);
  }
}

void OnIllegalInstruction(int number, siginfo_t* info, void* opaque) {
  const int saved_errno = errno;
  auto* context = static_cast<ucontext_t*>(opaque);
  auto& rip = context->uc_mcontext.gregs[REG_RIP];
  TileFile& file = tile_file;
  Outcome outcome = Outcome::kForeign;
  // A signal costs more than an instruction: tile instructions that follow each other are done in one.
  for (int done = 0; info->si_code > 0; ++done) {
    Instruction insn;
    outcome = Outcome::kForeign;
    if (Decode(reinterpret_cast<const uint8_t*>(rip), context->uc_mcontext, &insn)) outcome = Execute(file, insn);
    if (outcome == Outcome::kDone) {
      rip += insn.length;
      continue;
    }
    if (done == 0) break;
    errno = saved_errno;  // if what stands here is illegal too, it comes back as a first instruction
    return;
  }
  if (outcome == Outcome::kBadGeneral) {
    DeliverBadGeneral(context);
  } else {
    DeliverToPrevious(number, info, opaque);
  }
  errno = saved_errno;
}

}  // namespace

absl::Status EnableAmxEmulator() {
  static std::mutex mutex;
  const std::lock_guard<std::mutex> lock(mutex);
  if (enabled) return absl::OkStatus();
  if (!IsaOf(HostFeatures())) return FailedPrecondition("the AMX emulator needs a processor with AVX2, FMA and F16C");
  if (HasTiles(HostFeatures())) {
    return FailedPrecondition("the AMX emulator cannot be used: this machine's processor executes AMX itself");
  }
  struct sigaction action = {};
  action.sa_sigaction = OnIllegalInstruction;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigemptyset(&action.sa_mask);
  if (sigaction(SIGILL, nullptr, &previous) != 0 || sigaction(SIGILL, &action, nullptr) != 0) {
    return FailedPrecondition("the AMX emulator cannot be installed (sigaction: {})", strerror(errno));
  }
  enabled = true;
  return absl::OkStatus();
}

void EmulatedTileConfig(uint8_t config[64]) { std::memcpy(config, tile_file.config, 64); }

#else

namespace xjit {
namespace {
std::atomic<bool> enabled{false};
}

absl::Status EnableAmxEmulator() { return FailedPrecondition("the AMX emulator is for Linux on x86-64"); }
void EmulatedTileConfig(uint8_t config[64]) { std::memset(config, 0, 64); }

#endif

bool AmxEmulated() { return enabled; }

}  // namespace xjit
