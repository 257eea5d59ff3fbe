// Packed weights (pack.h) read as f32: emits the code that walks a panel in memory order and hands every weight, in
// vector registers, to a sink that multiplies or stores it. The values are UnpackColumn's, bit for bit.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "codegen/emitter.h"
#include "codegen/gemm/gemm_fma_lanes.h"
#include "codegen/regs.h"
#include "ir/support/encoding.h"

namespace xjit {

struct WeightCursor {
  Xbyak::Reg64 w;      // packed bytes of the next unit
  Xbyak::Reg64 x;      // what advances with k: the activations, or the f32 block that is being unpacked
  int x_step = 0;      // bytes of x for one k
  Xbyak::Reg64 inner;  // counts sub-blocks
  int table = 0;  // kWeightTableBytes at rsp + table, for the scales of both groups of a k block; kept by the caller
                  // from one unit of a panel to the next
  // Called while emitting with each range of offsets from w that the code after it reads.
  std::function<void(int offset, int bytes)> touch = [](int, int) {};
};
inline constexpr int kWeightTableBytes = 2 * 8 * 2 * 64;

// Weights of k (counted from where x points) in regs: vector first + i of the panel's row is regs[i]. The sink may not
// overwrite them. For one column, k ascends.
using WeightSink = std::function<void(int k, int first, std::span<const int> regs)>;

class WeightReader {
 public:
  virtual ~WeightReader() = default;
  // Emits what comes before the first unit of a panel.
  virtual void Begin(const WeightCursor& /*at*/) {}
  // Emits the code of unit() k's, which advances w and x past them.
  virtual void Unit(const WeightCursor& at, const WeightSink& sink) = 0;
  // The same for the k < unit() last ones of a panel.
  virtual void Tail(int k, const WeightCursor& at, const WeightSink& sink) = 0;
  int unit() const { return unit_; }

 protected:
  explicit WeightReader(int unit) : unit_(unit) {}

 private:
  int unit_;
};

// k's of one unit.
int WeightUnit(const Encoding& w);
// Vector registers that a reader uses, those that it hands to the sink included. `vbmi`: TargetInfo::vbmi.
int WeightVectors(const Encoding& w, bool wide, bool vbmi);
// Bytes at the end of a panel that a reader leaves unread: padding to whole tiles.
int64_t UnreadBytes(const Encoding& w, int64_t k);

// `e`, `regs` and `lanes` outlive the reader. kF32 also reads any other dwords as they are (bf16 pairs for vdpbf16ps).
std::unique_ptr<WeightReader> MakeWeightReader(const Encoding& w, bool vbmi, Emitter& e, Regs& regs,
                                               const Lanes& lanes);

// Emits the loop over the whole units of `steps` (k's, or dwords as they are) and then the tail. `units` counts.
template <typename Reader, typename Sink>
void ReadUnits(int64_t steps, Reader& reader, const WeightCursor& at, const Xbyak::Reg64& units, const Sink& sink,
               Emitter& e) {
  if (steps >= reader.unit()) {
    Xbyak::Label unit;
    e.mov(units, steps / reader.unit());
    e.L(unit);
    reader.Unit(at, sink);
    e.dec(units);
    e.jnz(unit);
  }
  if (steps % reader.unit() != 0) reader.Tail(static_cast<int>(steps % reader.unit()), at, sink);
}

}  // namespace xjit
