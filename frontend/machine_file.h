// Machine files: a machine as planners see it, in JSON. `xjit machine` writes one of this machine; those in
// models/machines/ are compiled in and go by their names. docs/planner.md lists the keys.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "ir/support/status.h"
#include "ir/support/target.h"

namespace xjit {

// The names of the machines that are compiled in.
std::vector<std::string_view> MachinePresets();

// A preset by its name, or else the file of that path. InvalidArgument: neither, with the presets' names, or a file
// that is not a machine.
absl::StatusOr<TargetInfo> ReadMachine(std::string_view name_or_path);
// The same of a file's text; messages begin with `file`.
absl::StatusOr<TargetInfo> ParseMachine(std::string_view text, std::string_view file);

// The machine as a file that ParseMachine reads back; figures that are 0 are left out.
std::string MachineText(const TargetInfo& target);

// The first `sockets` sockets of a machine. InvalidArgument: more than there are, or nodes that do not divide evenly.
absl::StatusOr<TargetInfo> FirstSockets(const TargetInfo& target, int sockets);

}  // namespace xjit
