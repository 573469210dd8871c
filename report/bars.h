#pragma once

#include <string>
#include <vector>

namespace fsdp::report {

// Bars beside each other's names: one group for each figure, with a scale of its own.
struct BarGroup {
  std::string title;
  struct Bar {
    std::string name;
    double value = 0;  // NaN: none
    std::string text;  // the value for people
  };
  std::vector<Bar> bars;
};

// SVG without references to anything else; readable on a light and on a dark page.
std::string draw_bars(const std::string& title, const std::vector<BarGroup>& groups);

}  // namespace fsdp::report
