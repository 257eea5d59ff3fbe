// xjit import: writes a model.json for a checkpoint.
#include "frontend/manifest.h"
#include "tools/command.h"

namespace xjit::tools {

Command AddImport(CLI::App& app) {
  struct Flags {
    std::string source, out;
  };
  auto f = std::make_shared<Flags>();
  CLI::App* sub = app.add_subcommand("import", "write the manifest of a checkpoint folder or GGUF file");
  sub->add_option("source", f->source, "a checkpoint folder or a .gguf file")->required()->type_name("SRC");
  sub->add_option("-o,--out", f->out, "the model.json to write")->required();
  Example(sub, "xjit import checkpoint/ -o model.json");
  return {sub, [f]() -> absl::Status {
            XJIT_ASSIGN_OR_RETURN(auto checkpoint, OpenCheckpoint(f->source));
            return WriteManifest(*checkpoint, f->out);
          }};
}

}  // namespace xjit::tools
