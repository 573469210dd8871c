// Training of adapters whose base rests as NF4 codes: against LibTorch alone on the decoded weights, over any number of
// ranks, and what it holds and sends.
#include <gtest/gtest.h>

#include <cstring>

#include "io/hub/model_folder_writer.h"
#include "io/weights/adapter.h"
#include "io/weights/nf4_names.h"
#include "kernels/products/nf4/nf4_linear.h"
#include "models/nf4_base.h"
#include "tests/io/temporary_folder.h"
#include "tests/train/model/tuning_run.h"
#include "train/model/nf4/stored_codes.h"

namespace fsdp::nf4_training_test {
namespace {

using testing::base_choice;
using testing::kTuningSeed;
using testing::run_ranks;
using testing::TuningPlan;
using testing::TuningRun;

TuningPlan nf4_plan(const std::string& base = "nf4") {
  TuningPlan plan;
  plan.tune.method = "lora";
  plan.tune.lora_rank = 3;
  plan.tune.lora_alpha = 7.5;
  plan.tune.base = base;
  return plan;
}

void round_to_codes(models::LinearImpl& linear) {
  const at::NoGradGuard no_grad;
  const at::Tensor codes = kernels::encode_nf4(linear.weight);
  linear.weight.copy_(kernels::decode_nf4(codes, linear.out_features(), linear.in_features(), at::kFloat));
}

// The base with its matrices as NF4 keeps them: the blocks' linear maps, or all.
models::Decoder decoded_base(const std::string& format) {
  models::Decoder base = testing::load_base();
  for (const auto& linear : models::linears_in_blocks(base)) round_to_codes(*linear.module);
  if (format == "nf4_all") round_to_codes(*models::Linear(base->embed_tokens()));  // the head, too
  return base;
}

struct PlainTraining {
  std::vector<double> losses;
  std::map<std::string, at::Tensor> adapters;
};

PlainTraining train_plainly(const TuningPlan& plan) {
  models::Decoder model = decoded_base(plan.tune.base);
  models::add_lora(model, *train::choose_tuning(plan.tune, base_choice()).lora, kTuningSeed);
  PlainTraining plain;
  std::vector<at::Tensor> trained;
  for (const auto& item : model->named_parameters()) {
    if (!item.value().requires_grad()) continue;
    trained.push_back(item.value());
    plain.adapters[item.key()] = item.value();
  }
  const auto nothing = [] {};
  plain.losses = testing::train_plainly(model, trained, nothing, nothing);
  return plain;
}

void expect_trains_like(const PlainTraining& plain, const TuningPlan& plan, int ranks) {
  run_ranks(ranks, [&](const World& world) {
    SCOPED_TRACE(c10::str("rank ", world.rank, " of ", ranks, ", ", plan.shard.strategy));
    TuningRun run(world, plan);
    for (const double expected : plain.losses) EXPECT_NEAR(run.step(), expected, 3e-6 * expected);
    testing::expect_slices(run.model(), plain.adapters, 1e-4);
  });
}

TEST(Nf4Training, TrainsLikeDecodedWeightsOnAnyNumberOfRanks) {
  const PlainTraining plain = train_plainly(nf4_plan());
  for (const int ranks : {1, 2, 4}) expect_trains_like(plain, nf4_plan(), ranks);
}

TEST(Nf4Training, TrainsLikeDecodedEmbeddingsAndHeadOnAnyNumberOfRanks) {
  const PlainTraining plain = train_plainly(nf4_plan("nf4_all"));
  for (const int ranks : {1, 2, 4}) expect_trains_like(plain, nf4_plan("nf4_all"), ranks);
}

TEST(Nf4Training, EveryStrategyAndRecompute) {
  for (const char* base : {"nf4", "nf4_all"}) {
    const PlainTraining plain = train_plainly(nf4_plan(base));
    for (const char* strategy : {"no_shard", "optim", "optim_grads", "hybrid"}) {
      TuningPlan plan = nf4_plan(base);
      plan.shard.strategy = strategy;
      plan.shard.replicas = plan.shard.strategy == "hybrid" ? 2 : 1;
      plan.recomputation.what = train::Recompute::kBlock;
      expect_trains_like(plain, plan, plan.shard.strategy == "hybrid" ? 4 : 2);
    }
  }
}

train::ShardedModel empty_model(const World& world, const std::string& base) {
  const TuningPlan plan = nf4_plan(base);
  models::Decoder whole(base_choice().config);
  train::zero_parameters(*whole);
  train::apply_tuning(train::choose_tuning(plan.tune, base_choice()), whole, kTuningSeed);
  return train::parallelize(whole, train::make_mesh(world, 1), train::shard_options(plan.shard));
}

// Each rank's slices of the codes are those of the whole weights' records.
TEST(Nf4Training, EachRankLoadsItsBytes) {
  const models::Decoder base = testing::load_base();
  run_ranks(3, [&](const World& world) {
    const train::ShardedModel model = empty_model(world, "nf4_all");
    const auto coded = models::coded_weights(model.decoder);
    train::load_weights(model, *base_choice().weights);
    size_t num_codes = 0;
    for (const auto& [name, leaf] : named_parameters(*model.decoder)) {
      if (!io::is_nf4_name(name)) continue;
      ++num_codes;
      const LocalRange range = local_range(leaf);
      const at::Tensor record = kernels::encode_nf4(base->named_parameters()[coded.at(name).name]);
      EXPECT_EQ(leaf.scalar_type(), at::kByte);
      EXPECT_TRUE(torch::equal(leaf.detach().flatten(), record.slice(0, range.begin, range.end))) << name;
    }
    EXPECT_EQ(num_codes, models::linears_in_blocks(base).size() + 1);
    EXPECT_EQ(train::num_parameters(model), [&] {
      int64_t count = 0;
      for (const auto& item : base->named_parameters()) count += item.value().numel();
      return count + train::trainable_size(model).parameters;
    }());
  });
}

// The base with its embeddings as some programs store them: codes, and what belongs to those beside them.
void write_with_coded_embeddings(const std::filesystem::path& folder) {
  using train::Beside;
  const std::string embedding = "model.embed_tokens.weight";
  const models::Decoder base = testing::load_base();
  const at::Tensor weight = base->named_parameters()[embedding], record = kernels::encode_nf4(weight);
  const kernels::raw::Nf4Layout layout{weight.numel()};
  const auto* bytes = record.const_data_ptr<uint8_t>();
  float mean = 0;
  std::memcpy(&mean, bytes + layout.mean(), sizeof mean);
  const std::string state = train::state_text(weight.sizes().vec(), mean);
  const std::pair<Beside, const void*> parts[] = {{Beside::kAbsmax, bytes + layout.block_scales()},
                                                  {Beside::kNestedAbsmax, bytes},
                                                  {Beside::kNestedMap, kernels::raw::nf4_scale_values()},
                                                  {Beside::kMap, kernels::raw::nf4_values()},
                                                  {Beside::kState, state.data()}};
  std::vector<io::TensorDeclaration> tensors = {{embedding, io::DType::U8, {weight.numel() / 2, 1}}};
  for (const auto& [part, data] : parts) {
    const auto [dtype, numel] = train::stored_part(part, layout);
    tensors.push_back({embedding + train::suffix(part), dtype, {numel}});
  }
  for (const auto& item : base->named_parameters()) {
    if (item.key() != embedding) tensors.push_back({item.key(), io::DType::F32, item.value().sizes().vec()});
  }
  io::ModelFolderWriter writer(folder, tensors, 0);
  writer.write(embedding, 0, weight.numel() / 2, bytes + layout.codes());
  for (const auto& [part, data] : parts)
    writer.write(embedding + train::suffix(part), 0, train::stored_part(part, layout).numel, data);
  for (const auto& item : base->named_parameters()) {
    if (item.key() == embedding) continue;
    writer.write(item.key(), 0, item.value().numel(), item.value().contiguous().const_data_ptr<float>());
  }
  writer.commit();
  std::filesystem::copy(testing::base_folder() / "config.json", folder);
}

// Codes that files have of embeddings are taken as they are, or refused where these are to be numbers.
TEST(Nf4Training, CodesOfEmbeddingsAreNeverTakenForNumbers) {
  const io::TemporaryFolder place;
  write_with_coded_embeddings(place.path());
  const io::ModelFolder folder = io::ModelFolder::open(place.path());
  run_ranks(1, [&](const World& world) {
    const train::ShardedModel coded = empty_model(world, "nf4_all"), expected = empty_model(world, "nf4_all");
    train::load_weights(coded, folder);
    train::load_weights(expected, *base_choice().weights);
    const auto actual = named_parameters(*coded.decoder);
    for (size_t i = 0; const auto& [name, leaf] : named_parameters(*expected.decoder))
      EXPECT_TRUE(torch::equal(actual[i++].second.detach(), leaf.detach())) << name;
    for (const char* base : {"nf4", "bf16"}) {
      try {
        train::load_weights(empty_model(world, base), folder);
        ADD_FAILURE() << base;
      } catch (const io::Error& error) {
        const std::string what = error.what();
        EXPECT_NE(what.find("model.embed_tokens.weight"), std::string::npos) << what;
        EXPECT_NE(what.find("tune.base = \"nf4_all\""), std::string::npos) << what;
      }
    }
  });
}

// By the runtime's account: bytes of codes are a seventh of fp32's and less, and so is what is gathered of them. With
// embeddings and head that is the whole base, norms in fp32 and all.
TEST(Nf4Training, HoldsAndGathersTheBytesOfCodes) {
  run_ranks(2, [&](const World& world) {
    int64_t held[3] = {}, whole_base[3] = {}, gathered[3] = {};
    const char* const bases[] = {"bf16", "nf4", "nf4_all"};  // the first: of fp32 here
    for (size_t coded = 0; coded < 3; ++coded) {
      TuningRun run(world, nf4_plan(bases[coded]));
      run.step();
      run.model().root.reset_counters();
      run.step();
      for (const auto& [name, leaf] : named_parameters(*run.model().decoder)) {
        const bool is_map = name.find("_proj.weight") != std::string::npos;
        if (is_map) held[coded] += static_cast<int64_t>(leaf.nbytes());
        if (!io::is_adapter_name(name)) whole_base[coded] += static_cast<int64_t>(leaf.nbytes());
      }
      gathered[coded] = run.model().root.counters().gather_bytes;
    }
    const double ratio = static_cast<double>(held[1]) / static_cast<double>(held[0]);
    EXPECT_LT(ratio, 0.16);
    EXPECT_GT(ratio, 0.125);
    EXPECT_EQ(held[2], held[1]);
    EXPECT_LT(static_cast<double>(whole_base[2]), 0.16 * static_cast<double>(whole_base[0]));
    if (testing::one_copy_of_weights()) return;  // nothing is gathered
    EXPECT_LT(gathered[1], gathered[0]);
    EXPECT_LT(gathered[2], gathered[1]);
  });
}

}  // namespace
}  // namespace fsdp::nf4_training_test
