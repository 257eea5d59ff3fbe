#include "codegen/kernel.h"

#include <Zydis/Zydis.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>

#include "codegen/amx/tile_encoding.h"
#include "ir/support/align.h"

namespace xjit {

struct CodeArena::Chunk {
  uint8_t* base = nullptr;
  size_t size = 0;
  size_t used = 0;
  bool sealed = false;
  ~Chunk() {
    if (base != nullptr) munmap(base, size);
  }
};

CodeArena::CodeArena() = default;
CodeArena::~CodeArena() = default;

absl::StatusOr<const uint8_t*> CodeArena::Add(std::span<const uint8_t> code) {
  constexpr size_t kChunk = size_t{256} << 10;
  if (chunks_.empty() || chunks_.back()->sealed || chunks_.back()->size - chunks_.back()->used < code.size()) {
    const size_t size = AlignUp(std::max(kChunk, code.size()), 4096u);
    void* base = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED) return FailedPrecondition("no memory for {} bytes of machine code", size);
    auto chunk = std::make_unique<Chunk>();
    chunk->base = static_cast<uint8_t*>(base);
    chunk->size = size;
    chunks_.push_back(std::move(chunk));
  }
  Chunk& chunk = *chunks_.back();
  uint8_t* at = chunk.base + chunk.used;
  std::memcpy(at, code.data(), code.size());
  chunk.used = std::min(chunk.size, AlignUp(chunk.used + code.size(), 64u));
  bytes_used_ += static_cast<int64_t>(code.size());
  return at;
}

absl::Status CodeArena::Seal() {
  for (auto& chunk : chunks_) {
    if (chunk->sealed) continue;
    if (mprotect(chunk->base, chunk->size, PROT_READ | PROT_EXEC) != 0) {
      return FailedPrecondition("the system refuses executable memory (mprotect: {})", strerror(errno));
    }
    chunk->sealed = true;
  }
  return absl::OkStatus();
}

absl::Status WritePerfMap(std::span<const Kernel> kernels) {
  const std::string path = fmt::format("/tmp/perf-{}.map", getpid());
  std::FILE* file = std::fopen(path.c_str(), "a");
  if (file == nullptr) return FailedPrecondition("{}: cannot write: {}", path, strerror(errno));
  for (const Kernel& k : kernels) {
    if (k.code != nullptr) {
      fmt::print(file, "{:x} {:x} {}\n", reinterpret_cast<uintptr_t>(k.code), k.code_bytes, k.name);
    }
  }
  std::fclose(file);
  return absl::OkStatus();
}

std::string Disassemble(std::span<const uint8_t> code) {
  ZydisDecoder decoder;
  ZydisFormatter formatter;
  ZydisDecoderInit(&decoder, ZYDIS_MACHINE_MODE_LONG_64, ZYDIS_STACK_WIDTH_64);
  ZydisFormatterInit(&formatter, ZYDIS_FORMATTER_STYLE_INTEL);
  std::string text;
  size_t offset = 0;
  while (offset < code.size()) {
    ZydisDecodedInstruction instruction;
    ZydisDecodedOperand operands[ZYDIS_MAX_OPERAND_COUNT];
    char line[256];
    if (const auto fp16 = DecodeTdpFp16(code.subspan(offset))) {
      text += fmt::format("{:6x}: tdpfp16ps tmm{}, tmm{}, tmm{}\n", offset, fp16->dest, fp16->a, fp16->b);
      offset += TdpFp16::kLength;
    } else if (ZYAN_SUCCESS(ZydisDecoderDecodeFull(&decoder, code.data() + offset, code.size() - offset, &instruction,
                                                   operands)) &&
               ZYAN_SUCCESS(ZydisFormatterFormatInstruction(&formatter, &instruction, operands,
                                                            instruction.operand_count_visible, line, sizeof line,
                                                            offset, nullptr))) {
      text += fmt::format("{:6x}: {}\n", offset, line);
      offset += instruction.length;
    } else {
      text += fmt::format("{:6x}: .byte 0x{:02x}\n", offset, code[offset]);
      ++offset;
    }
  }
  return text;
}

}  // namespace xjit
