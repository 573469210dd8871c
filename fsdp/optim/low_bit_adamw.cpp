#include "fsdp/optim/low_bit_adamw.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "fsdp/base/check.h"
#include "fsdp/optim/adamw_update.h"
#include "fsdp/optim/update_rule.h"
#include "kernels/flat/adamw.h"

namespace fsdp {
namespace {

// Both moments' codes on one device.
struct MomentCoders {
  MomentCoders(BlockCode code, c10::Device device)
      : first(code, CodeSign::kSigned, device), second(code, CodeSign::kUnsigned, device) {}
  BlockCoder first;
  BlockCoder second;
};

// Elements [begin, begin + blocks * width) of a run whose states are codes and scales of both moments.
struct Blocks {
  int64_t begin;
  int64_t count;
  int64_t width;
};

class LowBitAdamWRule : public RuleOf<AdamWOptions> {
 public:
  LowBitAdamWRule(std::vector<AdamWGroup> groups, BlockCode code) : code_(code) {
    const std::string kind = code == BlockCode::kDynamic ? "dynamic" : "linear";
    const StateSpec codes{"exp_avg_" + kind, at::kByte}, square_codes{"exp_avg_sq_" + kind, at::kByte};
    const StateSpec scales{"exp_avg_scale", at::kFloat, kCodeBlock},
        square_scales{"exp_avg_sq_scale", at::kFloat, kCodeBlock};
    for (AdamWGroup& group : groups) {
      check_options(group.options);
      FSDP_CHECK(!group.options.exp_avg_dtype && !group.options.exp_avg_sq_dtype,
                 "[LowBitAdamW] exp_avg_dtype, exp_avg_sq_dtype: got a dtype, expected none: moments have 8 bits.");
      options.push_back(group.options);
      leaves_.push_back({std::move(group.parameters), {{codes, scales, square_codes, square_scales}, RunOf::kBlocks}});
    }
  }

  const char* name() const override { return "LowBitAdamW"; }

  // Whole blocks in pieces that stay in a cache, then what is left of a tensor's end.
  void update(const FlatRun& run, const GradientFactor& factor) override {
    const int64_t numel = run.weight.numel(), whole = numel / kCodeBlock;
    const int64_t longest = run.weight.is_cpu() ? 64 : std::max<int64_t>(whole, 1);
    for (int64_t block = 0; block < whole; block += longest) {
      update_blocks(run, factor, {block * kCodeBlock, std::min(longest, whole - block), kCodeBlock});
    }
    if (numel % kCodeBlock != 0) update_blocks(run, factor, {whole * kCodeBlock, 1, numel % kCodeBlock});
  }

 private:
  void update_blocks(const FlatRun& run, const GradientFactor& factor, const Blocks& blocks) {
    const auto part = [&](const at::Tensor& tensor) {
      return tensor.narrow(0, blocks.begin, blocks.count * blocks.width);
    };
    const auto codes = [&](size_t i) { return part(run.states[i]).view({blocks.count, blocks.width}); };
    const auto scales = [&](size_t i) { return run.states[i].narrow(0, blocks.begin / kCodeBlock, blocks.count); };
    const MomentCoders& coders = coders_on(run.weight.device());
    const at::Tensor first = coders.first.decode(codes(0), scales(1));
    const at::Tensor second = coders.second.decode(codes(2), scales(3));
    const AdamWOptions& group = options[run.options];
    kernels::adamw_step(part(run.weight), part(run.gradient), first.view(-1), second.view(-1),
                        run.copy.defined() ? part(run.copy) : at::Tensor(),
                        {group.lr, group.beta1, group.beta2, group.eps, group.weight_decay, run.step, factor.number,
                         factor.on_device_of(run.weight)});
    coders.first.encode(first, codes(0), scales(1));
    coders.second.encode(second, codes(2), scales(3));
  }

  const MomentCoders& coders_on(c10::Device device) {
    const auto key = std::pair(device.type(), device.index());
    return coders_.try_emplace(key, code_, device).first->second;
  }

  BlockCode code_;
  std::map<std::pair<c10::DeviceType, c10::DeviceIndex>, MomentCoders> coders_;
};

}  // namespace

LowBitAdamW::LowBitAdamW(std::vector<at::Tensor> parameters, AdamWOptions options, BlockCode code)
    : LowBitAdamW(std::vector<AdamWGroup>{{std::move(parameters), options}}, code) {}
LowBitAdamW::LowBitAdamW(std::vector<AdamWGroup> groups, BlockCode code)
    : FlatOptimizer(std::make_unique<LowBitAdamWRule>(std::move(groups), code)) {}
LowBitAdamW::LowBitAdamW(std::vector<DecayGroup> groups, AdamWOptions options, BlockCode code)
    : LowBitAdamW(with_decay<AdamWGroup>(std::move(groups), options), code) {}

AdamWOptions& LowBitAdamW::options(size_t group) { return static_cast<LowBitAdamWRule&>(rule()).options.at(group); }

}  // namespace fsdp
