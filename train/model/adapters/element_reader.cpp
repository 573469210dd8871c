#include "train/model/adapters/element_reader.h"

#include <c10/util/accumulate.h>

#include <algorithm>
#include <cmath>

#include "io/base/element_cast.h"
#include "io/base/error.h"

namespace fsdp::train {

void ElementReader::read(int64_t first, int64_t count, float* out) {
  int64_t begin = 0;
  for (const models::NamedShape& part : parts_) {
    const int64_t end = begin + c10::multiply_integers(part.shape);
    const int64_t from = std::max(first, begin), to = std::min(first + count, end);
    if (from < to) read_part(part.name, from - begin, to - from, out + (from - first));
    begin = end;
  }
}

void ElementReader::read_part(const std::string& name, int64_t first, int64_t count, float* out) {
  const auto [file, entry] = *folder_.find(name);
  const size_t size = io::item_size(entry->dtype);
  stored_.resize(static_cast<size_t>(count) * size);
  file->read(*entry, first, count, stored_.data());
  io::cast_elements(entry->dtype, stored_.data(), io::DType::F32, out, count);
  if (std::all_of(out, out + count, [](float value) { return std::isfinite(value); })) return;
  throw io::Error(io::ErrorKind::kModel,
                  "[load] " + io::in_quotes(name) +
                      ": got a number that is not finite, expected weights that NF4 codes can stand for, and of which "
                      "singular vectors can be taken. Repair the file, or set tune.base to bf16 and tune.lora_init to "
                      "random.");
}

}  // namespace fsdp::train
