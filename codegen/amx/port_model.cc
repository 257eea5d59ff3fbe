#include "codegen/amx/port_model.h"

#include <Zydis/Zydis.h>

#include <algorithm>
#include <array>
#include <optional>

#include "codegen/amx/tile_encoding.h"

namespace xjit {
namespace {

constexpr double kProductCycles = 16, kAccumulatorCycles = 52;
constexpr double kTileLoadCycles = 8, kTileLoadUops = 8, kTileStoreCycles = 16, kTileStoreUops = 16;
constexpr double kTileBytes = 1024, kL2BytesPerCycle = 48, kUopsPerCycle = 6;
constexpr double kLoadsPerCycle = 2;

enum class Kind : uint8_t { kProduct, kTileLoad, kTileStore, kTileZero, kOther };

// What the model needs of one instruction.
struct Step {
  size_t offset = 0, end = 0;
  Kind kind = Kind::kOther;
  TileLoad load;               // kTileLoad
  int dest = 0, a = 0, b = 0;  // tiles of a product; dest also of kTileZero
  bool call = false;
  std::optional<size_t> back_to;       // a jump backwards
  double loads = 0, store_cycles = 0;  // memory operands that are no tiles
  int port05 = 0, port5 = 0;           // vector uops on either, and on port 5 alone
  double uops = 1;
};

int GprNumber(ZydisRegister reg) {
  const ZydisRegisterClass kind = ZydisRegisterGetClass(reg);
  return kind == ZYDIS_REGCLASS_GPR64 || kind == ZYDIS_REGCLASS_GPR32 ? ZydisRegisterGetId(reg) : -1;
}

bool IsVector(ZydisRegister reg) {
  const ZydisRegisterClass kind = ZydisRegisterGetClass(reg);
  return kind == ZYDIS_REGCLASS_XMM || kind == ZYDIS_REGCLASS_YMM || kind == ZYDIS_REGCLASS_ZMM;
}

bool BeginsWith(std::string_view name, std::initializer_list<std::string_view> prefixes) {
  return std::any_of(prefixes.begin(), prefixes.end(), [&](std::string_view p) { return name.starts_with(p); });
}

// Ports of a vector instruction, apart from its memory operand. Intel optimization manual, Golden Cove: shuffles on
// port 5; two-source permutes of bytes and words, and conversions that change the width, are two or three uops of which
// some are shuffles.
void CountVector(std::string_view name, bool reads_memory, bool writes_memory, bool moves, Step* step) {
  if (BeginsWith(name, {"vpermi2b", "vpermt2b", "vpermi2w", "vpermt2w"})) {
    step->port05 = 1;
    step->port5 = 2;
  } else if (BeginsWith(name, {"vcvtps2ph", "vcvtph2ps", "vcvtne", "vpmovd", "vpmovw", "vpmovs", "vpmovq", "vcvtpd",
                               "vpmovus"}) &&
             !BeginsWith(name, {"vpmovsx"})) {
    step->port05 = 1;
    step->port5 = 1;
  } else if (BeginsWith(name, {"vpbroadcast", "vbroadcast"})) {
    step->port5 = reads_memory ? 0 : 1;
  } else if (BeginsWith(name, {"vperm", "vpshuf", "vshuf", "vpunpck", "vunpck", "vpack", "valign", "vpalign", "vinsert",
                               "vextract", "vpmovzx", "vpmovsx", "vpexpand", "vpcompress", "vpinsr", "vpextr"})) {
    step->port5 = 1;
  } else if (!moves || (!reads_memory && !writes_memory)) {
    step->port05 = name == "vpmulld" || name == "vscalefps" ? 2 : 1;
  }
  step->uops = std::max(1, step->port05 + step->port5);
}

Step Classify(const ZydisDecodedInstruction& insn, const ZydisDecodedOperand* operands, size_t offset) {
  Step step = {.offset = offset, .end = offset + insn.length};
  const auto tile = [&](int i) { return static_cast<int>(ZydisRegisterGetId(operands[i].reg.value)); };
  switch (insn.mnemonic) {
    case ZYDIS_MNEMONIC_TDPBF16PS:
    case ZYDIS_MNEMONIC_TDPBSSD:
    case ZYDIS_MNEMONIC_TDPBSUD:
    case ZYDIS_MNEMONIC_TDPBUSD:
    case ZYDIS_MNEMONIC_TDPBUUD:
      step.kind = Kind::kProduct;
      step.dest = tile(0);
      step.a = tile(1);
      step.b = tile(2);
      step.port5 = 1;
      return step;
    case ZYDIS_MNEMONIC_TILELOADD:
    case ZYDIS_MNEMONIC_TILELOADDT1:
      step.kind = Kind::kTileLoad;
      step.load = {.tile = tile(0),
                   .base = GprNumber(operands[1].mem.base),
                   .index = GprNumber(operands[1].mem.index),
                   .disp = operands[1].mem.disp.value};
      step.uops = kTileLoadUops;
      return step;
    case ZYDIS_MNEMONIC_TILESTORED:
      step.kind = Kind::kTileStore;
      step.uops = kTileStoreUops;
      return step;
    case ZYDIS_MNEMONIC_TILEZERO:
      step.kind = Kind::kTileZero;
      step.dest = tile(0);
      return step;
    case ZYDIS_MNEMONIC_CALL:
      step.call = true;
      return step;
    default:
      break;
  }
  bool vector = false, reads = false, writes = false;
  for (int i = 0; i < insn.operand_count_visible; ++i) {
    const ZydisDecodedOperand& o = operands[i];
    if (o.type == ZYDIS_OPERAND_TYPE_REGISTER) vector |= IsVector(o.reg.value);
    if (o.type == ZYDIS_OPERAND_TYPE_IMMEDIATE && o.imm.is_relative &&
        insn.meta.branch_type != ZYDIS_BRANCH_TYPE_NONE) {
      const int64_t to = static_cast<int64_t>(step.end) + o.imm.value.s;
      if (to >= 0 && to <= static_cast<int64_t>(offset)) step.back_to = static_cast<size_t>(to);
    }
    if (o.type != ZYDIS_OPERAND_TYPE_MEMORY || o.mem.type != ZYDIS_MEMOP_TYPE_MEM) continue;
    if ((o.actions & ZYDIS_OPERAND_ACTION_MASK_WRITE) != 0) {
      writes = true;
      step.store_cycles += o.size == 512 ? 1 : 0.5;
    }
    // A prefetch has a memory operand with no action.
    if ((o.actions & ZYDIS_OPERAND_ACTION_MASK_WRITE) == 0 || (o.actions & ZYDIS_OPERAND_ACTION_MASK_READ) != 0) {
      reads = true;
      step.loads += 1;
    }
  }
  if (vector) {
    const std::string_view name = ZydisMnemonicGetString(insn.mnemonic);
    const bool moves =
        BeginsWith(name, {"vmovap", "vmovup", "vmovdq", "vmovnt", "vmovss", "vmovsd", "vmovd", "vmovq", "vlddqu"});
    CountVector(name, reads, writes, moves, &step);
  }
  return step;
}

absl::StatusOr<std::vector<Step>> Decode(std::span<const uint8_t> text) {
  ZydisDecoder decoder;
  ZydisDecoderInit(&decoder, ZYDIS_MACHINE_MODE_LONG_64, ZYDIS_STACK_WIDTH_64);
  std::vector<Step> steps;
  for (size_t offset = 0; offset < text.size(); offset = steps.back().end) {
    const auto rest = text.subspan(offset);
    ZydisDecodedInstruction insn;
    ZydisDecodedOperand operands[ZYDIS_MAX_OPERAND_COUNT];
    if (const auto fp16 = DecodeTdpFp16(rest)) {
      steps.push_back({.offset = offset,
                       .end = offset + TdpFp16::kLength,
                       .kind = Kind::kProduct,
                       .dest = fp16->dest,
                       .a = fp16->a,
                       .b = fp16->b,
                       .port5 = 1});
    } else if (ZYAN_SUCCESS(ZydisDecoderDecodeFull(&decoder, rest.data(), rest.size(), &insn, operands))) {
      steps.push_back(Classify(insn, operands, offset));
    } else {
      return InvalidArgument("tile loop: byte {} is the beginning of no instruction", offset);
    }
  }
  return steps;
}

// Cycles from one iteration to the next when products start in order, one every 16 cycles, each at least 52 after the
// last one into its tile, unless that was cleared or loaded in between.
double LatencyCycles(std::span<const Step> body) {
  constexpr int kWarm = 8, kRounds = 32;
  std::array<double, 8> ready = {};
  double clock = 0, at_warm = 0;
  for (int round = 0; round < kWarm + kRounds; ++round) {
    if (round == kWarm) at_warm = clock;
    for (const Step& step : body) {
      if (step.kind == Kind::kTileZero) ready[static_cast<size_t>(step.dest)] = 0;
      if (step.kind == Kind::kTileLoad) ready[static_cast<size_t>(step.load.tile)] = 0;
      if (step.kind != Kind::kProduct) continue;
      double& accumulator = ready[static_cast<size_t>(step.dest)];
      const double start = std::max(clock, accumulator);
      clock = start + kProductCycles;
      accumulator = start + kAccumulatorCycles;
    }
  }
  return (clock - at_warm) / kRounds;
}

absl::StatusOr<TilePortReport> Report(std::span<const Step> body, const TileLoopHints& hints) {
  TilePortReport r = {.begin = body.front().offset, .end = body.back().end};
  double uops = 0, loads = 0;
  int port05 = 0, port5 = 0;
  for (const Step& step : body) {
    if (step.call) return InvalidArgument("tile loop: there is a call at byte {}", step.offset);
    ++r.instructions;
    uops += step.uops;
    loads += step.loads;
    r.store_ports += step.store_cycles;
    port05 += step.port05;
    port5 += step.port5;
    if (step.kind == Kind::kOther && step.port05 + step.port5 > 0) ++r.vectors;
    if (step.kind == Kind::kProduct) ++r.products;
    if (step.kind == Kind::kTileStore) {
      ++r.stores;
      r.store_ports += kTileStoreCycles;
    }
    if (step.kind == Kind::kTileLoad) {
      ++r.loads;
      if (!hints.from_l2 || hints.from_l2(step.load)) ++r.l2_loads;
    }
  }
  r.uops = static_cast<int>(uops);
  r.multiplier = kProductCycles * r.products;
  r.latency = LatencyCycles(body);
  r.load_ports = kTileLoadCycles * r.loads + loads / kLoadsPerCycle;
  r.l2 = r.l2_loads * kTileBytes / kL2BytesPerCycle;
  r.vector_ports = std::max<double>(port5, (port05 + port5) / 2.0);
  r.front_end = uops / kUopsPerCycle;
  const std::pair<double, std::string_view> bounds[] = {
      {r.multiplier, "multiplier"}, {r.latency, "latency"},         {r.l2, "L2"},
      {r.load_ports, "load ports"}, {r.store_ports, "store ports"}, {r.vector_ports, "vector ports"},
      {r.front_end, "front end"}};
  for (const auto& [cycles, name] : bounds) {
    if (cycles <= r.cycles) continue;
    r.cycles = cycles;
    r.limit = name;
  }
  return r;
}

}  // namespace

std::string TilePortReport::ToString() const {
  return fmt::format(
      "{} products, {} tile loads ({} from L2), {} tile stores, {} vector instructions, {} uops in {:.1f} cycles: "
      "multiplier "
      "busy {:.0f}%, {:.2f} tiles from L2 a product, limited by {}",
      products, loads, l2_loads, stores, vectors, uops, cycles, 100 * busy(), l2_tiles_per_product(), limit);
}

absl::StatusOr<std::vector<TilePortReport>> AnalyzeTileLoops(std::span<const uint8_t> text,
                                                             const TileLoopHints& hints) {
  XJIT_ASSIGN_OR_RETURN(const std::vector<Step> steps, Decode(text));
  struct Range {
    size_t first = 0, last = 0;  // of steps, inclusive
  };
  std::vector<Range> loops;
  for (size_t i = 0; i < steps.size(); ++i) {
    if (!steps[i].back_to) continue;
    const auto target = std::lower_bound(steps.begin(), steps.end(), *steps[i].back_to,
                                         [](const Step& step, size_t offset) { return step.offset < offset; });
    const Range loop = {static_cast<size_t>(target - steps.begin()), i};
    const bool products = std::any_of(target, steps.begin() + static_cast<std::ptrdiff_t>(i),
                                      [](const Step& step) { return step.kind == Kind::kProduct; });
    if (products) loops.push_back(loop);
  }
  std::vector<TilePortReport> reports;
  for (const Range& loop : loops) {
    const bool innermost = std::none_of(loops.begin(), loops.end(), [&](const Range& other) {
      return other.last - other.first < loop.last - loop.first && other.first >= loop.first && other.last <= loop.last;
    });
    if (!innermost) continue;
    XJIT_ASSIGN_OR_RETURN(const TilePortReport report,
                          Report(std::span(steps).subspan(loop.first, loop.last - loop.first + 1), hints));
    reports.push_back(report);
  }
  return reports;
}

absl::StatusOr<TilePortReport> AnalyzeTileLoop(std::span<const uint8_t> text, const TileLoopHints& hints) {
  XJIT_ASSIGN_OR_RETURN(const std::vector<TilePortReport> loops, AnalyzeTileLoops(text, hints));
  if (loops.empty()) return InvalidArgument("tile loop: no loop of the kernel multiplies tiles");
  return *std::max_element(loops.begin(), loops.end(),
                           [](const TilePortReport& a, const TilePortReport& b) { return a.products < b.products; });
}

}  // namespace xjit
