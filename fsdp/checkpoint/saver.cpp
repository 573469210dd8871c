#include <ATen/ATen.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <future>
#include <nlohmann/json.hpp>
#include <random>

#include "fsdp/base/backstage.h"
#include "fsdp/base/block_signals.h"
#include "fsdp/base/check.h"
#include "fsdp/base/fault_point.h"
#include "fsdp/buffer/disk_memory.h"
#include "fsdp/checkpoint/checked_files.h"
#include "fsdp/checkpoint/checkpoint.h"
#include "fsdp/checkpoint/collected_state.h"
#include "fsdp/checkpoint/file_names.h"
#include "fsdp/checkpoint/host_arena.h"
#include "fsdp/checkpoint/outcome.h"
#include "fsdp/comm/collectives.h"
#include "io/base/error.h"
#include "io/checkpoint/checkpoint_folder.h"
#include "kernels/raw/flat/stores.h"

namespace fsdp::checkpoint {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
using nlohmann::json;

// Some hash and copy while the disk works for the others.
constexpr int kDefaultThreads = 4;

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  char text[32];
  std::strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

// A snapshot is read by the disk: training finds its own data in the cache after it.
void copy_past_cache(void* to, const void* from, size_t bytes) {
  kernels::raw::copy_bytes(static_cast<std::byte*>(to), static_cast<const std::byte*>(from),
                           static_cast<int64_t>(bytes), kernels::raw::Stores::kPastCache);
}

// State on a disk has no room for a snapshot: it goes from file to file.
void copy_and_let_go(void* to, const void* from, size_t bytes) {
  io::copy_bytes(to, from, bytes);
  write_behind(from, static_cast<int64_t>(bytes));
}

std::string random_token() {
  std::random_device random;
  const uint64_t high = random();
  return io::hash_text(io::Hash128{0, high << 32 | random()}).substr(16);
}

// How one rank tells of its file.
std::string encode_file(const io::CheckpointFile& file) {
  json chunks = json::array();
  for (const io::Hash128& hash : file.chunks) chunks.push_back({hash.high, hash.low});
  return json{{"name", file.name}, {"bytes", file.bytes}, {"chunks", chunks}}.dump();
}

io::CheckpointFile decode_file(const std::string& text) {
  const json object = json::parse(text);
  io::CheckpointFile file{object["name"], object["bytes"], {}};
  for (const json& hash : object["chunks"]) file.chunks.push_back({hash[0], hash[1]});
  return file;
}

// Changes the disk, but only notes what is to be removed.
class PostponedRemovals : public io::FileOps {
 public:
  void make_folder(const fs::path& folder) override { files_.make_folder(folder); }
  std::unique_ptr<io::OutputFile> create(const fs::path& path, io::WriteMode mode) override {
    return files_.create(path, mode);
  }
  void rename(const fs::path& from, const fs::path& to) override { files_.rename(from, to); }
  bool exchange(const fs::path& a, const fs::path& b) override { return files_.exchange(a, b); }
  void remove_all(const fs::path& path) override { noted.push_back(path); }
  void sync_folder(const fs::path& folder) override { files_.sync_folder(folder); }

  std::vector<fs::path> noted;

 private:
  io::FileOps& files_ = checked_files();
};

}  // namespace

// One save at a time, from start() to finish().
struct Saver::Work {
  Work(World world, fs::path root, SaverOptions options)
      : world(std::move(world)), root(std::move(root)), options(options) {}

  void start(int64_t step, const State& state);
  SaveReport finish();
  std::string clean_up();

  World world;
  fs::path root;
  SaverOptions options;

  bool in_flight = false;
  int64_t step = 0;
  Clock::time_point begin;
  double stalled_seconds = 0;
  fs::path staging;
  std::map<std::string, std::map<std::string, std::string>> values;
  std::optional<io::FileImage> image;
  HostArena arena;  // the file, composed; kept for the next save
  std::future<io::CheckpointFile> file;
  std::future<void> removal;  // of old checkpoints whose names are gone

 private:
  void update_plan(const CollectedState& collected);
  std::vector<const void*> sources_of(const CollectedState& collected) const;
  void write(const std::vector<const void*>& sources, bool is_streamed);
  void commit(const std::vector<std::string>& files);
  void prune();
  void abandon() noexcept;
  int num_threads() const { return options.threads > 0 ? options.threads : kDefaultThreads; }

  std::string own_rows_;  // what the plan was made from
  WritePlan plan_;
};

// The ranks' tables rarely change: then nothing but a flag travels.
void Saver::Work::update_plan(const CollectedState& collected) {
  std::string rows;
  run_on_every_rank(world, [&] { rows = encode(collected.rows()); });
  const bool changed = rows != own_rows_ || plan_.num_ranks() == 0;
  const std::vector<std::string> flags = gather_strings(world, changed ? "1" : "0");
  if (std::find(flags.begin(), flags.end(), "1") == flags.end()) return;
  std::vector<std::vector<SliceRow>> tables;
  for (const std::string& table : gather_strings(world, rows)) tables.push_back(decode(table));
  run_on_every_rank(world, [&] {
    plan_ = WritePlan(tables);
    image.emplace(plan_.ranges_of(world.rank));
  });
  own_rows_ = rows;
}

std::vector<const void*> Saver::Work::sources_of(const CollectedState& collected) const {
  std::map<std::string, const TensorSlice*> slices;
  for (const TensorSlice& slice : collected.slices) slices[slice.name] = &slice;
  std::vector<const void*> sources;
  for (const io::FlatRange& range : image->ranges()) {
    const TensorSlice& slice = *slices.at(range.name);
    sources.push_back(static_cast<const char*>(slice.data.const_data_ptr()) +
                      (range.begin - slice.begin) * static_cast<int64_t>(io::item_size(range.dtype)));
  }
  return sources;
}

void Saver::Work::start(int64_t new_step, const State& state) {
  FSDP_CHECK(!in_flight, "[checkpoint] start: got a save of step ", new_step, " while that of step ", step,
             " is in flight, expected finish() first.");
  const Backstage backstage;
  begin = Clock::now();
  fault_point("save.begin");
  const Sections sections(state, "checkpoint");
  CollectedState collected;
  run_on_every_rank(world, [&] {
    FSDP_CHECK(new_step >= 0, "[checkpoint] step: got ", new_step, ", expected at least 0.");
    sections.enter_library();
    collected = collect(sections);
  });
  collected.resolve_replicas(world);
  update_plan(collected);
  const std::string token = broadcast_string(world, random_token());
  run_on_every_rank(world, [&] {
    if (world.rank != 0) return;
    if (removal.valid()) removal.wait();  // the new one may need the room
    staging = io::start_checkpoint(checked_files(), root, new_step, token);
  });
  staging = broadcast_string(world, staging.string());
  step = new_step;
  values = std::move(collected.values);
  in_flight = true;
  const bool is_streamed = std::any_of(collected.slices.begin(), collected.slices.end(),
                                       [](const TensorSlice& slice) { return is_on_disk(slice.data); });
  write(sources_of(collected), is_streamed);
  stalled_seconds = seconds_since(begin);
}

// Whatever fails here is told in finish(), where all ranks hear it.
void Saver::Work::write(const std::vector<const void*>& sources, bool is_streamed) {
  const fs::path path = staging / file_name(world.rank, world.size);
  std::promise<io::CheckpointFile> done;
  file = done.get_future();
  try {
    fault_point("save.snapshot");
    if (options.writing == SaverOptions::Writing::kBlocking || is_streamed) {
      fault_point("save.write");
      const auto copy = is_streamed ? copy_and_let_go : io::copy_bytes;
      done.set_value(io::write_image(checked_files(), path, *image, sources, num_threads(), copy));
      return;
    }
    arena.resize(image->bytes());
    image->compose(sources, 0, image->bytes(), arena.data(), copy_past_cache);
    file = std::async(std::launch::async, [this, path] {
      block_signals();
      fault_point("save.write");
      return io::write_image(checked_files(), path, *image, arena.data(), num_threads());
    });
  } catch (...) {
    done.set_exception(std::current_exception());
  }
}

SaveReport Saver::Work::finish() {
  FSDP_CHECK(in_flight, "[checkpoint] finish: got no save in flight, expected start() before.");
  const Backstage backstage;
  const auto stall_begin = Clock::now();
  in_flight = false;
  io::CheckpointFile written;
  try {
    run_on_every_rank(world, [&] { written = file.get(); });
  } catch (...) {
    abandon();
    throw;
  }
  fault_point("save.written");
  const std::vector<std::string> files = gather_strings(world, encode_file(written));
  fault_point("save.gathered");
  // If this fails in the middle, the folder may hold what was there before: remove_leftovers() knows.
  run_on_every_rank(world, [&] {
    if (world.rank == 0) commit(files);
  });
  fault_point("save.committed");
  SaveReport report{step, 0, seconds_since(begin), stalled_seconds + seconds_since(stall_begin), ""};
  at::Tensor bytes = at::full({1}, static_cast<int64_t>(written.bytes), at::kLong);
  report.bytes = sum_over_ranks(world, bytes).item<int64_t>();
  return report;
}

void Saver::Work::commit(const std::vector<std::string>& files) {
  io::CheckpointManifest manifest;
  manifest.step = step;
  manifest.world_size = world.size;
  manifest.created = utc_now();
  manifest.writer = "fsdp " FSDP_VERSION;
  manifest.values = values;
  for (const std::string& each : files) manifest.files.push_back(decode_file(each));
  manifest.tensors = plan_.tensors();
  fault_point("save.manifest");
  io::commit_checkpoint(checked_files(), staging, io::manifest_text(manifest), root, step);
}

// Names vanish now. To give back a file's blocks takes about as long as to copy the state: threads that write behind do
// that behind, too. A failure there is thrown the next time.
void Saver::Work::prune() {
  const io::KeepPolicy policy{options.keep_last, options.keep_every, step};
  if (options.writing == SaverOptions::Writing::kBlocking) {
    io::prune_checkpoints(checked_files(), root, policy);
    return;
  }
  PostponedRemovals files;
  io::prune_checkpoints(files, root, policy);
  std::future<void> before = std::move(removal);
  if (!files.noted.empty()) {
    removal = std::async(std::launch::async, [paths = std::move(files.noted)] {
      block_signals();
      for (const fs::path& path : paths) checked_files().remove_all(path);
    });
  }
  if (before.valid()) before.get();
}

// The checkpoint is safe already: what goes wrong here is no failure of the save.
std::string Saver::Work::clean_up() {
  try {
    io::write_latest_hint(checked_files(), root, step);
    prune();
    fault_point("save.pruned");
    return "";
  } catch (const io::Error& error) {
    return error.what();
  }
}

// What cannot be removed now, remove_leftovers() finds later.
void Saver::Work::abandon() noexcept {
  if (world.rank != 0) return;
  try {
    io::system_files().remove_all(staging);
  } catch (const std::exception&) {
  }
}

Saver::Saver(World world, fs::path root, SaverOptions options)
    : work_(std::make_unique<Work>(std::move(world), std::move(root), options)) {}

Saver::~Saver() {
  if (work_->file.valid()) work_->file.wait();
  if (work_->removal.valid()) work_->removal.wait();
}

void Saver::start(int64_t step, const State& state) { work_->start(step, state); }

bool Saver::in_flight() const { return work_->in_flight; }

bool Saver::written() const {
  return work_->in_flight && work_->file.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
}

SaveReport Saver::finish() {
  SaveReport report = work_->finish();
  report.cleanup_failure = broadcast_string(work_->world, work_->world.rank == 0 ? work_->clean_up() : "");
  return report;
}

SaveReport save(const fs::path& folder, const State& state) {
  const int64_t step = step_of(folder);
  SaverOptions options;
  options.keep_last = 0;
  options.writing = SaverOptions::Writing::kBlocking;
  const Sections sections(state, "checkpoint");
  const World& world = sections.world();
  const fs::path root = folder.has_parent_path() ? folder.parent_path() : fs::path(".");
  Saver saver(world, root, options);
  saver.start(step, state);
  return saver.finish();
}

}  // namespace fsdp::checkpoint
