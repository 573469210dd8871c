#include "fsdp/checkpoint/archive/archive.h"

#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/serialization/export.h>
#include <torch/nn/module.h>
#include <torch/serialize/archive.h>

#include <functional>
#include <memory>
#include <new>
#include <vector>

#include "fsdp/base/backstage.h"
#include "fsdp/base/check.h"
#include "fsdp/checkpoint/archive/archive_file.h"
#include "fsdp/checkpoint/archive/archive_import.h"
#include "fsdp/checkpoint/archive/archive_skeleton.h"
#include "fsdp/checkpoint/archive/main_weight_feed.h"
#include "fsdp/checkpoint/archive/stand_ins.h"
#include "fsdp/checkpoint/outcome.h"
#include "fsdp/checkpoint/state/module_tensors.h"
#include "fsdp/group/cut.h"
#include "fsdp/group/group_owner.h"
#include "io/base/error.h"

namespace fsdp {
namespace {

void refuse_parts(const ModuleTensors& module, const char* operation) {
  FSDP_CHECK(module.owner->spans_world(), "[", operation,
             "] module: got a stage of a pipeline, expected a whole model: modules write and read what they are. Use ",
             "checkpoint::save(), or full_state_dict().");
  for (const ModuleTensor& tensor : module.tensors) {
    FSDP_CHECK(
        !registry::find_cut(*tensor.tensor), "[", operation, "] '", tensor.name,
        "' is cut over ranks (tensor parallelism), expected a parameter that is sharded only: modules write and ",
        "read the shapes they have. Use checkpoint::save(), or full_state_dict().");
  }
}

using WriteModule = std::function<void(const ArchiveSink&)>;

// The archive of the module as if nothing were sharded. Memory i of the skeleton is tensor i of the module.
ArchiveSkeleton draw(const ModuleTensors& module, const std::string& path, const WriteModule& write) {
  StandIns stand_ins;
  std::vector<MemoryRange> memory;
  for (const ModuleTensor& tensor : module.tensors) {
    if (tensor.member || tensor.dtype() != tensor.tensor->scalar_type()) {
      memory.push_back(stand_ins.emplace_back(*tensor.tensor, tensor.sizes(), tensor.dtype()).memory());
    } else {
      memory.push_back({tensor.tensor->storage().data(), tensor.tensor->storage().nbytes()});
    }
  }
  try {
    return {write, memory};
  } catch (const Error&) {
    throw;
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& error) {
    FSDP_THROW(kUsage, "[save] ", io::in_quotes(path), ": the module's save() got \"", one_line(error),
               "\". Check that torch::save() can write the module before it is sharded.");
  }
}

// Rank 0's part of save().
void write_file(const ModuleTensors& module, const std::string& path, const WriteModule& write, MainWeightFeed& feed) {
  ArchiveFile file(path);
  const ArchiveSkeleton skeleton = draw(module, path, write);
  for (const ArchiveSkeleton::Record& record : skeleton.records()) {
    if (!record.memory) {
      const auto [data, num_bytes] = skeleton.content(record);
      file.add(record.name, data.get(), num_bytes, record.compressed);
      continue;
    }
    const ModuleTensor& tensor = module.tensors[*record.memory];
    if (tensor.member) {
      const at::Tensor whole = feed.take(*tensor.member);
      file.add(record.name, whole.const_data_ptr(), whole.nbytes());
    } else if (tensor.dtype() != tensor.tensor->scalar_type()) {
      const at::Tensor values = tensor.saved().contiguous();
      file.add(record.name, values.const_data_ptr(), values.nbytes());
    } else {
      file.add(record.name, tensor.tensor->storage().data(), tensor.tensor->storage().nbytes());
    }
  }
  file.commit();
}

void save(const ModuleTensors& module, const std::string& path, const WriteModule& write) {
  const Backstage backstage;
  const World& world = module.owner->world();
  refuse_parts(module, "save");
  run_on_every_rank(world, [&] { module.owner->on_library_entry(); });
  MainWeightFeed feed(world, module.groups);
  run_on_every_rank(world, [&] {
    if (world.rank == 0) {
      feed.lead([&] { write_file(module, path, write, feed); });
    } else {
      feed.serve();
    }
  });
}

// This rank's part of `stored` goes where the tensor's values are. In place: what is made from a main weight sees by
// its version that it changed, also where this rank's part is empty.
void take_over(const ModuleTensor& tensor, const at::Tensor& stored, const LazyArchive& file) {
  if (!tensor.member) {
    at::Tensor(*tensor.tensor).copy_(stored);
    return;
  }
  tensor.member->group->begin_main_weight_write();
  const layout::Range range = tensor.member->group->main_slice(tensor.member->index);
  at::Tensor leaf = tensor.member->group->leaf(tensor.member->index);
  leaf.copy_(file.slice(stored, range.begin, range.end));
}

void load(const ModuleTensors& module, const std::string& path, const ImportTensors& import) {
  const Backstage backstage;
  refuse_parts(module, "load");
  const World& world = module.owner->world();
  std::vector<at::Tensor> held;  // a module's own load() may drop its tensors
  for (const ModuleTensor& tensor : module.tensors) held.push_back(*tensor.tensor);
  std::unique_ptr<LazyArchive> file;
  std::vector<at::Tensor> stored;
  run_on_every_rank(world, [&] {
    module.owner->on_library_entry();
    file = std::make_unique<LazyArchive>(path);
    stored = import(*file);
    check_fit(module, stored, *file);
  });
  run_on_every_rank(world, [&] {
    for (size_t i = 0; i < stored.size(); ++i) {
      if (stored[i].defined()) take_over(module.tensors[i], stored[i], *file);
    }
  });
}

}  // namespace

void save(const torch::nn::Module& module, const std::string& path) {
  save(tensors_of(module, "save"), path, [&](const ArchiveSink& sink) {
    // As torch::save() does it.
    torch::serialize::OutputArchive archive(std::make_shared<torch::jit::CompilationUnit>());
    module.save(archive);
    archive.save_to(sink);
  });
}

void save(const torch::jit::Module& module, const std::string& path) {
  save(tensors_of(module, "save"), path, [&](const ArchiveSink& sink) { torch::jit::ExportModule(module, sink); });
}

void load(torch::nn::Module& module, const std::string& path) {
  const ModuleTensors tensors = tensors_of(module, "load");
  load(tensors, path, [&](LazyArchive& file) { return import_into(module, tensors, file); });
}

void load(torch::jit::Module& module, const std::string& path) {
  const ModuleTensors tensors = tensors_of(module, "load");
  load(tensors, path, [&](LazyArchive& file) { return import_script(tensors, file); });
}

}  // namespace fsdp
