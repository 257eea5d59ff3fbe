// What xjit-opt lists: passes, ops, and the tables of ir/SPEC.md.
#pragma once

#include <string>

namespace xjit::tools {

// Every pass in pipeline order, under its stage.
std::string PassList();
// Every op and what it means, a line each.
std::string OpList();
// Element types, ops, chain items and plan attributes as the generated part of ir/SPEC.md.
std::string LanguageTables();

}  // namespace xjit::tools
