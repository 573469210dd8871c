#include "train/model/weights.h"

#include <ATen/ATen.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <tuple>

#include "io/base/aligned_buffer.h"
#include "io/base/atomic_file.h"
#include "io/base/staged_folder.h"
#include "io/base/worker_threads.h"
#include "io/hub/companion_files.h"
#include "io/hub/generation_config.h"
#include "io/hub/model_folder_writer.h"
#include "io/weights/adapter.h"
#include "io/weights/nf4_names.h"
#include "models/config/stored_parts.h"
#include "models/load_weights.h"
#include "text/tokenizer/byte_tokenizer.h"
#include "train/axes/whole_parameter.h"
#include "train/base/agreement.h"
#include "train/model/nf4/load_codes.h"
#include "train/model/stored_tensor.h"

namespace fsdp::train {
namespace {

namespace fs = std::filesystem;

// Elements that are collected or written at once: bounds the memory for them.
constexpr int64_t kPiece = int64_t{1} << 22;
// Bytes that are read at once.
constexpr int64_t kReadBytes = int64_t{1} << 23;
// Bytes between two pieces, of no use here, that are read along rather than read around: columns of other ranks.
constexpr size_t kMostGap = size_t{1} << 16;

// Elements of a stored tensor that are some of a parameter.
struct StoredRange {
  std::string name;
  int64_t first;  // there
  int64_t begin;  // in the range that was asked for
  int64_t count;
};

// Where elements [first, first + count) of a parameter, flattened, are stored.
std::vector<StoredRange> stored_ranges(const std::vector<models::NamedShape>& parts, int64_t first, int64_t count) {
  std::vector<StoredRange> ranges;
  int64_t place = 0;  // of the part in the parameter
  for (const models::NamedShape& part : parts) {
    const int64_t end = place + c10::multiply_integers(part.shape);
    const int64_t from = std::max(first, place), to = std::min(first + count, end);
    if (from < to) ranges.push_back({part.name, from - place, from - first, to - from});
    place = end;
  }
  return ranges;
}

std::vector<models::NamedShape> stored_parts(const models::DecoderConfig& config, const std::string& name,
                                             const at::Tensor& leaf) {
  return models::stored_parts(config, {name, whole_sizes(leaf)});
}

// A part of a leaf that is read at once.
struct Piece {
  io::ModelFolder::Location stored;
  int64_t first;      // element of the stored tensor
  at::Tensor target;  // 1-D

  io::SafetensorsFile::Bytes bytes() const { return stored.file->bytes_of(*stored.entry, first, target.numel()); }
};

// Pieces that lie side by side in one file, those of one tensor nearly so: one read.
struct PieceRun {
  std::vector<Piece> pieces;

  const io::SafetensorsFile& file() const { return *pieces.front().stored.file; }
  io::SafetensorsFile::Bytes bytes() const { return {pieces.front().bytes().begin, pieces.back().bytes().end}; }
  bool is_followed_by(const Piece& piece) const {
    const bool is_same_tensor = piece.stored.entry == pieces.back().stored.entry;
    return piece.stored.file == &file() && piece.bytes().begin - bytes().end <= (is_same_tensor ? kMostGap : 0);
  }
};

// While some cast, others read.
constexpr int kReaders = 3;

// What this rank needs, in the order in which it lies on the disk.
std::vector<Piece> pieces_of(const NamedLeaves& leaves, const models::DecoderConfig& config,
                             const io::ModelFolder& folder) {
  std::vector<Piece> pieces;
  for (const auto& [name, leaf] : leaves) {
    const at::Tensor flat = leaf.detach().view(-1);
    const std::vector<models::NamedShape> parts = stored_parts(config, name, leaf);
    for (const WholeRun& run : whole_runs(leaf)) {
      for (const StoredRange& range : stored_ranges(parts, run.first, run.count))
        pieces.push_back({*folder.find(range.name), range.first, flat.narrow(0, run.begin + range.begin, range.count)});
    }
  }
  const auto place = [](const Piece& piece) { return std::tuple(piece.stored.file->path(), piece.bytes().begin); };
  std::sort(pieces.begin(), pieces.end(), [&](const Piece& a, const Piece& b) { return place(a) < place(b); });
  return pieces;
}

// Runs of kReadBytes wherever there is so much side by side.
std::vector<PieceRun> runs_of(const NamedLeaves& leaves, const models::DecoderConfig& config,
                              const io::ModelFolder& folder) {
  std::vector<PieceRun> runs;
  for (Piece rest : pieces_of(leaves, config, folder)) {
    const auto size = static_cast<int64_t>(io::item_size(rest.stored.entry->dtype));
    while (rest.target.numel() > 0) {
      int64_t room = runs.empty() || !runs.back().is_followed_by(rest)
                         ? 0
                         : kReadBytes - static_cast<int64_t>(rest.bytes().begin - runs.back().bytes().begin);
      if (room < size) {
        runs.emplace_back();
        room = kReadBytes;
      }
      const int64_t count = std::min(room / size, rest.target.numel());
      runs.back().pieces.push_back({rest.stored, rest.first, rest.target.narrow(0, 0, count)});
      rest.first += count;
      rest.target = rest.target.narrow(0, count, rest.target.numel() - count);
    }
  }
  return runs;
}

void read_through_cache(const Piece& piece) {
  const auto& [file, entry] = piece.stored;
  const at::ScalarType dtype = weight_type(*entry);
  const bool direct = piece.target.is_cpu() && piece.target.scalar_type() == dtype;
  const at::Tensor values = direct ? piece.target : at::empty({piece.target.numel()}, dtype);
  file->read(*entry, piece.first, values.numel(), values.data_ptr());
  if (!direct) piece.target.copy_(values);
}

void read_run(const PieceRun& run, const io::AlignedBuffer& scratch) {
  const char* stored = run.file().read_past_cache(run.bytes(), scratch);
  for (const Piece& piece : run.pieces) {
    const at::ScalarType dtype = weight_type(*piece.stored.entry);
    const char* values = stored == nullptr ? nullptr : stored + (piece.bytes().begin - run.bytes().begin);
    if (values == nullptr || reinterpret_cast<uintptr_t>(values) % c10::elementSize(dtype) != 0) {
      read_through_cache(piece);
    } else {
      piece.target.copy_(at::from_blob(const_cast<char*>(values), piece.target.sizes(), dtype));
    }
  }
}

// Reads or writes nothing on ranks other than 0.
class ModelWriter {
 public:
  ModelWriter(const ShardedModel& model, const fs::path& folder) {
    std::vector<io::TensorDeclaration> tensors;
    for (const WholeTensor& tensor : whole_tensors(model)) {
      parts_[tensor.name] = models::stored_parts(model.decoder->config(), {tensor.name, tensor.sizes});
      for (const models::NamedShape& part : parts_[tensor.name])
        tensors.push_back({part.name, io::DType::F32, part.shape});
    }
    writer_ = std::make_unique<io::ModelFolderWriter>(folder, std::move(tensors), io::kDefaultShardBytes);
  }
  void write(const std::string& name, int64_t first, const at::Tensor& values) {
    const at::Tensor flat = values.detach().to(at::kCPU, at::kFloat).contiguous();
    for (const StoredRange& range : stored_ranges(parts_.at(name), first, flat.numel()))
      writer_->write(range.name, range.first, range.count, flat.const_data_ptr<float>() + range.begin);
  }
  void commit() { writer_->commit(); }

 private:
  std::map<std::string, std::vector<models::NamedShape>> parts_;  // of each parameter
  std::unique_ptr<io::ModelFolderWriter> writer_;
};

nlohmann::json stored_config(const models::DecoderConfig& config) {
  nlohmann::json json = models::to_hugging_face(config);
  json["dtype"] = "float32";
  return json;
}

// What is gathered for the forward is the main weight only if nothing is cast.
bool gathers_main_weights(const ShardedModel& model, const NamedLeaves& leaves) {
  const auto parameters = model.decoder->named_parameters();
  return std::all_of(leaves.begin(), leaves.end(), [&](const auto& leaf) {
    return parameters[leaf.first].scalar_type() == leaf.second.scalar_type();
  });
}

bool belongs(const std::string& name, const ShardedModel& model, size_t unit) {
  const bool is_root = unit + 1 == model.units.size();
  return is_root ? name.rfind("model.layers.", 0) != 0 : name.rfind(model.prefixes[unit], 0) == 0;
}

void write_gathered_units(const ShardedModel& model, const World& world, ModelWriter* writer,
                          const NamedLeaves& leaves) {
  const auto parameters = model.decoder->named_parameters();
  for (size_t unit = 0; unit < model.units.size(); ++unit) {
    const FullParameters readable(model.units[unit]);
    on_rank0(world, [&] {
      for (const auto& [name, leaf] : leaves) {
        if (belongs(name, model, unit)) {
          writer->write(name, 0, parameters[name]);
        }
      }
    });
  }
}

// The names of this rank's leaves of which no lower rank holds the same slice. Replicas are the same bits, and one of
// them is enough.
std::set<std::string> find_first_copies(const World& world, const NamedLeaves& leaves) {
  std::map<std::string, std::string> slices;
  std::set<std::string> names;
  for (const auto& [name, leaf] : leaves) {
    slices[name] = slice_text(leaf);
    names.insert(name);
  }
  const std::vector<std::string> all = gather_strings(world, nlohmann::json(slices).dump());
  for (int rank = 0; rank < world.rank; ++rank) {
    const std::map<std::string, std::string> theirs = nlohmann::json::parse(all[static_cast<size_t>(rank)]);
    std::erase_if(names, [&](const std::string& name) {
      const auto other = theirs.find(name);  // a rank with another stage has other leaves
      return other != theirs.end() && other->second == slices[name];
    });
  }
  return names;
}

// What of elements [begin, begin + numel) of the whole parameter this rank has.
void copy_into(const at::Tensor& piece, int64_t begin, const at::Tensor& leaf, const std::vector<WholeRun>& runs) {
  const int64_t end = begin + piece.numel();
  auto run = std::lower_bound(runs.begin(), runs.end(), begin,
                              [](const WholeRun& each, int64_t place) { return each.first + each.count <= place; });
  for (; run != runs.end() && run->first < end; ++run) {
    const int64_t first = std::max(begin, run->first), last = std::min(end, run->first + run->count);
    if (first >= last) continue;
    piece.narrow(0, first - begin, last - first)
        .copy_(leaf.detach().narrow(0, run->begin + first - run->first, last - first));
  }
}

// Leaves whose numbers files have.
NamedLeaves stored_leaves(NamedLeaves leaves) {
  std::erase_if(leaves,
                [](const auto& leaf) { return io::is_adapter_name(leaf.first) || io::is_nf4_name(leaf.first); });
  return leaves;
}

}  // namespace

void check_names_and_shapes(const ShardedModel& model, const io::ModelFolder& folder) {
  check_codes_are_kept(model, folder);
  std::vector<models::ExpectedTensor> expected, codes;
  for (const WholeTensor& tensor : whole_tensors(model)) {
    if (io::is_adapter_name(tensor.name)) continue;
    if (has_codes_of(folder, tensor.name)) {
      const auto of_weight = expected_codes(folder, tensor);
      codes.insert(codes.end(), of_weight.begin(), of_weight.end());
    } else {
      expected.push_back({tensor.name, tensor.sizes});
    }
  }
  expected = models::expected_tensors(expected, model.decoder->config());
  expected.insert(expected.end(), codes.begin(), codes.end());
  models::check_weights(expected, folder);
}

void load_weights(const ShardedModel& model, const io::ModelFolder& folder, const AdapterStart* start) {
  const at::NoGradGuard no_grad;
  const NamedLeaves leaves = stored_leaves(named_parameters(*model.decoder));
  const models::DecoderConfig& config = model.decoder->config();
  check_names_and_shapes(model, folder);
  const std::vector<PieceRun> runs = runs_of(leaves, config, folder);
  io::run_workers(runs.size(), kReaders, [&](io::WorkQueue& queue) {
    const at::NoGradGuard no_grad_here;
    const at::DisableRecordFunctionGuard not_a_touch;
    const io::AlignedBuffer scratch(kReadBytes + 2 * io::kDirectAlignment);
    while (const auto i = queue.next()) read_run(runs[*i], scratch);
  });
  // What was read past the tensors' operators counts as written, on all ranks equally often.
  for (const auto& [name, leaf] : leaves) leaf.unsafeGetTensorImpl()->bump_version();
  load_codes(model, folder, start);
}

// A rank that has part of a piece adds it to zeros. The ranges of the ranks that do so do not overlap.
void collect_main_weights(const World& world, const std::vector<WholeTensor>& whole, const NamedLeaves& leaves,
                          const TakePiece& take) {
  const at::NoGradGuard no_grad;
  const std::set<std::string> contributes = find_first_copies(world, leaves);
  const std::map<std::string, at::Tensor> mine(leaves.begin(), leaves.end());
  for (const WholeTensor& tensor : whole) {
    const bool is_here = contributes.count(tensor.name) > 0;
    const at::Tensor leaf = is_here ? mine.at(tensor.name) : at::Tensor();
    const std::vector<WholeRun> runs = is_here ? whole_runs(leaf) : std::vector<WholeRun>();
    for (int64_t begin = 0; begin < tensor.numel(); begin += kPiece) {
      const int64_t end = std::min(tensor.numel(), begin + kPiece);
      at::Tensor piece = at::zeros({end - begin}, at::kFloat);
      if (is_here) copy_into(piece, begin, leaf, runs);
      piece = sum_over_ranks(world, piece);
      on_rank0(world, [&] { take(tensor.name, begin, piece); });
    }
  }
}

void save_model(const ShardedModel& model, const World& world, const fs::path& folder, const std::string& tokenizer,
                const fs::path& tokenizer_files) {
  const at::NoGradGuard no_grad;
  const NamedLeaves leaves = named_parameters(*model.decoder);
  std::optional<io::StagedFolder> staging;  // of rank 0
  std::unique_ptr<ModelWriter> writer;
  on_rank0(world, [&] {
    staging.emplace(folder);
    writer = std::make_unique<ModelWriter>(model, staging->path());
  });
  if (model.place.num_stages == 1 && model.place.num_tensor == 1 && model.place.num_expert == 1 &&
      gathers_main_weights(model, leaves)) {
    write_gathered_units(model, world, writer.get(), leaves);
  } else {
    collect_main_weights(
        world, whole_tensors(model), leaves,
        [&](const std::string& name, int64_t first, const at::Tensor& values) { writer->write(name, first, values); });
  }
  on_rank0(world, [&] {
    writer->commit();
    const fs::path& place = staging->path();
    const nlohmann::json config = stored_config(model.decoder->config());
    io::write_file_atomically(place / "config.json", config.dump(2) + "\n");
    io::write_file_atomically(place / "generation_config.json", io::generation_config(config).dump(2) + "\n");
    if (!tokenizer_files.empty()) {
      // Only what a tokenizer may have: another file there must not take the place of one of the model's.
      for (const fs::path& file : io::tokenizer_files(tokenizer_files)) {
        io::copy_file_atomically(file, place / file.filename(), io::ErrorKind::kData);
      }
    } else if (tokenizer == byte_tokenizer::kName) {
      io::write_file_atomically(place / byte_tokenizer::kMarkerFile, byte_tokenizer::marker_json());
    }
    staging->publish();
  });
}

}  // namespace fsdp::train
