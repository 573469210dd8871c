#include <chrono>
#include <memory>
#include <set>
#include <string>

#include "fsdp/base/backstage.h"
#include "fsdp/base/check.h"
#include "fsdp/base/fault_point.h"
#include "fsdp/checkpoint/checkpoint.h"
#include "fsdp/checkpoint/loader.h"
#include "fsdp/checkpoint/outcome.h"
#include "fsdp/checkpoint/unclaimed.h"
#include "fsdp/comm/collectives.h"
#include "io/base/error.h"
#include "io/checkpoint/checkpoint_folder.h"

namespace fsdp::checkpoint {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

// A checkpoint that cannot be read, as opposed to one that does not fit: an older one may do.
struct Damaged {
  std::string reason;
};

template <class Action>
void unless_damaged(const Action& action) {
  try {
    action();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kCheckpoint) throw;
    throw Damaged{error.what()};
  }
}

// COLLECTIVE. Throws Damaged on every rank, or Error.
LoadReport load_from(const fs::path& folder, const Sections& sections) {
  const auto begin = Clock::now();
  const World& world = sections.world();
  std::unique_ptr<Loader> loader;
  fault_point("resume.begin");
  unless_damaged([&] { run_on_every_rank(world, [&] { loader = std::make_unique<Loader>(world, folder); }); });
  run_on_every_rank(world, [&] { loader->request(sections); });
  const std::set<std::string> surplus = unclaimed(world, loader->not_asked_for(sections));
  run_on_every_rank(world, [&] { loader->check_fit(surplus); });
  unless_damaged([&] { run_on_every_rank(world, [&] { loader->read(sections); }); });
  run_on_every_rank(world, [&] { loader->finish(sections); });
  fault_point("resume.done");
  return {loader->manifest().step, loader->manifest().world_size, loader->bytes(),
          std::chrono::duration<double>(Clock::now() - begin).count()};
}

void enter(const Sections& sections) {
  run_on_every_rank(sections.world(), [&] { sections.enter_library(); });
}

}  // namespace

LoadReport load(const fs::path& folder, const State& state) {
  const Backstage backstage;
  const Sections sections(state, "checkpoint");
  enter(sections);
  try {
    return load_from(folder, sections);
  } catch (const Damaged& damaged) {
    throw Error(ErrorCode::kCheckpoint, damaged.reason);
  }
}

std::optional<LoadReport> resume(const fs::path& root, const State& state, const PassedOver& passed_over) {
  const Backstage backstage;
  const Sections sections(state, "checkpoint");
  enter(sections);
  const World& world = sections.world();
  // Rank 0's list: a network file system may show others an older one.
  std::string names;
  run_on_every_rank(world, [&] {
    if (world.rank != 0) return;
    for (const io::CheckpointPlace& place : io::list_checkpoints(root)) names += place.path.filename().string() + "\n";
  });
  names = broadcast_string(world, names);
  std::string reasons;
  for (size_t begin = 0; begin < names.size();) {
    const size_t end = names.find('\n', begin);
    const fs::path folder = root / names.substr(begin, end - begin);
    begin = end + 1;
    try {
      return load_from(folder, sections);
    } catch (const Damaged& damaged) {
      reasons += " " + damaged.reason;
      if (passed_over && world.rank == 0) passed_over(folder, damaged.reason);
    }
  }
  if (names.empty()) return std::nullopt;
  FSDP_THROW(kCheckpoint, "[checkpoint] ", io::in_quotes(root.string()), ": got no checkpoint that is whole, expected ",
             "one. Restore one, or choose another folder to start anew. What was tried:", reasons);
}

int64_t verify(const fs::path& folder, int threads) {
  try {
    const io::CheckpointManifest manifest = io::read_manifest(folder);
    io::verify_chunks(folder, manifest, 0, 1, threads);
    int64_t bytes = 0;
    for (const io::CheckpointFile& file : manifest.files) bytes += static_cast<int64_t>(file.bytes);
    return bytes;
  } catch (const io::Error& error) {
    throw Error(error.kind() == io::ErrorKind::kFileSystem ? ErrorCode::kFileSystem : ErrorCode::kCheckpoint,
                error.what());
  }
}

}  // namespace fsdp::checkpoint
