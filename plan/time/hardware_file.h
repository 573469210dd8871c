#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "plan/time/hardware.h"

namespace fsdp::plan::time {

// A machine that was measured, as JSON: the fields of Hardware by their names, with "node" and "network" as objects and
// "peak_flops" by dtype; enumerators without their k, in snake case ("program_computes"). Fields that are left out have
// Hardware's defaults; peak_flops, memory_bytes_per_second, node and network must be there. docs/plan_time.md has one.
// Throws io::Error(kUsage) naming the file, the field, what was found and what is expected; unknown fields too.
Hardware read_hardware_file(const std::filesystem::path& path);

// The same from parsed JSON; `origin` names it in messages.
Hardware parse_hardware(const nlohmann::json& json, const std::string& origin);

// parse_hardware() gives `hardware` back.
nlohmann::json to_json(const Hardware& hardware);

// `name_or_path`: a name of the table, or else a hardware file. Throws io::Error(kUsage).
Hardware choose_hardware(const std::string& name_or_path);

}  // namespace fsdp::plan::time
