#pragma once

namespace fsdp {

// Set while a region that will be computed again in the backward runs for the first time: no graph is recorded, and yet
// a backward comes. Of this thread.
class RecomputeRegion {
 public:
  RecomputeRegion() { ++depth(); }
  ~RecomputeRegion() { --depth(); }
  RecomputeRegion(const RecomputeRegion&) = delete;
  RecomputeRegion& operator=(const RecomputeRegion&) = delete;

  static bool is_open() { return depth() > 0; }

 private:
  static int& depth();
};

}  // namespace fsdp
