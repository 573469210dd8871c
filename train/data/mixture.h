#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace fsdp::train {

// One data set of a mixture, and how much of it is taken.
struct MixturePart {
  std::string path;
  double weight = 1;  // relative to the others'
};

// What data.path says: one folder, or several with weights, as in "web:0.7,books:0.3"; without a weight it is 1. A
// folder that exists is one folder, whatever its name. Throws Error(kUsage) for weights that are no positive numbers,
// parts without a name and folders named twice.
std::vector<MixturePart> parse_mixture(const std::string& text);

// Where training takes its sequences from: every place of the endless row of sequences belongs to one source. A pure
// function of seed, weights and place, without tables. The row is cut into blocks; each block holds the same number
// of places of each source, in an order of its own (Shuffle), so that after any number of sequences each source has
// had its share, up to what one block can be off.
class MixtureOrder {
 public:
  static constexpr int64_t kBlock = 65536;  // places per block; weights are rounded to multiples of 1 / kBlock

  // At least one weight; all positive. No source has less than one place of a block.
  MixtureOrder(uint64_t seed, const std::vector<double>& weights);

  struct Place {
    size_t source = 0;
    int64_t number = 0;  // the source's sequences are taken in the order of these numbers: 0, 1, 2, ...
  };
  Place at(int64_t position) const;

  // How many sequences of each source lie before `position`: the cursors of a run that has consumed that many.
  std::vector<int64_t> consumed(int64_t position) const;

  // Places of a source in each block.
  int64_t share(size_t source) const { return first_[source + 1] - first_[source]; }
  size_t num_sources() const { return first_.size() - 1; }

 private:
  size_t source_of(int64_t place) const;

  uint64_t seed_;
  std::vector<int64_t> first_;  // of each source, among the unshuffled places of a block; and kBlock
};

}  // namespace fsdp::train
