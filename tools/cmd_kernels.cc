// xjit kernels: the table of kernels; with a shape, what each row costs or why it refuses, and which is chosen.
#include <algorithm>
#include <tuple>

#include "codegen/amx/port_model.h"
#include "codegen/cpu.h"
#include "codegen/gemm/blocking.h"
#include "tools/bench_op.h"

namespace xjit::tools {
namespace {

using nlohmann::ordered_json;

struct KernelsFlags {
  std::string family, isa;
  GemmShape gemm;
  AttentionShape attention;
  PrepareShape rows;
  bool json = false;
  std::vector<std::pair<std::string_view, const CLI::Option*>> of_shape;  // each flag with its family
};

absl::Status PrintTable(bool json) {
  const Isa host = HostIsa(), most = RunnableIsa();
  ordered_json list = ordered_json::array();
  if (!json) fmt::print("{:<16}  {:<12}  {:<12}  {}\n", "family", "row", "isa", "available");
  for (const KernelRow& row : KernelRows()) {
    const bool available = row.isa <= most;
    if (json) {
      list.push_back({{"family", row.family}, {"row", row.row}, {"isa", Name(row.isa)}, {"available", available}});
    } else {
      fmt::print("{:<16}  {:<12}  {:<12}  {}\n", row.family, row.row, Name(row.isa),
                 row.isa <= host ? "yes"
                 : available     ? "emulated"
                                 : "no");
    }
  }
  if (json) {
    fmt::print("{}\n", ordered_json{{"cpu", CpuName()}, {"isa", Name(host)}, {"kernels", list}}.dump(
                           2, ' ', false, ordered_json::error_handler_t::replace));
  } else {
    fmt::print("\nthis machine has {}: {}\n", Name(host), CpuName());
  }
  return absl::OkStatus();
}

// In words: against what the chosen row won.
std::string Why(const std::vector<Candidate>& candidates) {
  const auto chosen = std::find_if(candidates.begin(), candidates.end(), [](const Candidate& c) { return c.chosen; });
  if (chosen == candidates.end()) return "every row refuses";
  const Candidate* next = nullptr;
  for (const Candidate& c : candidates) {
    if (c.cost.ok() && !c.chosen && (next == nullptr || *c.cost < *next->cost)) next = &c;
  }
  if (next == nullptr) return fmt::format("{}: the only row that takes it", chosen->row);
  if (*next->cost == *chosen->cost) return fmt::format("{}: as cheap as {} with a higher ISA", chosen->row, next->row);
  return fmt::format("{}: the cheapest, {} costs {:.2f} times as much", chosen->row, next->row,
                     *next->cost / *chosen->cost);
}

// The loops of an AMX kernel in which tiles are multiplied, by the table of ports. Of 2 x 2 tiles those of B are 6 and
// 7, of 1 x 4 tiles 5 .. 7, of 1 x 6 tile 7 alone; they come from L2, A's from L1.
absl::StatusOr<std::vector<TilePortReport>> TileLoops(const Kernel& kernel) {
  std::vector<TilePortReport> found;
  for (const auto& [loads, products, first_b] : {std::tuple(1, 1, 6), std::tuple(5, 4, 5), std::tuple(7, 6, 7)}) {
    const TileLoopHints hints{.from_l2 = [b = first_b](const TileLoad& load) { return load.tile >= b; }};
    XJIT_ASSIGN_OR_RETURN(const auto loops, AnalyzeTileLoops({kernel.code, kernel.text_bytes}, hints));
    for (const TilePortReport& loop : loops) {
      if (loop.loads * products == loop.products * loads) found.push_back(loop);
    }
  }
  return found;
}

// Of the chosen kernel, where it multiplies tiles.
absl::StatusOr<std::vector<TilePortReport>> TileLoopsOf(const TargetInfo& target, const GemmDesc& desc,
                                                        const std::vector<Candidate>& candidates) {
  const bool tiles = std::any_of(candidates.begin(), candidates.end(),
                                 [](const Candidate& c) { return c.chosen && c.row.starts_with("amx"); });
  if (!tiles) return std::vector<TilePortReport>();
  KernelLibrary library(target);
  XJIT_ASSIGN_OR_RETURN(const Kernel* kernel, library.Get(desc));
  XJIT_RETURN_IF_ERROR(library.Seal());
  return TileLoops(*kernel);
}
template <typename Desc>
absl::StatusOr<std::vector<TilePortReport>> TileLoopsOf(const TargetInfo&, const Desc&, const std::vector<Candidate>&) {
  return std::vector<TilePortReport>();
}

// Parts that the chosen kernel does the depth in.
int64_t PartsOf(const TargetInfo& target, const GemmDesc& desc, const std::vector<Candidate>& candidates) {
  for (const Candidate& c : candidates) {
    if (c.chosen) return PartsBy(c.row, desc, target);
  }
  return 1;
}
template <typename Desc>
int64_t PartsOf(const TargetInfo&, const Desc&, const std::vector<Candidate>&) {
  return 1;
}

template <typename Desc>
absl::Status PrintSelection(const TargetInfo& target, const std::string& name, const Desc& desc, bool json) {
  const KernelLibrary library(target);
  const std::vector<Candidate> candidates = library.Candidates(desc);
  XJIT_ASSIGN_OR_RETURN(const auto loops, TileLoopsOf(target, desc, candidates));
  const int64_t parts = PartsOf(target, desc, candidates);
  if (!json) {
    fmt::print("{} on {}\n{}{}\n", name, Name(target.isa), library.Explain(desc), Why(candidates));
    if (parts > 1) fmt::print("depth in {} parts, which threads share out as they do columns\n", parts);
    for (const TilePortReport& loop : loops) fmt::print("loop by the table of ports: {}\n", loop.ToString());
    return absl::OkStatus();
  }
  ordered_json out = {{"descriptor", name},
                      {"isa", Name(target.isa)},
                      {"candidates", ordered_json::array()},
                      {"chosen", nullptr},
                      {"why", Why(candidates)}};
  for (const Candidate& c : candidates) {
    ordered_json row = {{"row", c.row}, {"isa", Name(c.isa)}};
    if (c.cost.ok()) {
      row["cost"] = *c.cost;
    } else {
      row["refused"] = std::string(Message(c.cost.status()));
    }
    row["chosen"] = c.chosen;
    if (c.chosen) out["chosen"] = c.row;
    out["candidates"].push_back(std::move(row));
  }
  if (parts > 1) out["parts"] = parts;
  for (const TilePortReport& loop : loops) {
    out["tile_loops"].push_back({{"products", loop.products},
                                 {"busy", loop.busy()},
                                 {"l2_tiles_per_product", loop.l2_tiles_per_product()},
                                 {"limit", loop.limit}});
  }
  fmt::print("{}\n", out.dump(2));
  return absl::OkStatus();
}

absl::Status Run(const KernelsFlags& f) {
  if (f.family.empty()) return PrintTable(f.json);
  const auto of_family = [&f](const auto& flag) { return flag.first == f.family; };
  if (std::none_of(f.of_shape.begin(), f.of_shape.end(), of_family)) {
    return UsageError("--family {}: shapes can be given of gemm, attention, prepare", f.family);
  }
  for (const auto& flag : f.of_shape) {
    if (flag.second->count() > 0 && !of_family(flag)) {
      return UsageError("{} is a flag of --family {}, not of {}", flag.second->get_name(), flag.first, f.family);
    }
  }
  TargetInfo target;
  // Plans are made for any machine, so the ISA may be above this one's.
  if (f.isa.empty() || f.isa == "auto") {
    XJIT_ASSIGN_OR_RETURN(const IsaChoice choice, ChooseIsa(std::nullopt));
    target = HostCpu(choice.isa);
  } else {
    const auto isa = ParseIsa(f.isa);
    if (!isa.has_value()) return UsageError("--isa {}: not known; known are auto, {}", f.isa, IsaList(Isa::kAmx));
    target = HostCpu(*isa);
  }
  if (f.family == "gemm") {
    XJIT_ASSIGN_OR_RETURN(const GemmDesc desc, f.gemm.Desc(target));
    return PrintSelection(target, GemmName(desc, "*"), desc, f.json);
  }
  if (f.family == "attention") {
    XJIT_ASSIGN_OR_RETURN(const AttentionDesc desc, f.attention.Desc(target.isa));
    return PrintSelection(target, AttentionName(desc, "*"), desc, f.json);
  }
  XJIT_ASSIGN_OR_RETURN(const PrepareDesc desc, f.rows.Desc());
  return PrintSelection(target, PrepareName(desc, "*"), desc, f.json);
}

}  // namespace

Command AddKernels(CLI::App& app) {
  auto f = std::make_shared<KernelsFlags>();
  CLI::App* sub = app.add_subcommand("kernels", "the kernel table; with a shape, what is chosen for it and why");
  auto* family = sub->add_option("--family", f->family, "of the shape: gemm, attention or prepare");
  sub->add_option("--isa", f->isa, "select as on a machine with it: auto, avx2, avx512, avx512_vnni, avx512_bf16, amx");
  const auto add = [&](std::string_view name, auto& shape) {
    const std::vector<CLI::Option*> before = sub->get_options();
    shape.Register(sub);
    for (const CLI::Option* option : sub->get_options()) {
      if (std::find(before.begin(), before.end(), option) == before.end()) f->of_shape.emplace_back(name, option);
    }
  };
  add("gemm", f->gemm);
  add("attention", f->attention);
  add("prepare", f->rows);
  for (CLI::Option* option : sub->get_options()) {
    if (option != family && option->get_name() != "--help") option->needs(family);
  }
  sub->add_flag("--json", f->json, "as one JSON document");
  Example(sub, "xjit kernels --family gemm --m 1 --n 8960 --k 1536 --weights q4_k --isa avx512_vnni");
  return {sub, [f] { return Run(*f); }};
}

}  // namespace xjit::tools
