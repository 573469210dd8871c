#include "train/preference/references.h"

#include <ATen/ATen.h>

#include <cstring>
#include <fstream>
#include <optional>

#include "io/base/atomic_file.h"
#include "io/base/error.h"
#include "io/base/hash.h"
#include "train/base/format.h"

namespace fsdp::train {
namespace {

constexpr std::string_view kMagic = "fsdpref1";
constexpr size_t kHashDigits = 16;

// Magic, hash of the rest, hash of the identity, numbers of 8 bytes.
std::string references_text(const std::vector<double>& numbers, const std::string& identity) {
  std::string body = io::hash_text(io::hash_bytes(identity));
  body.append(reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(double));
  return std::string(kMagic) + io::hash_text(io::hash_bytes(body)) + body;
}

std::optional<std::vector<double>> read_references(const std::filesystem::path& path, const std::string& identity,
                                                   size_t count) {
  std::ifstream file(path, std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const size_t head = kMagic.size() + 2 * kHashDigits;
  if (text.size() != head + count * sizeof(double)) return std::nullopt;
  std::vector<double> numbers(count);
  std::memcpy(numbers.data(), text.data() + head, count * sizeof(double));
  if (references_text(numbers, identity) != text) return std::nullopt;
  return numbers;
}

std::vector<AnswerLogs> logs_of(const at::Tensor& numbers) {
  std::vector<AnswerLogs> logs;
  const double* values = numbers.const_data_ptr<double>();
  for (int64_t i = 0; i + 1 < numbers.numel(); i += 2) logs.push_back({values[i], values[i + 1]});
  return logs;
}

}  // namespace

References References::compute(ShardedModel& model, const World& world, const PackedSplit& split) {
  const ForwardOnly scope(model.root);
  const at::NoGradGuard no_grad;
  const c10::Device device = computing_device(model.decoder);
  const int64_t num_pairs = split.num_sequences();
  const Part mine = part_of(num_pairs, world.rank, world.size);
  const int64_t rounds = (num_pairs + world.size - 1) / world.size;
  at::Tensor numbers = at::zeros({2 * num_pairs}, at::kDouble);
  for (int64_t round = 0; round < rounds; ++round) {
    // Where others have one more, for company.
    const bool counts = mine.begin + round < mine.end;
    const int64_t pair = counts ? mine.begin + round : 0;
    const at::Tensor logs = answer_logs(model.decoder, on_device(make_batch(split, std::vector{pair}), device));
    if (counts) numbers.narrow(0, 2 * pair, 2).copy_(logs.view({-1}));
  }
  return References(logs_of(sum_over_ranks(world, numbers)));
}

References References::find_or_compute(ShardedModel& model, const World& world, const PackedSplit& split,
                                       const std::filesystem::path& file, const std::string& identity,
                                       const std::function<void(const std::string&)>& tell) {
  const auto count = static_cast<size_t>(2 * split.num_sequences());
  at::Tensor numbers = at::zeros({static_cast<int64_t>(count) + 1}, at::kDouble);  // the last: are they there?
  if (world.rank == 0) {
    if (const auto found = read_references(file, identity, count)) {
      std::memcpy(numbers.mutable_data_ptr<double>(), found->data(), count * sizeof(double));
      numbers[-1] = 1.0;
    }
  }
  numbers = sum_over_ranks(world, numbers);
  if (numbers[-1].item<double>() > 0) {
    tell("preference: references of " + with_thousands(split.num_sequences()) + " pairs are those of " + file.string());
    return References(logs_of(numbers.narrow(0, 0, static_cast<int64_t>(count))));
  }
  References references = compute(model, world, split);
  if (world.rank != 0) return references;
  std::vector<double> flat;
  for (const AnswerLogs& logs : references.logs_) flat.insert(flat.end(), {logs.chosen, logs.rejected});
  try {
    io::write_file_atomically(file, references_text(flat, identity));
    tell("preference: computed references of " + with_thousands(split.num_sequences()) + " pairs and wrote " +
         file.string());
  } catch (const io::Error& failure) {
    tell("preference: computed references of " + with_thousands(split.num_sequences()) +
         " pairs, which the next start computes again: " + failure.what());
  }
  return references;
}

}  // namespace fsdp::train
