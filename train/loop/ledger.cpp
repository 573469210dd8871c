#include "train/loop/ledger.h"

#include <ATen/ATen.h>

#include <bit>
#include <nlohmann/json.hpp>
#include <string_view>

#include "io/base/hash.h"
#include "train/base/metrics.h"

namespace fsdp::train {
namespace {

std::string bits(double value) { return io::hash_text(std::bit_cast<uint64_t>(value)); }

}  // namespace

std::string to_json(const LedgerEntry& entry) {
  nlohmann::ordered_json json;
  json["schema"] = kLogSchema;
  json["step"] = entry.step;
  json["position"] = entry.position;
  json["sequences"] = entry.sequences;
  json["batch"] = io::hash_text(entry.batch);
  json["loss"] = bits(entry.loss);
  json["grad_norm"] = bits(entry.grad_norm);
  json["lr"] = bits(entry.lr);
  if (entry.skipped) json["skipped"] = true;
  if (entry.loss_scale > 0) json["loss_scale"] = entry.loss_scale;
  return json.dump();
}

uint64_t hash_rows(const Batch& batch, int64_t first) {
  const int64_t rows = batch.input_ids_BT.size(0);
  const auto row_bytes = static_cast<size_t>(batch.input_ids_BT.size(1)) * sizeof(int64_t);
  const auto* inputs = static_cast<const char*>(batch.input_ids_BT.const_data_ptr());
  const auto* targets = static_cast<const char*>(batch.targets_N.const_data_ptr());
  uint64_t sum = 0;
  for (int64_t row = 0; row < rows; ++row) {
    const size_t offset = static_cast<size_t>(row) * row_bytes;
    const int64_t place = batch.places.empty() ? first + row : batch.places[static_cast<size_t>(row)];
    const uint64_t parts[3] = {static_cast<uint64_t>(place), io::hash_bytes({inputs + offset, row_bytes}),
                               io::hash_bytes({targets + offset, row_bytes})};
    sum += io::hash_bytes({reinterpret_cast<const char*>(parts), sizeof(parts)});
  }
  return sum;
}

}  // namespace fsdp::train
