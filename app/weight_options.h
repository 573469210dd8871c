#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "io/weights/weights_copy.h"

namespace fsdp::app {

// What `fsdp import` and `fsdp export` share. `verb` starts the messages.

// "bf16", "fp16", "fp32", or "keep": nothing. Throws Error(kUsage) for anything else, naming what is `legal`.
inline constexpr const char* kWeightDtypes = "keep, bf16, fp16 or fp32";
std::optional<io::DType> parse_weight_dtype(const std::string& verb, const std::string& text,
                                            const std::string& legal = kWeightDtypes);

// "5GB", "500MB", "2GiB", "0" (no limit), ...: bytes. Throws Error(kUsage) for anything else.
uint64_t parse_shard_size(const std::string& verb, const std::string& text);
inline constexpr const char* kShardSizeHelp =
    "most bytes of one file of a model folder: 5GB (default), 500MB, 2GiB, ...; 0: no limit";

// The config.json at `path`; without a path, the source's own, if it has one. Throws Error(kUsage) if it is no object.
std::optional<nlohmann::json> find_config(const std::string& verb, const std::string& path,
                                          const io::WeightSource& source);

// One line: what was copied, from what, to where; and one about what was left out.
void print_copy(const std::string& verb, const io::WeightSource& source, const io::CopyPlan& plan,
                const std::string& out);

}  // namespace fsdp::app
