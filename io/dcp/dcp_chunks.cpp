#include "io/dcp/dcp_chunks.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>

#include "io/base/shape.h"
namespace fsdp::io {

namespace {

bool overlaps(const DcpChunk& a, const DcpChunk& b) {
  for (size_t k = 0; k < a.sizes.size(); ++k) {
    if (a.offsets[k] >= b.offsets[k] + b.sizes[k] || b.offsets[k] >= a.offsets[k] + a.sizes[k]) return false;
  }
  return true;
}

std::string text_of(const DcpChunk& chunk) {
  std::string text;
  for (size_t k = 0; k < chunk.sizes.size(); ++k) {
    text += (k == 0 ? "" : ", ") + std::to_string(chunk.offsets[k]) + " + " + std::to_string(chunk.sizes[k]);
  }
  return "[" + text + "]";
}

bool lies_inside(const DcpChunk& chunk, const std::vector<int64_t>& shape) {
  for (size_t k = 0; k < shape.size(); ++k) {
    if (chunk.sizes[k] > shape[k] || chunk.offsets[k] > shape[k] - chunk.sizes[k]) return false;
  }
  return true;
}

// The dim in which chunks start at the most places: along it, the fewest lie side by side.
size_t most_cut_dim(const DcpTensor& tensor) {
  size_t best = 0;
  size_t most = 0;
  std::vector<int64_t> starts(tensor.chunks.size());
  for (size_t k = 0; k < tensor.shape.size(); ++k) {
    for (size_t i = 0; i < starts.size(); ++i) starts[i] = tensor.chunks[i].offsets[k];
    std::sort(starts.begin(), starts.end());
    const size_t count = static_cast<size_t>(std::distance(starts.begin(), std::unique(starts.begin(), starts.end())));
    if (count > most) best = k;
    most = std::max(most, count);
  }
  return best;
}

}  // namespace

std::string ChunkChecker::problem(const DcpTensor& tensor) {
  const int64_t numel = tensor.numel();
  int64_t covered = 0;
  for (const DcpChunk& chunk : tensor.chunks) {
    if (chunk.offsets.size() != tensor.shape.size() || chunk.sizes.size() != tensor.shape.size()) {
      return "got a chunk with another number of dims than the tensor, expected equal ones. The file is damaged.";
    }
    if (!lies_inside(chunk, tensor.shape)) {
      return "got the chunk " + text_of(chunk) + ", expected it inside the tensor. The file is damaged.";
    }
    if (__builtin_add_overflow(covered, *checked_numel(chunk.sizes), &covered)) covered = numel + 1;
    if (covered > numel) return "got chunks with more elements than the tensor has, expected each once.";
  }
  if (covered != numel) {
    return "got chunks with " + std::to_string(covered) + " elements, expected all " + std::to_string(numel) +
           ". The checkpoint is not complete.";
  }
  return overlap(tensor);
}

// Chunks in the order of one dim: each is compared with those that reach beyond its start.
std::string ChunkChecker::overlap(const DcpTensor& tensor) {
  if (tensor.chunks.size() < 2) return {};  // always so without dims
  const size_t dim = most_cut_dim(tensor);
  std::vector<const DcpChunk*> chunks;
  chunks.reserve(tensor.chunks.size());
  for (const DcpChunk& chunk : tensor.chunks) chunks.push_back(&chunk);
  std::sort(chunks.begin(), chunks.end(),
            [&](const DcpChunk* a, const DcpChunk* b) { return a->offsets[dim] < b->offsets[dim]; });
  std::vector<const DcpChunk*> open;
  for (const DcpChunk* chunk : chunks) {
    const auto is_over = [&](const DcpChunk* other) {
      return other->offsets[dim] + other->sizes[dim] <= chunk->offsets[dim];
    };
    if (open.size() > num_left_) return "got chunks side by side in too many ways, expected a grid (limit).";
    num_left_ -= open.size();
    open.erase(std::remove_if(open.begin(), open.end(), is_over), open.end());
    for (const DcpChunk* other : open) {
      if (overlaps(*chunk, *other)) {
        return "got the chunks " + text_of(*other) + " and " + text_of(*chunk) + ", expected no overlap.";
      }
    }
    open.push_back(chunk);
  }
  return {};
}

std::vector<TensorRun> cut_into_runs(const std::vector<int64_t>& shape, int64_t max_elements) {
  const int64_t numel = checked_numel(shape).value_or(0);
  if (numel == 0) return {};
  if (shape.empty()) return {{.first = 0, .count = 1, .dim = 0}};
  size_t dim = 0;
  int64_t inner = numel / shape[0];  // elements per index of `dim`
  while (inner > max_elements) inner /= shape[++dim];
  const int64_t step = std::max<int64_t>(max_elements / inner, 1) * inner;
  const int64_t line = inner * shape[dim];
  std::vector<TensorRun> runs;
  for (int64_t begin = 0; begin < numel; begin += line) {
    for (int64_t first = 0; first < line; first += step) {
      runs.push_back({.first = begin + first, .count = std::min(step, line - first), .dim = dim});
    }
  }
  return runs;
}

ChunkWindow::ChunkWindow(const DcpTensor& tensor) {
  for (const DcpChunk& chunk : tensor.chunks) {
    int64_t first = 0;
    int64_t last = 0;
    for (size_t k = 0; k < tensor.shape.size(); ++k) {
      first = first * tensor.shape[k] + chunk.offsets[k];
      last = last * tensor.shape[k] + chunk.offsets[k] + chunk.sizes[k] - 1;
    }
    by_first_.emplace_back(first, last_.size());
    last_.push_back(last);
  }
  std::sort(by_first_.begin(), by_first_.end());
}

const std::vector<size_t>& ChunkWindow::move_to(const TensorRun& run) {
  std::erase_if(open_, [&](size_t chunk) { return last_[chunk] < run.first; });
  for (; num_begun_ < by_first_.size() && by_first_[num_begun_].first < run.first + run.count; ++num_begun_) {
    const size_t chunk = by_first_[num_begun_].second;
    if (last_[chunk] >= run.first) open_.push_back(chunk);
  }
  return open_;
}

ChunkPart::ChunkPart(const std::vector<int64_t>& shape, const TensorRun& run, const DcpChunk& chunk) {
  if (shape.empty()) {
    count_ = 1;
    return;
  }
  const size_t dim = run.dim;
  std::array<int64_t, kMaxRank> strides{};
  int64_t stride = 1;
  for (size_t k = shape.size(); k-- > 0; stride *= shape[k]) strides[k] = stride;

  int64_t row = 0;  // of the chunk, over all dims up to `dim`
  for (size_t k = 0; k < dim; ++k) {
    const int64_t index = run.first / strides[k] % shape[k] - chunk.offsets[k];
    if (index < 0 || index >= chunk.sizes[k]) return;
    row = row * chunk.sizes[k] + index;
  }
  const int64_t run_begin = run.first / strides[dim] % shape[dim];
  const int64_t begin = std::max(run_begin, chunk.offsets[dim]);
  const int64_t end = std::min(run_begin + run.count / strides[dim], chunk.offsets[dim] + chunk.sizes[dim]);
  if (begin >= end) return;
  row = row * chunk.sizes[dim] + begin - chunk.offsets[dim];

  int64_t inner = 1;  // elements of the chunk per row
  first_in_run_ = (begin - run_begin) * strides[dim];
  for (size_t k = dim + 1; k < shape.size(); ++k) {
    inner *= chunk.sizes[k];
    first_in_run_ += chunk.offsets[k] * strides[k];
  }
  first_in_chunk_ = row * inner;
  count_ = (end - begin) * inner;
  for (size_t k = shape.size(); k-- > dim;) {
    const int64_t extent = k == dim ? end - begin : chunk.sizes[k];
    if (contiguous_ == strides[k]) {  // the dims behind are taken whole
      contiguous_ *= extent;
    } else if (extent > 1) {
      loops_.insert(loops_.begin(), {.count = extent, .stride = strides[k]});
    }
  }
}

std::optional<int64_t> ChunkPart::first_in_run() const {
  return loops_.empty() ? std::optional<int64_t>(first_in_run_) : std::nullopt;
}

void ChunkPart::scatter(const void* part, size_t item_bytes, void* run) const {
  const auto* from = static_cast<const char*>(part);
  const size_t num_bytes = static_cast<size_t>(contiguous_) * item_bytes;
  std::array<int64_t, kMaxRank> index{};
  int64_t place = first_in_run_;
  for (int64_t done = 0; done < count_; done += contiguous_, from += num_bytes) {
    std::memcpy(static_cast<char*>(run) + static_cast<size_t>(place) * item_bytes, from, num_bytes);
    for (size_t k = loops_.size(); k-- > 0;) {  // the next index, as an odometer turns
      place += loops_[k].stride;
      if (++index[k] < loops_[k].count) break;
      place -= loops_[k].count * loops_[k].stride;
      index[k] = 0;
    }
  }
}

}  // namespace fsdp::io
