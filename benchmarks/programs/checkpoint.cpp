// The state of a sharded Llama with AdamW (weights and two moments, fp32), saved and loaded by the ranks this was
// started with, beside the bare disk and a bare copy of as many bytes. Rank 0 prints one line of JSON: seconds of the
// slowest rank. benchmarks/peer/checkpoint_dcp.py does the same with torch.distributed.checkpoint.
//
//   fsdp launch --nproc 2 -- checkpoint save --folder F     then load and restart from F/step-1, at any number of ranks
#include <fsdp/fsdp.h>
#include <sys/mman.h>
#include <torch/torch.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "benchmarks/support/command_line.h"
#include "benchmarks/support/measure.h"
#include "benchmarks/support/peer_inputs.h"
#include "benchmarks/support/rank_clock.h"
#include "benchmarks/support/raw_disk.h"
#include "fsdp/optim/flat_parameters.h"
#include "models/decoder.h"

namespace fsdp::benchmarks::checkpoint_program {
namespace {

namespace fs = std::filesystem;
constexpr int64_t kBytesPerParameter = 12;

struct Options {
  std::string action;
  fs::path folder;
  std::vector<int64_t> shape = {32000, 512, 8, 1536, 8, 4};  // vocabulary, hidden, layers, FFN, heads, key heads
  int times = 2;
  int threads = 0;      // of each rank's writer; 0: the library's choice
  int64_t tokens = 16;  // of the step after a restart, per rank
  bool warm = false;    // load from the page cache too
};

models::DecoderConfig config_of(const Options& options) {
  models::DecoderConfig config;
  config.vocab_size = options.shape[0];
  config.hidden_size = options.shape[1];
  config.num_hidden_layers = options.shape[2];
  config.intermediate_size = options.shape[3];
  config.num_attention_heads = options.shape[4];
  config.num_key_value_heads = options.shape[5];
  config.head_dim = 64;
  config.rms_norm_eps = 1e-5;
  return config;
}

// Anonymous memory in huge pages, as a snapshot has it.
class CopyTarget {
 public:
  explicit CopyTarget(int64_t bytes) : bytes_(static_cast<size_t>(bytes)) {
    void* memory = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    madvise(memory, bytes_, MADV_HUGEPAGE);
    data_ = static_cast<char*>(memory);
  }
  ~CopyTarget() { munmap(data_, bytes_); }
  CopyTarget(const CopyTarget&) = delete;
  CopyTarget& operator=(const CopyTarget&) = delete;

  void copy(const std::vector<at::Tensor>& tensors) {
    char* out = data_;
    for (const at::Tensor& tensor : tensors) {
      std::memcpy(out, tensor.const_data_ptr(), tensor.nbytes());
      out += tensor.nbytes();
    }
  }

 private:
  size_t bytes_;
  char* data_ = nullptr;
};

// Since this process exists: the 22nd field of its status counts ticks from the start of the system.
double seconds_since_start() {
  std::ifstream file("/proc/self/stat");
  std::string text{std::istreambuf_iterator<char>(file), {}};
  std::istringstream fields(text.substr(text.rfind(')') + 1));
  std::string field;
  for (int i = 3; i <= 22; ++i) fields >> field;
  double uptime = 0;
  std::ifstream("/proc/uptime") >> uptime;
  return uptime - std::stod(field) / static_cast<double>(sysconf(_SC_CLK_TCK));
}

class Bench : public RankClock {
 public:
  Bench(const World& world, const Options& options) : RankClock(world), options_(options) {}

  // Without `path`, and with nothing left for the disk to do.
  void clean(const fs::path& path) const {
    on_rank0([&] {
      fs::remove_all(path);
      ::sync();
    });
  }

  fs::path saved() const { return options_.folder / "step-1"; }
  const Options& options() const { return options_; }

 private:
  Options options_;
};

// As many bytes as the state has, dealt out evenly.
nlohmann::json measure_raw(const Bench& bench) {
  const int64_t numel = models::num_parameters(config_of(bench.options()));
  const int64_t bytes = kBytesPerParameter * numel / bench.world().size;
  const fs::path folder = bench.options().folder / "raw";
  const fs::path file = folder / std::to_string(bench.world().rank);
  nlohmann::json result = {{"bytes", bytes * bench.world().size}};
  for (const int threads : {1, 2}) {
    for (const bool reserved : {false, true}) {
      bench.clean(folder);
      fs::create_directories(folder);
      if (threads == 1 && !reserved) write_raw(file, 1, {}), fs::remove(file);  // fills the memory it writes from
      const std::string name = std::to_string(threads) + (reserved ? " reserved" : "");
      result["write"][name] = bench.seconds([&] { write_raw(file, bytes, {threads, true, reserved}); });
    }
  }
  for (const int threads : {1, 2}) {
    for (const bool direct : {true, false}) {
      bench.clean({});
      drop_from_cache(folder);
      const std::string name = std::to_string(threads) + (direct ? " direct" : " cached");
      result["read"][name] = bench.seconds([&] { read_raw(file, {threads, direct, false}); });
    }
  }
  bench.clean(folder);
  return result;
}

// A model of zeros that no rank ever has whole.
class Training {
 public:
  explicit Training(const Bench& bench) : bench_(bench), config_(config_of(bench.options())) {
    model_ = deferred([&] {
      const at::NoGradGuard no_grad;
      models::Decoder model(config_);
      for (at::Tensor& parameter : model->parameters()) parameter.zero_();
      return model;
    });
    const Mesh mesh = Mesh::shard(bench_.world());
    const auto modules = model_->named_modules();
    fully_shard(*modules["model.embed_tokens"], mesh);
    for (const auto& layer : *model_->layers()) fully_shard(*layer, mesh);
    fully_shard(*modules["lm_head"], mesh);
    fully_shard(*model_, mesh);
    optimizer_.emplace(decay_groups(*model_, /*weight_decay=*/0.1), AdamWOptions{.lr = 1e-3});
  }

  checkpoint::State state() { return {*model_, *optimizer_}; }

  // This rank's part of weights and moments. Makes the moments.
  std::vector<at::Tensor> tensors() {
    std::vector<at::Tensor> result;
    FlatParameters& flat = optimizer_->flat_parameters();
    for (const at::Tensor& leaf : flat.leaves()) {
      result.push_back(leaf.detach());
      for (const LeafStateTensor& moment : flat.states_of(leaf)) result.push_back(moment.tensor);
    }
    return result;
  }

  // As if it had been trained.
  void fill() {
    uint64_t seed = static_cast<uint64_t>(bench_.world().rank) << 32;
    for (const at::Tensor& tensor : tensors()) {
      fill_random(static_cast<float*>(tensor.data_ptr()), tensor.numel(), seed);
      seed += uint64_t{1} << 48;
    }
    FlatParameters& flat = optimizer_->flat_parameters();
    for (const at::Tensor& leaf : flat.leaves()) flat.set_steps_of(leaf, 1);
    optimizer_->set_num_steps(1);
  }

  void clear() {
    for (const at::Tensor& tensor : tensors()) tensor.zero_();
  }

  // Tells a state that was loaded from one that was not.
  double sum() {
    at::Tensor total = at::zeros({1}, at::kDouble);
    for (const at::Tensor& tensor : tensors()) total += tensor.sum(at::kDouble);
    return sum_over_ranks(bench_.world(), total).item<double>();
  }

  void step() {
    const int64_t length = bench_.options().tokens;
    const at::Tensor ids = make_tokens(length, bench_.world().rank, config_.vocab_size);
    const at::Tensor loss = model_->loss(ids.narrow(0, 0, length).unsqueeze(0), ids.narrow(0, 1, length));
    loss.backward();
    optimizer_->step();
    if (!std::isfinite(loss.item<double>())) throw std::runtime_error("the loss after the restart is not finite");
  }

 private:
  const Bench& bench_;
  models::DecoderConfig config_;
  models::Decoder model_{nullptr};
  std::optional<AdamW> optimizer_;
};

nlohmann::json measure_save(const Bench& bench) {
  Training training(bench);
  training.fill();
  nlohmann::json result = {{"sum", training.sum()}};
  checkpoint::SaverOptions options;
  options.writing = checkpoint::SaverOptions::Writing::kBlocking;
  options.threads = bench.options().threads;
  for (int i = 0; i < bench.options().times; ++i) {
    bench.clean(bench.saved());
    checkpoint::Saver saver(bench.world(), bench.options().folder, options);
    result["save"].push_back(bench.seconds([&] {
      saver.start(1, training.state());
      result["bytes"] = saver.finish().bytes;
    }));
  }
  return result;
}

// One save more than asked for: the first one makes the memory that the others use again.
nlohmann::json measure_async(const Bench& bench) {
  Training training(bench);
  training.fill();
  const std::vector<at::Tensor> tensors = training.tensors();
  int64_t bytes = 0;
  for (const at::Tensor& tensor : tensors) bytes += static_cast<int64_t>(tensor.nbytes());
  const fs::path root = bench.options().folder / "async";
  checkpoint::SaverOptions options;
  options.keep_last = 1;
  options.threads = bench.options().threads;
  checkpoint::Saver saver(bench.world(), root, options);
  CopyTarget target(bytes);
  nlohmann::json result;
  for (int i = 0; i <= bench.options().times; ++i) {
    bench.clean({});
    result["copy"].push_back(bench.seconds([&] { target.copy(tensors); }));
    Stopwatch whole;
    result["start"].push_back(bench.seconds([&] { saver.start(i, training.state()); }));
    while (!saver.written()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    result["finish"].push_back(bench.seconds([&] { result["bytes"] = saver.finish().bytes; }));
    result["total"].push_back(bench.largest(whole.lap() / 1e3));
  }
  bench.clean(root);
  return result;
}

nlohmann::json measure_load(const Bench& bench) {
  Training training(bench);
  nlohmann::json result;
  const auto load = [&](const char* name) {
    result[name].push_back(bench.seconds([&] { checkpoint::load(bench.saved(), training.state()); }));
    result["sums"].push_back(training.sum());
  };
  // The first one makes the moments.
  for (int i = 0; i <= bench.options().times; ++i) {
    if (i > 0) training.clear();
    bench.clean({});
    drop_from_cache(bench.saved());
    load(i == 0 ? "first" : "cold");
  }
  for (int i = 0; bench.options().warm && i < bench.options().times; ++i) {
    training.clear();
    bring_into_cache(bench.saved());
    load("warm");
  }
  return result;
}

nlohmann::json measure_restart(const Bench& bench) {
  nlohmann::json result = {{"start", bench.largest(seconds_since_start())}};
  Stopwatch watch;
  Training training(bench);
  result["build"] = bench.largest(watch.lap() / 1e3);
  checkpoint::load(bench.saved(), training.state());
  result["load"] = bench.largest(watch.lap() / 1e3);
  training.step();
  result["step"] = bench.largest(watch.lap() / 1e3);
  result["total"] = bench.largest(seconds_since_start());
  return result;
}

const std::map<std::string, nlohmann::json (*)(const Bench&)> kActions = {{"raw", measure_raw},
                                                                          {"save", measure_save},
                                                                          {"async", measure_async},
                                                                          {"load", measure_load},
                                                                          {"restart", measure_restart}};

Options parse(int argc, char** argv) {
  Options options;
  CLI::App app("Times checkpoints of a Llama with AdamW; see scripts/bench.sh checkpoint");
  app.add_option("action", options.action, "raw, save, async, load or restart")
      ->required()
      ->check(CLI::IsMember({"raw", "save", "async", "load", "restart"}));
  app.add_option("--folder", options.folder, "on the disk that is measured")->required();
  app.add_option("--shape", options.shape, "vocabulary, hidden, layers, FFN, heads, key heads")->expected(6);
  app.add_option("--times", options.times, "how often")->check(CLI::PositiveNumber);
  app.add_option("--threads", options.threads, "writers of each rank; 0: the library's choice");
  app.add_option("--tokens", options.tokens, "of the step after a restart, per rank")->check(CLI::PositiveNumber);
  app.add_flag("--warm", options.warm, "load from the page cache too");
  parse_or_exit(app, argc, argv);
  return options;
}

}  // namespace

int run(int argc, char** argv) {
  const Options options = parse(argc, argv);
  const World world = init();
  at::set_num_threads(1);
  const Bench bench(world, options);
  bench.report(kActions.at(options.action)(bench));
  return 0;
}

}  // namespace fsdp::benchmarks::checkpoint_program
