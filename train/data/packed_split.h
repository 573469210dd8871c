#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "io/tokens/token_shards.h"

namespace fsdp::train {

// One training sequence: what the model reads, and what it shall predict at each place.
struct Example {
  std::vector<int32_t> inputs;          // [sequence_length]
  std::vector<int64_t> targets;         // [sequence_length]; kNoTarget: nothing is predicted there
  std::vector<int64_t> segment_starts;  // positions where a document (or padding) starts; the first is 0
  int64_t chosen_end = 0;               // of a pair: where the chosen document ends, and the rejected one begins
  int64_t pair_end = 0;                 // and where that ends
};

inline constexpr int64_t kNoTarget = -100;

// A split of one or several data sets as sequences of equal length: documents packed one after another. Sequence i of a
// data set reads tokens [i*L, (i+1)*L) and predicts the token after each, except across the start of a document and
// where the data set's mask says that the token is no answer. The last sequence of a data set is filled up with padding
// that predicts nothing. Sequences of a data set come after those of the one before. Of a data set of pairs, sequence i
// is pair i: the chosen document, the rejected one, and padding. Const calls are thread-safe.
class PackedSplit {
 public:
  struct Source {
    io::TokenDataset dataset;
    double weight = 1;  // in a mixture
  };
  PackedSplit(io::TokenDataset dataset, int64_t sequence_length);
  // At least one. All have the vocabulary of the first, and pairs if it has. Throws Error(kData) for a pair that is
  // longer than a sequence.
  PackedSplit(std::vector<Source> sources, int64_t sequence_length);

  int64_t num_sequences() const { return first_sequence_.back(); }
  int64_t num_sequences(size_t source) const { return first_sequence_[source + 1] - first_sequence_[source]; }
  int64_t sequence_length() const { return sequence_length_; }
  const std::vector<Source>& sources() const { return sources_; }
  // The first: its vocabulary and tokenizer are those of all.
  const io::TokenDataset& dataset() const { return sources_.front().dataset; }

  bool is_of_pairs() const { return dataset().documents() == io::Documents::kPairs; }

  // Of all sources.
  int64_t num_tokens() const;
  // Share of the places of all sequences that hold a token; the rest is padding.
  double fill_rate() const;
  // Share that predicts one: without padding, ends of documents, and questions. Of documents whose mask is known it is
  // exact up to those that start with an answer.
  double target_rate() const;

  // Number of predicted tokens of a sequence, from index and mask.
  int64_t num_targets(int64_t sequence) const;
  // The same, summed.
  int64_t num_targets(const std::vector<int64_t>& sequences) const;

  // Pairs of tokens that attention joins in a sequence: of each token those of its document up to it. From the index.
  double attention_work(int64_t sequence) const;

  Example read(int64_t sequence) const;

 private:
  // Where a sequence is.
  struct Window {
    const io::TokenDataset* dataset;
    int64_t first_token;
    int64_t num_inputs;      // tokens that have a successor in the split
    int64_t chosen_end = 0;  // of a pair, from first_token
  };
  Window window(int64_t sequence) const;
  void find_pairs(const io::TokenDataset& dataset);

  std::vector<Source> sources_;
  int64_t sequence_length_;
  std::vector<int64_t> first_sequence_;  // of each source, and the number of all
  // Of pairs: where the documents of each source begin, and its end.
  std::vector<std::vector<int64_t>> document_starts_;
};

}  // namespace fsdp::train
