#include "fsdp/checkpoint/collected_state.h"

#include <ATen/ATen.h>

#include <array>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "fsdp/base/check.h"
#include "fsdp/comm/collectives.h"

namespace fsdp::checkpoint {
namespace {

constexpr std::array<std::pair<at::ScalarType, io::DType>, 13> kDTypes = {{
    {at::kBool, io::DType::BOOL},
    {at::kByte, io::DType::U8},
    {at::kChar, io::DType::I8},
    {at::kShort, io::DType::I16},
    {at::kInt, io::DType::I32},
    {at::kLong, io::DType::I64},
    {at::kHalf, io::DType::F16},
    {at::kBFloat16, io::DType::BF16},
    {at::kFloat, io::DType::F32},
    {at::kDouble, io::DType::F64},
    {at::kFloat8_e4m3fn, io::DType::F8_E4M3},
    {at::kFloat8_e5m2, io::DType::F8_E5M2},
    {at::kUInt16, io::DType::U16},
}};

class Collector : public StateSink {
 public:
  Collector(CollectedState& state, std::string section) : state_(state), section_(std::move(section)) {}

  void slice(TensorSlice slice) override {
    slice.name = section_ + "/" + slice.name;
    slice.data = slice.data.cpu().contiguous();
    FSDP_ASSERT(slice.data.numel() == slice.end - slice.begin, "'", slice.name, "' has ", slice.data.numel(),
                " elements for ", slice.begin, " to ", slice.end);
    state_.slices.push_back(std::move(slice));
  }

  void replica(const std::string& name, const at::Tensor& tensor) override {
    state_.replicas.push_back(
        {section_ + "/" + name, tensor.sizes().vec(), 0, tensor.numel(), tensor.detach().cpu().contiguous().view(-1)});
  }

  void value(const std::string& key, const std::string& text) override { state_.values[section_][key] = text; }

 private:
  CollectedState& state_;
  std::string section_;
};

}  // namespace

io::DType stored_dtype(at::ScalarType dtype, const std::string& tensor) {
  for (const auto& [torch, stored] : kDTypes) {
    if (torch == dtype) return stored;
  }
  FSDP_THROW(kUsage, "[checkpoint] '", tensor, "': got dtype ", dtype,
             ", expected a real floating point or integer one. Save it as a view of another dtype.");
}

at::ScalarType torch_dtype(io::DType dtype) {
  for (const auto& [torch, stored] : kDTypes) {
    if (stored == dtype) return torch;
  }
  FSDP_THROW(kCheckpoint, "[checkpoint] got a tensor of dtype ", std::string(io::name(dtype)),
             ", expected one that LibTorch has.");
}

void CollectedState::resolve_replicas(const World& world) {
  std::map<std::string, std::string> hashes;
  for (const TensorSlice& replica : replicas) {
    hashes[replica.name] = io::hash_text(io::hash128(replica.data.const_data_ptr(), replica.data.nbytes()));
  }
  std::set<std::string> differing;
  for (const std::string& text : gather_strings(world, nlohmann::json(hashes).dump())) {
    const std::map<std::string, std::string> others = nlohmann::json::parse(text);
    for (const auto& [name, hash] : hashes) {
      const auto other = others.find(name);  // a rank with other stages has other tensors
      if (other != others.end() && other->second != hash) differing.insert(name);
    }
  }
  for (TensorSlice& replica : replicas) {
    if (differing.count(replica.name) > 0) replica.name += "#" + std::to_string(world.rank);
    slices.push_back(std::move(replica));
  }
  replicas.clear();
}

std::vector<SliceRow> CollectedState::rows() const {
  std::vector<SliceRow> rows;
  for (const TensorSlice& slice : slices) {
    rows.push_back(
        {slice.name, stored_dtype(slice.data.scalar_type(), slice.name), slice.shape, slice.begin, slice.end});
  }
  return rows;
}

CollectedState collect(const Sections& sections) {
  CollectedState state;
  for (const auto& [name, part] : sections.list()) {
    Collector collector(state, name);
    part->save(collector);
  }
  return state;
}

}  // namespace fsdp::checkpoint
