#include "app/nf4/decoded_source.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "io/base/element_cast.h"
#include "io/base/error.h"
#include "io/weights/nf4_names.h"
#include "kernels/raw/formats/nf4.h"
#include "models/config/decoder_config.h"
#include "models/config/parameter_list.h"
#include "train/model/nf4/stored_codes.h"

namespace fsdp::app {
namespace {

using train::Beside;
using train::kBeside;
using train::stored_part;
using train::suffix;

using kernels::raw::Nf4Layout;

// Elements that are handed on at once.
constexpr int64_t kDecodedPiece = int64_t{1} << 20;

constexpr const char* kAnyState = ".quant_state.bitsandbytes__";

using Record = std::vector<uint8_t>;

bool is_said_to_be_of_bitsandbytes(const io::WeightSource& source) {
  return source.config() && train::is_of_bitsandbytes(*source.config());
}

// A weight that codes stand for.
struct CodedMatrix {
  size_t codes = 0;                                  // tensor of the base
  std::optional<std::array<size_t, 5>> beside = {};  // likewise, in the order of kBeside; none: a record has all
  float mean = 0;                                    // with `beside`

  int64_t begin(const Nf4Layout& layout) const { return beside ? layout.codes() : 0; }  // of the codes' tensor, there
};

// Where a tensor comes from.
struct Origin {
  size_t tensor = 0;                       // of the base
  std::optional<CodedMatrix> matrix = {};  // where that is codes
};

class DecodedSource final : public io::WeightSource {
 public:
  DecodedSource(std::unique_ptr<io::WeightSource> base, io::DType dtype)
      : WeightSource(*base), base_(std::move(base)), dtype_(dtype) {
    description_ += " in 4 bits";
    for (size_t i = 0; i < base_->tensors().size(); ++i) by_name_[base_->tensors()[i].name] = i;
    tensors_.clear();
    matrices_of_records();
    matrices_of_bitsandbytes();
    for (size_t i = 0; i < base_->tensors().size(); ++i) {
      if (!taken_.contains(i)) add(base_->tensors()[i], {i});
    }
    std::vector<size_t> order(tensors_.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return tensors_[a].name < tensors_[b].name; });
    const auto sort_by_name = [&order](auto& list) {
      const auto before = list;
      for (size_t i = 0; i < order.size(); ++i) list[i] = before[order[i]];
    };
    sort_by_name(tensors_);
    sort_by_name(origins_);
    if (config_) config_->erase("quantization_config");
  }

  void read(const std::vector<size_t>& wanted, const io::PieceSink& sink) const override {
    std::map<size_t, size_t> places;  // base tensor -> ours
    std::vector<size_t> first_wanted, base_wanted;
    for (const size_t index : wanted) {
      const auto& [tensor, matrix] = origins_[index];
      places[tensor] = index;
      base_wanted.push_back(tensor);
      if (matrix && matrix->beside)
        first_wanted.insert(first_wanted.end(), matrix->beside->begin(), matrix->beside->end());
    }
    const std::map<size_t, Record> scales = read_whole(first_wanted);
    std::map<size_t, Record> records;
    base_->read(base_wanted, [&](size_t origin, int64_t first, int64_t count, const void* elements) {
      const size_t index = places.at(origin);
      if (!origins_[index].matrix) return sink(index, first, count, elements);
      const Nf4Layout layout{tensors_[index].numel()};
      const CodedMatrix& matrix = *origins_[index].matrix;
      Record& record = records[origin];
      if (record.empty()) record = head_of(matrix, layout, scales);
      std::memcpy(record.data() + matrix.begin(layout) + first, elements, static_cast<size_t>(count));
      if (matrix.begin(layout) + first + count < layout.num_bytes()) return;
      decode(index, record, sink);
      records.erase(origin);
    });
  }

 private:
  io::Error error(const std::string& tensor, const std::string& detail) const {
    return io::Error(io::ErrorKind::kModel,
                     "[nf4] " + io::in_quotes(path_.native()) + ": tensor " + io::in_quotes(tensor) + ": " + detail);
  }

  void add(io::WeightTensor tensor, const Origin& origin) {
    tensors_.push_back(std::move(tensor));
    origins_.push_back(origin);
  }

  void add_matrix(const std::string& name, const std::vector<int64_t>& shape, const CodedMatrix& matrix) {
    add({name, shape, dtype_, std::string(io::name(dtype_))}, {matrix.codes, matrix});
    taken_.insert(matrix.codes);
    if (matrix.beside) taken_.insert(matrix.beside->begin(), matrix.beside->end());
  }

  // Of a checkpoint of ours: shapes are the configuration's.
  void matrices_of_records() {
    std::map<std::string, std::vector<int64_t>> shapes;
    for (const auto& [name, index] : by_name_) {
      if (!io::is_nf4_name(name)) continue;
      if (shapes.empty()) shapes = shapes_of_matrices(name);
      const std::string weight = io::weight_of_nf4(name);
      const auto shape = shapes.find(weight);
      const io::WeightTensor& stored = base_->tensors()[index];
      if (shape == shapes.end()) throw error(name, "got codes of a weight that the model's config.json does not have.");
      const Nf4Layout layout{shape->second[0] * shape->second[1]};
      if (stored.dtype != io::DType::U8 || stored.numel() != layout.num_bytes())
        throw error(name, "got " + std::to_string(stored.numel()) + " elements of " + stored.type + ", expected " +
                              std::to_string(layout.num_bytes()) + " bytes.");
      add_matrix(weight, shape->second, {.codes = index});
    }
  }

  std::map<std::string, std::vector<int64_t>> shapes_of_matrices(const std::string& name) const {
    if (!config_) throw error(name, "got codes without config.json, expected it: it says what they are codes of.");
    const models::DecoderConfig config = models::parse_decoder_config(*config_, path_.string());
    std::map<std::string, std::vector<int64_t>> shapes;
    const auto add_matrices = [&shapes](const std::vector<models::NamedShape>& parameters) {
      for (const models::NamedShape& each : parameters) {
        if (each.shape.size() == 2) shapes[each.name] = each.shape;
      }
    };
    add_matrices(models::outer_parameters(config));
    for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer)
      add_matrices(models::block_parameters(config, layer));
    return shapes;
  }

  void matrices_of_bitsandbytes() {
    std::vector<std::string> weights;
    const std::string state = suffix(Beside::kState);
    for (const auto& [name, index] : by_name_) {
      const size_t other = name.find(kAnyState);
      if (other != std::string::npos && !name.ends_with(state))
        throw error(name,
                    "got another type of codes than nf4, expected nf4. Load the model in its own program and save "
                    "it in bf16.");
      if (name.ends_with(state)) weights.push_back(name.substr(0, name.size() - state.size()));
    }
    const bool is_asked = is_said_to_be_of_bitsandbytes(*this);
    if (is_asked && weights.empty())
      throw error("*.weight" + state,
                  "got none, expected one for each weight in 4 bits (nf4 with double quantisation). "
                  "Load the model in its own program and save it in bf16.");
    for (const std::string& weight : weights) add_stored(weight);
  }

  size_t find(const std::string& name, io::DType dtype, int64_t numel) const {
    const auto found = by_name_.find(name);
    if (found == by_name_.end()) throw error(name, "got no such tensor, expected it: it belongs to codes.");
    const io::WeightTensor& tensor = base_->tensors()[found->second];
    if (tensor.dtype != dtype || tensor.numel() != numel)
      throw error(name, "got " + std::to_string(tensor.numel()) + " elements of " + tensor.type + ", expected " +
                            std::to_string(numel) + " of " + std::string(io::name(dtype)) +
                            ": nf4 with double quantisation in blocks of 64 is what is read.");
    return found->second;
  }

  void add_stored(const std::string& weight) {
    const size_t state = by_name_.at(weight + suffix(Beside::kState));
    if (const int64_t bytes = base_->tensors()[state].numel(); bytes > train::kMostStateBytes)
      throw error(base_->tensors()[state].name, "got " + std::to_string(bytes) + " elements, expected a short text.");
    train::WeightState said;
    try {
      const auto texts = read_whole({state});
      said = train::parse_state({texts.at(state).begin(), texts.at(state).end()});
    } catch (const std::invalid_argument& problem) {
      throw error(weight + suffix(Beside::kState), std::string(problem.what()) + ".");
    }
    const Nf4Layout layout{said.shape[0] * said.shape[1]};
    CodedMatrix matrix;
    matrix.codes = find(weight, io::DType::U8, (layout.numel + 1) / 2);
    matrix.mean = said.mean;
    matrix.beside.emplace();
    for (size_t i = 0; i < std::size(kBeside); ++i) {
      const auto [dtype, numel] = stored_part(kBeside[i], layout);
      (*matrix.beside)[i] = kBeside[i] == Beside::kState ? state : find(weight + suffix(kBeside[i]), dtype, numel);
    }
    add_matrix(weight, said.shape, matrix);
  }

  // Small tensors, by their place in the base.
  std::map<size_t, Record> read_whole(std::vector<size_t> wanted) const {
    std::sort(wanted.begin(), wanted.end());
    std::map<size_t, Record> tensors;
    base_->read(wanted, [&](size_t index, int64_t, int64_t count, const void* elements) {
      const auto* bytes = static_cast<const uint8_t*>(elements);
      Record& record = tensors[index];
      record.insert(record.end(), bytes,
                    bytes + static_cast<size_t>(count) * io::item_size(*base_->tensors()[index].dtype));
    });
    return tensors;
  }

  void check_values(const std::string& name, Beside map, const Record& stored) const {
    std::vector<float> values(stored.size() / sizeof(float));
    std::memcpy(values.data(), stored.data(), stored.size());
    try {
      train::check_map(map, values.data());
    } catch (const std::invalid_argument& problem) {
      throw error(name + suffix(map), std::string(problem.what()) + ".");
    }
  }

  // A record with all but its codes, as far as other tensors have it.
  Record head_of(const CodedMatrix& matrix, const Nf4Layout& layout, const std::map<size_t, Record>& scales) const {
    Record record(static_cast<size_t>(layout.num_bytes()));
    if (!matrix.beside) return record;
    const auto part = [&](Beside which) -> const Record& {
      return scales.at(matrix.beside->at(static_cast<size_t>(which)));
    };
    const std::string& name = base_->tensors()[matrix.codes].name;
    for (const Beside map : {Beside::kMap, Beside::kNestedMap}) check_values(name, map, part(map));
    std::copy(part(Beside::kNestedAbsmax).begin(), part(Beside::kNestedAbsmax).end(), record.begin());
    std::memcpy(record.data() + layout.mean(), &matrix.mean, sizeof matrix.mean);
    std::copy(part(Beside::kAbsmax).begin(), part(Beside::kAbsmax).end(), record.begin() + layout.block_scales());
    return record;
  }

  void decode(size_t index, const Record& record, const io::PieceSink& sink) const {
    const Nf4Layout layout{tensors_[index].numel()};
    std::vector<float> numbers;
    std::vector<char> rounded;
    for (int64_t first = 0; first < layout.numel; first += kDecodedPiece) {
      const int64_t count = std::min(kDecodedPiece, layout.numel - first);
      numbers.resize(static_cast<size_t>(count));
      kernels::raw::nf4_decode(record.data(), layout, first, count, numbers.data());
      if (dtype_ == io::DType::F32) {
        sink(index, first, count, numbers.data());
        continue;
      }
      rounded.resize(numbers.size() * io::item_size(dtype_));
      io::cast_elements(io::DType::F32, numbers.data(), dtype_, rounded.data(), count);
      sink(index, first, count, rounded.data());
    }
  }

  std::unique_ptr<io::WeightSource> base_;
  io::DType dtype_;
  std::map<std::string, size_t> by_name_;  // of the base
  std::set<size_t> taken_;                 // tensors of the base that are codes or belong to them
  std::vector<Origin> origins_;            // of tensors_
};

bool has_codes(const io::WeightSource& source) {
  const auto& tensors = source.tensors();
  return is_said_to_be_of_bitsandbytes(source) ||
         std::any_of(tensors.begin(), tensors.end(), [](const io::WeightTensor& tensor) {
           return io::is_nf4_name(tensor.name) || tensor.name.find(kAnyState) != std::string::npos;
         });
}

}  // namespace

std::unique_ptr<io::WeightSource> open_decoded_source(std::unique_ptr<io::WeightSource> source,
                                                      std::optional<io::DType> dtype) {
  if (!has_codes(*source)) return source;
  return std::make_unique<DecodedSource>(std::move(source), dtype ? io::DType::F32 : io::DType::BF16);
}

}  // namespace fsdp::app
