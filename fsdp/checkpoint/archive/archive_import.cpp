#include "fsdp/checkpoint/archive/archive_import.h"

#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/serialization/import.h>
#include <torch/nn/module.h>
#include <torch/serialize/archive.h>

#include <map>
#include <memory>
#include <string>

#include "fsdp/base/check.h"
#include "fsdp/checkpoint/archive/stand_ins.h"
#include "fsdp/checkpoint/outcome.h"

namespace fsdp {
namespace {

using StoredTensors = std::map<std::string, at::Tensor>;

Error missing(const std::string& name, const StoredTensors& stored, const LazyArchive& file) {
  return {ErrorCode::kCheckpoint,
          c10::str("[load] '", name, "': got no such tensor among the ", stored.size(), " of ",
                   io::in_quotes(file.path()), ", expected one. Load a file of the same model.")};
}

const at::Tensor* find(const StoredTensors& stored, const std::string& name) {
  const auto found = stored.find(name);
  return found == stored.end() ? nullptr : &found->second;
}

// Reads all of the file but what the names of sharded parameters say.
void read_what_is_not_sharded(const ModuleTensors& module, const StoredTensors& stored, LazyArchive& file) {
  std::vector<at::Tensor> sharded;
  for (const ModuleTensor& tensor : module.tensors) {
    const at::Tensor* found = tensor.member ? find(stored, tensor.name) : nullptr;
    if (found != nullptr) sharded.push_back(*found);
  }
  file.read_all_but(sharded);
}

void collect(torch::serialize::InputArchive& archive, const std::string& prefix, StoredTensors& stored) {
  for (const std::string& key : archive.keys()) {
    c10::IValue value;
    if (!archive.try_read(key, value)) continue;
    torch::serialize::InputArchive inner;
    if (value.isTensor()) {
      if (value.toTensor().defined()) stored.emplace(prefix + key, value.toTensor());
    } else if (value.isObject() && archive.try_read(key, inner)) {
      collect(inner, prefix + key + ".", stored);
    }
  }
}

// Runs a part of LibTorch that reads the file.
template <class Action>
auto reading(const LazyArchive& file, Action action) {
  try {
    return action();
  } catch (const io::Error&) {
    throw;
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    throw file.no_archive(error);
  }
}

void open(torch::serialize::InputArchive& archive, LazyArchive& file) {
  const std::function<size_t(uint64_t, void*, size_t)> read = [&file](uint64_t position, void* out, size_t num_bytes) {
    return static_cast<const LazyArchive&>(file).read(position, out, num_bytes);
  };
  const std::function<size_t()> size = [&file] { return file.size(); };
  reading(file, [&] { archive.load_from(read, size, c10::Device(c10::kCPU)); });
}

// The module's own code reads, into tensors that look like those of the file: LibTorch would take the bytes of another
// dtype for its own.
void run_load(torch::nn::Module& module, torch::serialize::InputArchive& archive, const ModuleTensors& tensors,
              const StoredTensors& stored, const LazyArchive& file) {
  try {
    module.load(archive);
  } catch (const io::Error&) {
    throw;
  } catch (const std::exception& error) {
    for (const ModuleTensor& tensor : tensors.tensors) {
      if (find(stored, tensor.name) == nullptr) throw missing(tensor.name, stored, file);
    }
    throw Error(ErrorCode::kCheckpoint, c10::str("[load] ", io::in_quotes(file.path()), ": the module's load() got \"",
                                                 one_line(error), "\". Load a file of the same model."));
  }
}

}  // namespace

std::vector<at::Tensor> import_into(torch::nn::Module& module, const ModuleTensors& tensors, LazyArchive& file) {
  torch::serialize::InputArchive archive;
  open(archive, file);
  StoredTensors stored;
  collect(archive, "", stored);
  read_what_is_not_sharded(tensors, stored, file);
  StandIns stand_ins;
  for (const ModuleTensor& tensor : tensors.tensors) {
    const at::Tensor* found = find(stored, tensor.name);
    stand_ins.emplace_back(*tensor.tensor, tensor.sizes(), found != nullptr ? found->scalar_type() : tensor.dtype());
  }
  run_load(module, archive, tensors, stored, file);
  std::vector<at::Tensor> result;
  for (size_t i = 0; i < tensors.tensors.size(); ++i) {
    const ModuleTensor& tensor = tensors.tensors[i];
    const bool untouched = stand_ins[i].holds_tensor();
    result.push_back(untouched ? at::Tensor() : tensor.tensor->variable_data());
    FSDP_CHECK(!untouched || find(stored, tensor.name) == nullptr, "[load] '", tensor.name, "': got a load() of the ",
               "module that does not take it as it is in ", io::in_quotes(file.path()),
               ", expected one that does. Load the file before fully_shard().");
  }
  return result;
}

std::vector<at::Tensor> import_script(const ModuleTensors& tensors, LazyArchive& file) {
  // Does not own: LibTorch's reader is gone when it returns.
  const std::shared_ptr<caffe2::serialize::ReadAdapterInterface> adapter(&file, [](auto*) {});
  const torch::jit::Module module = reading(file, [&] { return torch::jit::load(adapter, c10::Device(c10::kCPU)); });
  StoredTensors stored;
  for (const auto& item : module.named_parameters()) stored.emplace(item.name, item.value);
  for (const auto& item : module.named_buffers()) stored.emplace(item.name, item.value);
  read_what_is_not_sharded(tensors, stored, file);
  std::vector<at::Tensor> result;
  for (const ModuleTensor& tensor : tensors.tensors) {
    const at::Tensor* found = find(stored, tensor.name);
    if (found == nullptr || !found->defined()) throw missing(tensor.name, stored, file);
    result.push_back(*found);
  }
  return result;
}

void check_fit(const ModuleTensors& module, const std::vector<at::Tensor>& stored, LazyArchive& file) {
  for (size_t i = 0; i < stored.size(); ++i) {
    if (!stored[i].defined()) continue;
    const ModuleTensor& tensor = module.tensors[i];
    const std::vector<int64_t> sizes = tensor.sizes();
    if (stored[i].sizes() != at::IntArrayRef(sizes)) {
      FSDP_THROW(kCheckpoint, "[load] '", tensor.name, "' in ", io::in_quotes(file.path()), ": got shape ",
                 stored[i].sizes(), ", expected ", at::IntArrayRef(sizes), ". Load a file of the same model.");
    }
    if (c10::isComplexType(stored[i].scalar_type()) && !c10::isComplexType(tensor.dtype())) {
      FSDP_THROW(kCheckpoint, "[load] '", tensor.name, "' in ", io::in_quotes(file.path()), ": got dtype ",
                 stored[i].scalar_type(), ", expected ", tensor.dtype(), ". Load a file of the same model.");
    }
    // It may share its record with a sharded one.
    if (!tensor.member || !stored[i].is_contiguous()) file.read(stored[i]);
  }
}

}  // namespace fsdp
