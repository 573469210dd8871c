#include "train/generate/generation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "fsdp/base/error.h"
#include "io/base/error.h"
#include "models/lora.h"
#include "tests/io/temporary_folder.h"
#include "tests/train/model/model_files.h"
#include "train/generate/generated_text.h"
#include "train/model/inference_model.h"

namespace fsdp::train {
namespace {

models::Decoder tiny_model(at::ScalarType dtype = at::kFloat) {
  models::Decoder model(small_config(), at::TensorOptions().dtype(dtype));
  model->reset_parameters(3);
  return model;
}

struct Result {
  std::vector<int64_t> ids;
  Finish finish = Finish::kContext;
};

// Runs all requests together, so many rows at a time.
std::vector<Result> run(models::Decoder model, std::vector<GenerationRequest> requests,
                        const GenerationOptions& options = {}) {
  std::vector<Result> results(requests.size());
  Generator generator(std::move(model), options);
  for (size_t i = 0; i < requests.size(); ++i) {
    requests[i].on_token = [&results, i](int64_t id) {
      results[i].ids.push_back(id);
      return Verdict::kContinue;
    };
    requests[i].on_finish = [&results, i](Finish why) { results[i].finish = why; };
    generator.add(std::move(requests[i]));
  }
  while (generator.has_work()) generator.step();
  return results;
}

GenerationRequest request_of(std::vector<int64_t> prompt, const SamplingOptions& sampling, int64_t max_tokens = 12) {
  return {.prompt = std::move(prompt), .stop_ids = {}, .sampling = sampling, .max_tokens = max_tokens};
}

TEST(Generation, GreedyEqualsTheFullForward) {
  models::Decoder model = tiny_model();
  std::vector<int64_t> all = prompt_of(40, 1);
  const auto cached = run(model, {request_of(all, {.temperature = 0}, 30)});
  const at::NoGradGuard no_grad;
  for (int i = 0; i < 30; ++i) {
    const at::Tensor logits_BTV = model->forward(at::tensor(all, at::kLong).unsqueeze(0));
    all.push_back(logits_BTV.select(0, 0).select(0, -1).argmax().item<int64_t>());
  }
  EXPECT_EQ(cached[0].ids, std::vector<int64_t>(all.begin() + 40, all.end()));
  EXPECT_EQ(cached[0].finish, Finish::kMaxTokens);
}

// Random draws from nearly flat distributions: any difference in a logit would show.
TEST(Generation, ARowIsTheSameInAnyBatch) {
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    std::vector<GenerationRequest> requests;
    for (int64_t i = 0; i < 13; ++i) {
      requests.push_back(request_of(prompt_of(1 + 7 * i % 60, i),
                                    {.temperature = i % 3 == 0 ? 0.0 : 1.5,
                                     .top_k = i % 4 == 0 ? 20 : 0,
                                     .top_p = i % 5 == 0 ? 0.8 : 1.0,
                                     .repetition_penalty = i % 2 == 0 ? 1.3 : 1.0,
                                     .seed = static_cast<uint64_t>(i)},
                                    5 + 11 * i % 40));
    }
    const auto together = run(tiny_model(dtype), requests, {.num_rows = 13});
    const auto by_four = run(tiny_model(dtype), requests, {.num_rows = 4});
    for (size_t i = 0; i < requests.size(); ++i) {
      const auto alone = run(tiny_model(dtype), {requests[i]}, {.num_rows = 1});
      EXPECT_EQ(alone[0].ids, together[i].ids) << dtype << " row " << i;
      EXPECT_EQ(alone[0].ids, by_four[i].ids) << dtype << " row " << i;
      EXPECT_EQ(static_cast<int64_t>(alone[0].ids.size()), requests[i].max_tokens);
    }
  }
}

TEST(Generation, PromptsReadTogetherHaveTheLogitsThatTheyHaveAlone) {
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    models::Decoder model = tiny_model(dtype);
    const std::vector<std::vector<std::vector<int64_t>>> passes = {
        {prompt_of(40, 1), prompt_of(16, 2), prompt_of(130, 3)}, {prompt_of(15, 4), prompt_of(1, 5), prompt_of(15, 6)}};
    for (const auto& prompts : passes) {
      models::KeyValueCache together(4);
      const at::Tensor logits_PV = model->read_prompts(prompts, together, {2, 0, 3});
      const std::vector<int64_t> places = {2, 0, 3};
      for (size_t i = 0; i < prompts.size(); ++i) {
        models::KeyValueCache alone(1);
        const at::Tensor logits_1V = model->read_prompts({prompts[i]}, alone, {0});
        EXPECT_TRUE(at::equal(logits_PV.narrow(0, static_cast<int64_t>(i), 1), logits_1V)) << dtype << " " << i;
        EXPECT_EQ(together.num_tokens(places[i]), static_cast<int64_t>(prompts[i].size()));
        const at::Tensor whole_1TV = model->forward(at::tensor(prompts[i], at::kLong).unsqueeze(0));
        const at::Tensor difference = (whole_1TV.select(1, whole_1TV.size(1) - 1) - logits_1V).to(at::kFloat).abs();
        EXPECT_LE(difference.max().item<float>(), dtype == at::kFloat ? 1e-4 : 0.1);
      }
      EXPECT_EQ(together.num_tokens(1), 0);
      EXPECT_THROW(model->read_prompts(prompts, together, {0, 1, 2}), c10::Error);  // rows 0 and 2 have tokens
    }
    models::KeyValueCache cache(3);
    EXPECT_THROW(model->read_prompts({prompt_of(15, 1), prompt_of(16, 2)}, cache, {0, 1}), c10::Error);
    EXPECT_THROW(model->read_prompts({prompt_of(15, 1), prompt_of(15, 2), prompt_of(3, 3)}, cache, {0, 1, 2}),
                 c10::Error);
    EXPECT_EQ(cache.num_tokens(0), 0);
  }
}

TEST(Generation, LogitsOfARowAreTheSameBitForBit) {
  models::Decoder model = tiny_model();
  const at::NoGradGuard no_grad;
  models::KeyValueCache many(3), one(1);
  const at::Tensor prompt = at::tensor(prompt_of(21, 2), at::kLong).unsqueeze(0);
  model->forward_cached(at::tensor(prompt_of(5, 9), at::kLong).unsqueeze(0), many, {0});
  model->forward_cached(prompt, many, {2});
  model->forward_cached(prompt, one);
  for (int64_t id = 0; id < 200; ++id) {
    const at::Tensor two = model->forward_cached(at::tensor({id, id + 1}, at::kLong).unsqueeze(1), many, {0, 2});
    const at::Tensor alone = model->forward_cached(at::tensor({id + 1}, at::kLong).unsqueeze(1), one);
    ASSERT_TRUE(at::equal(two.narrow(0, 1, 1), alone)) << id;
  }
  EXPECT_EQ(many.num_tokens(0), 205);
  EXPECT_EQ(many.num_tokens(1), 0);
  EXPECT_EQ(many.num_tokens(2), 221);
}

TEST(Generation, SeedDecides) {
  const auto ids = [](uint64_t seed) { return run(tiny_model(), {request_of({1, 2}, {.seed = seed}, 30)})[0].ids; };
  EXPECT_EQ(ids(4), ids(4));
  EXPECT_NE(ids(4), ids(5));
}

TEST(Generation, StopsAtAStopIdAndWhenTold) {
  const auto free_run = run(tiny_model(), {request_of({1, 2, 3}, {.temperature = 0})})[0].ids;
  GenerationRequest request = request_of({1, 2, 3}, {.temperature = 0});
  request.stop_ids = {free_run[4]};
  const auto stopped = run(tiny_model(), {request})[0];
  EXPECT_EQ(stopped.finish, Finish::kStopId);
  EXPECT_EQ(std::count(stopped.ids.begin(), stopped.ids.end(), free_run[4]), 0);
  EXPECT_LE(stopped.ids.size(), 4u);

  Generator generator(tiny_model(), {});
  int count = 0;
  Finish why = Finish::kContext;
  request.stop_ids.clear();
  request.on_token = [&](int64_t) { return ++count == 3 ? Verdict::kStop : Verdict::kContinue; };
  request.on_finish = [&](Finish reason) { why = reason; };
  generator.add(request);
  while (generator.has_work()) generator.step();
  EXPECT_EQ(count, 3);
  EXPECT_EQ(why, Finish::kStopped);
}

TEST(Generation, EndsWhereTheContextEnds) {
  const auto result = run(tiny_model(), {request_of(prompt_of(10, 0), {}, 1000)}, {.context = 32})[0];
  EXPECT_EQ(result.finish, Finish::kContext);
  EXPECT_EQ(result.ids.size(), 22u);
  EXPECT_EQ(run(tiny_model(), {request_of(prompt_of(511, 0), {}, 1000)})[0].ids.size(), 1u);
}

TEST(Generation, ReusedPrefixesGiveTheSameTokens) {
  models::Decoder model = tiny_model();
  Generator generator(model, {.num_rows = 1, .prefixes = Prefixes::kReuse});
  std::vector<int64_t> talk = prompt_of(30, 5);
  for (int turn = 0; turn < 4; ++turn) {
    GenerationRequest request = request_of(talk, {.temperature = 0}, 8);
    const auto fresh = run(model, {request})[0].ids;
    std::vector<int64_t> ids;
    request.on_token = [&](int64_t id) {
      ids.push_back(id);
      return Verdict::kContinue;
    };
    generator.add(std::move(request));
    while (generator.has_work()) generator.step();
    EXPECT_EQ(ids, fresh) << turn;
    talk.insert(talk.end(), ids.begin(), ids.end());
    talk.insert(talk.end(), {7, 8, 9});
  }
  EXPECT_LT(generator.num_prompt_tokens(), 30 + 3 * 5) << "what was read before was read again";
}

// Two adapters on every map of the blocks, far from each other.
std::shared_ptr<models::TokenAdapters> serve_two(models::Decoder& model) {
  constexpr int64_t kRank = 4;
  const auto waves = [](int64_t rows, int64_t columns, double step) {
    return at::sin(at::arange(rows * columns, at::kFloat) * step).view({rows, columns}) * 0.3;
  };
  auto tokens = std::make_shared<models::TokenAdapters>();
  for (const models::NamedLinear& linear : models::linears_in_blocks(model)) {
    auto served = std::make_shared<models::ServedMap>(tokens);
    for (const int64_t number : {0, 1}) {
      const double step = 1.3 + 0.4 * static_cast<double>(number);
      served->add(number, {waves(kRank, linear.module->in_features(), step),
                           waves(linear.module->out_features(), kRank, 2 * step),
                           /*scale=*/1,
                           {}});
    }
    linear.module->serve(std::move(served));
  }
  return tokens;
}

// What one adapter made of a text is no beginning of what another makes of it.
TEST(Generation, PrefixesOfAnotherAdapterAreReadAgain) {
  models::Decoder model = tiny_model();
  const auto adapters = serve_two(model);
  const std::vector<int64_t> prompt = prompt_of(30, 5);
  Generator generator(model, {.num_rows = 1, .prefixes = Prefixes::kReuse, .adapters = adapters});
  std::vector<std::vector<int64_t>> said;
  for (const int64_t adapter : {int64_t{0}, int64_t{1}, models::TokenAdapters::kNone, int64_t{1}}) {
    GenerationRequest request = request_of(prompt, {.temperature = 0}, 8);
    request.adapter = adapter;
    const auto fresh = run(model, {request}, {.num_rows = 1, .adapters = adapters})[0].ids;
    std::vector<int64_t>& ids = said.emplace_back();
    request.on_token = [&ids](int64_t id) {
      ids.push_back(id);
      return Verdict::kContinue;
    };
    generator.add(std::move(request));
    while (generator.has_work()) generator.step();
    EXPECT_EQ(ids, fresh) << adapter;
  }
  EXPECT_NE(said[0], said[1]);
  EXPECT_NE(said[1], said[2]);
  EXPECT_EQ(generator.num_prompt_tokens(), 4 * 30);
  GenerationRequest again = request_of(prompt, {.temperature = 0}, 8);
  again.adapter = 1;
  generator.add(std::move(again));
  while (generator.has_work()) generator.step();
  EXPECT_EQ(generator.num_prompt_tokens(), 4 * 30 + 1) << "what this adapter read before was read again";
}

TEST(Generation, RefusesWhatCannotWork) {
  Generator generator(tiny_model(), {.context = 16});
  EXPECT_THROW(generator.add(request_of({}, {})), Error);
  EXPECT_THROW(generator.add(request_of(prompt_of(16, 0), {})), Error);
  EXPECT_THROW(generator.add(request_of({304}, {})), Error);
  EXPECT_THROW(generator.add(request_of({-1}, {})), Error);
  EXPECT_THROW(generator.add(request_of({1}, {.top_p = 0})), Error);
  EXPECT_THROW(generator.add(request_of({1}, {}, 0)), Error);
  EXPECT_THROW(Generator(tiny_model(), {.num_rows = 0}), Error);
  EXPECT_THROW(Generator(tiny_model(), {.num_rows = 1000}), Error);
  EXPECT_THROW(Generator(tiny_model(), {.context = 513}), Error);
}

// A model whose training diverged: its name and the file's fault, not an error of ours.
TEST(Generation, NoCodesForNumbersThatAreNotFinite) {
  const io::TemporaryFolder folder;
  models::DecoderConfig diverged = small_config();
  diverged.initializer_range = std::numeric_limits<double>::infinity();
  write_model(folder / "model", diverged, 3);
  std::ofstream(folder / "model/config.json") << models::to_hugging_face(small_config()).dump();
  try {
    const InferenceModel model(folder / "model", "fp32", World{}, c10::kCPU, {}, BaseFormat::kNf4);
    FAIL() << "encoded";
  } catch (const io::Error& error) {
    EXPECT_EQ(error.kind(), io::ErrorKind::kModel);
    EXPECT_NE(std::string(error.what()).find("'model.layers.0.self_attn.q_proj.weight': got a number that is not"),
              std::string::npos)
        << error.what();
  }
}

TEST(GeneratedText, IsValidUtf8AndEndsBeforeTheStopString) {
  const tokenizer::Tokenizer bytes = tokenizer::Tokenizer::bytes();
  GeneratedText text(bytes, {"end"});
  std::string streamed;
  for (const char c : std::string("caf\xC3\xA9 \xFF en")) streamed += text.push(static_cast<unsigned char>(c));
  EXPECT_EQ(streamed, "caf\xC3\xA9 \xEF\xBF\xBD ");
  streamed += text.push('d');
  EXPECT_TRUE(text.stopped());
  streamed += text.finish();
  EXPECT_EQ(streamed, "caf\xC3\xA9 \xEF\xBF\xBD ");
  EXPECT_EQ(text.text(), streamed);
  EXPECT_EQ(text.ids().size(), 11u);
}

}  // namespace
}  // namespace fsdp::train
