// Steps of a stack of linear maps whose state is in memory or on a disk, beside the bare disk that moves as many bytes.
// Every run of one shape prints the same losses and the same digest of weights: `--in-memory` says what they must be.
// Rank 0 prints one line of JSON.
//
//   fsdp launch --nproc 2 -- disk_offload --folder F --layers 24 --width 1024
#include <fsdp/fsdp.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "benchmarks/support/command_line.h"
#include "benchmarks/support/measure.h"
#include "benchmarks/support/rank_clock.h"
#include "benchmarks/support/raw_disk.h"
#include "fsdp/buffer/disk_memory.h"
#include "fsdp/optim/flat_parameters.h"

namespace fsdp::benchmarks::disk_offload_program {
namespace {

namespace fs = std::filesystem;

struct Options {
  fs::path folder;
  bool in_memory = false;
  int64_t layers = 24;
  int64_t width = 1024;
  int64_t rows = 16;
  int64_t steps = 20;
  int64_t save_at = 0;  // a checkpoint after so many steps; 0: none
  int64_t resume_from = 0;
  bool raw = false;
};

// Each block 2 width^2 weights.
struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(int64_t width)
      : up(register_module("up", torch::nn::Linear(torch::nn::LinearOptions(width, width).bias(false)))),
        down(register_module("down", torch::nn::Linear(torch::nn::LinearOptions(width, width).bias(false)))) {}
  torch::Tensor forward(const torch::Tensor& x) { return x + down(torch::relu(up(x))); }
  torch::nn::Linear up, down;
};
TORCH_MODULE(Block);

struct StackImpl : torch::nn::Module {
  explicit StackImpl(const Options& options) : layers(register_module("layers", torch::nn::ModuleList())) {
    for (int64_t i = 0; i < options.layers; ++i) layers->push_back(Block(options.width));
  }
  torch::Tensor forward(torch::Tensor x) {
    for (const auto& layer : *layers) x = layer->as<Block>()->forward(x);
    return x;
  }
  torch::nn::ModuleList layers;
};
TORCH_MODULE(Stack);

// "RssAnon" and the like, of this process, in bytes.
int64_t status_bytes(const std::string& field) {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind(field + ":", 0) == 0) return std::stoll(line.substr(field.size() + 1)) * 1024;
  }
  return 0;
}

class Training {
 public:
  Training(const World& world, const Options& options) : world_(world), options_(options) {
    torch::manual_seed(7);
    model_ = deferred([&] { return Stack(options); });
    ShardOptions sharding;
    if (!options.in_memory) {
      sharding.main_weights = MainWeights::kOnDisk;
      sharding.offload_folder = options.folder;
    }
    const Mesh mesh = Mesh::shard(world);
    for (const auto& layer : *model_->layers) fully_shard(*layer, mesh, sharding);
    fully_shard(*model_, mesh, sharding);
    optimizer_.emplace(parameters(*model_), AdamWOptions{.lr = 1e-3});
  }

  checkpoint::State state() { return {*model_, *optimizer_}; }

  double step(int64_t number) {
    auto generator = at::detail::createCPUGenerator(static_cast<uint64_t>(1000 * number + world_.rank));
    const torch::Tensor rows = torch::randn({options_.rows, options_.width}, generator);
    const torch::Tensor loss = model_->forward(rows).square().mean();
    loss.backward();
    peak_anonymous_ = std::max(peak_anonymous_, status_bytes("RssAnon"));
    const GradNorm norm = grad_norm(parameters(*model_), 1.0);
    optimizer_->step(norm.factor);
    zero_grad(*model_);
    peak_anonymous_ = std::max(peak_anonymous_, status_bytes("RssAnon"));
    return loss.item<double>();
  }

  // Of this rank's weights and moments, bit by bit.
  uint64_t digest() {
    uint64_t hash = 14695981039346656037ULL;
    FlatParameters& flat = optimizer_->flat_parameters();
    for (const torch::Tensor& leaf : parameters(*model_)) {  // in the model's order, which is every run's
      hash = mixed(hash, leaf.detach());
      for (const LeafStateTensor& moment : flat.states_of(leaf)) hash = mixed(hash, moment.tensor);
    }
    return hash;
  }

  int64_t state_bytes() const {
    int64_t bytes = optimizer_->state_bytes();
    for (const torch::Tensor& leaf : parameters(*model_)) bytes += 2 * static_cast<int64_t>(leaf.nbytes());
    return bytes;
  }
  int64_t peak_anonymous() const { return peak_anonymous_; }

 private:
  static uint64_t mixed(uint64_t hash, const torch::Tensor& tensor) {
    const auto* words = static_cast<const uint32_t*>(tensor.const_data_ptr());
    for (int64_t i = 0; i < tensor.numel(); ++i) hash = (hash ^ words[i]) * 1099511628211ULL;
    write_behind(tensor);
    return hash;
  }

  World world_;
  Options options_;
  Stack model_{nullptr};
  std::optional<AdamW> optimizer_;
  int64_t peak_anonymous_ = 0;
};

// What a step has to move: weights are read for the forward, the backward and the update, gradients for the norm and
// the update, moments for the update; everything is written once.
struct Moved {
  int64_t read, written;
};
Moved moved_by_step(int64_t state_bytes) {
  const int64_t each = state_bytes / 4;
  return {7 * each, 4 * each};
}

// The bare disk, in the best of the ways known: a file that has its blocks, past the page cache, in pieces of 16 MiB in
// memory that lies in huge pages, nothing forced to survive a power failure. Reads and writes mixed by one thread and
// by two, or first all reads and then all writes.
class RawDisk {
 public:
  RawDisk(const RankClock& clock, fs::path file, const Moved& moved)
      : clock_(clock), file_(std::move(file)), moved_(moved) {
    fs::remove(file_);
    write_raw(file_, moved.written, {.threads = 1, .direct = true, .reserved = true});
  }
  ~RawDisk() { fs::remove(file_); }
  RawDisk(const RawDisk&) = delete;
  RawDisk& operator=(const RawDisk&) = delete;

  void measure() {
    const double mixed = seconds(moved_.read, moved_.written, 1), shared = seconds(moved_.read, moved_.written, 2);
    const double apart = seconds(moved_.read, 0, 1) + seconds(0, moved_.written, 1);
    seconds_.push_back(std::min({mixed, shared, apart}));
  }
  const std::vector<double>& found() const { return seconds_; }

 private:
  double seconds(int64_t read, int64_t written, int threads) {
    return clock_.seconds([&] { mix_raw(file_, read, written, {.threads = threads}); });
  }

  const RankClock& clock_;
  fs::path file_;
  Moved moved_;
  std::vector<double> seconds_;
};

double lower_quartile(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 4];
}

fs::path step_folder(const Options& options, int64_t step) { return options.folder / ("step-" + std::to_string(step)); }

nlohmann::json measure(const World& world, const Options& options) {
  const RankClock clock(world);
  Training training(world, options);
  nlohmann::json result = {{"in_memory", options.in_memory}, {"ranks", world.size}};
  int64_t first = 0;
  if (options.resume_from > 0)
    first = checkpoint::load(step_folder(options, options.resume_from), training.state()).step;
  std::optional<RawDisk> raw;
  std::vector<double> seconds;
  for (int64_t i = first; i < options.steps; ++i) {
    double loss = 0;
    seconds.push_back(clock.seconds([&] { loss = training.step(i); }));
    if (options.raw && !raw) {  // now that there are moments
      raw.emplace(clock, options.folder / ("raw-" + std::to_string(world.rank)), moved_by_step(training.state_bytes()));
    }
    if (raw) raw->measure();
    result["losses"].push_back(loss);
    if (i + 1 == options.save_at) {
      result["save_s"] = clock.seconds([&] { checkpoint::save(step_folder(options, i + 1), training.state()); });
    }
  }
  result["step_s"] = seconds;
  result["state_bytes"] = static_cast<int64_t>(clock.largest(static_cast<double>(training.state_bytes())));
  result["peak_anonymous_bytes"] = static_cast<int64_t>(clock.largest(static_cast<double>(training.peak_anonymous())));
  result["digest"] = training.digest();
  if (raw && seconds.size() > 1) {
    seconds.erase(seconds.begin());  // makes the moments
    result["raw_s"] = raw->found();
    result["share_of_raw"] = lower_quartile(raw->found()) / lower_quartile(seconds);
  }
  return result;
}

Options parse(int argc, char** argv) {
  Options options;
  CLI::App app("Times steps whose weights, gradients and moments are on a disk");
  app.add_option("--folder", options.folder, "on the disk that is measured")->required();
  app.add_flag("--in-memory", options.in_memory, "the same steps with everything in memory");
  app.add_option("--layers", options.layers, "units")->check(CLI::PositiveNumber);
  app.add_option("--width", options.width, "2 width^2 weights a unit")->check(CLI::PositiveNumber);
  app.add_option("--rows", options.rows, "of input, per rank")->check(CLI::PositiveNumber);
  app.add_option("--steps", options.steps, "in all")->check(CLI::PositiveNumber);
  app.add_option("--save-at", options.save_at, "checkpoint step-N of this folder after so many steps");
  app.add_option("--resume-from", options.resume_from, "begin with that checkpoint");
  app.add_flag("--raw", options.raw, "after each step the bare disk, and the share of its speed: lower quartiles");
  parse_or_exit(app, argc, argv);
  return options;
}

}  // namespace

int run(int argc, char** argv) {
  const Options options = parse(argc, argv);
  const World world = init();
  at::set_num_threads(1);
  RankClock(world).report(measure(world, options));
  return 0;
}

}  // namespace fsdp::benchmarks::disk_offload_program
