#pragma once

#include <string>
#include <vector>

#include "train/config/config.h"

namespace fsdp::train {

// Which of these parameters do not train: all but those that tune.trained matches, where it is given, and those that
// tune.frozen matches. Both are lists of globs (fnmatch(3): `*`, `?`, `[0-3]`; `*` matches dots too), separated by
// commas. In the order of `names`. Throws Error(kUsage) if a pattern matches no name, telling near ones, or if nothing
// would train.
std::vector<std::string> choose_frozen(const TuneConfig& config, const std::vector<std::string>& names);

// The parts of a list separated by commas, without the blanks around them; empty ones are left out.
std::vector<std::string> split_list(const std::string& text);

}  // namespace fsdp::train
