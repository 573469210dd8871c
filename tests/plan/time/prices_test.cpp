// What products and collectives take, by formula; what a decoder computes, against models::flops_per_token().
#include <gtest/gtest.h>

#include <cmath>
#include <stdexcept>

#include "plan/time/collective_time.h"
#include "plan/time/compute_time.h"
#include "plan/time/decoder_work.h"
#include "plan/time/hardware.h"
#include "plan/time/product_line.h"

namespace fsdp::plan::time::prices_test {
namespace {

Hardware h100() { return find_hardware("h100-sxm"); }

TEST(Prices, ALargeProductTakesItsOperationsAtTheRateThatProductsReach) {
  const Hardware hardware = h100();
  // 64 x 32 tiles are 15.5 waves of 132 processors.
  const Product product{8192, 8192, 8192, 1};
  EXPECT_DOUBLE_EQ(product.flops(), 2.0 * 8192 * 8192 * 8192);
  EXPECT_DOUBLE_EQ(tile_occupancy(product, hardware), 2048.0 / (16 * 132));
  const double rate = 989.4e12 * hardware.product_efficiency * 2048 / (16 * 132);
  EXPECT_NEAR(product_ms(product, Dtype::kBf16, hardware), 1e3 * product.flops() / rate + 1e-3 * hardware.launch_us,
              1e-12);
}

TEST(Prices, ASmallProductIsReadFromMemory) {
  const Hardware hardware = h100();
  const Product product{1, 8192, 8192, 1};
  const double bytes = 2.0 * (8192 + 8192.0 * 8192 + 8192);
  EXPECT_NEAR(product_ms(product, Dtype::kBf16, hardware),
              1e3 * bytes / (hardware.memory_bytes_per_second * hardware.memory_efficiency) + 1e-3 * hardware.launch_us,
              1e-9);
}

TEST(Prices, ATileTooManyIsAnotherWave) {
  const Hardware hardware = h100();
  const Product full{128 * 132, 256, 4096, 1}, more{128 * 132 + 1, 256, 4096, 1};
  EXPECT_DOUBLE_EQ(tile_occupancy(full, hardware), 1);
  EXPECT_NEAR(tile_occupancy(more, hardware), 0.5, 1e-3);
}

TEST(Prices, MeasuredProductsGiveTheirLineBack) {
  std::vector<ProductSample> samples;
  for (const double flops : {1e6, 5e6, 4e7, 1e9, 2e10}) samples.push_back({flops, 20e-6 + flops / 90e9});
  const ProductLine line = fit_product_line(samples);
  EXPECT_NEAR(line.overhead_seconds, 20e-6, 1e-10);
  EXPECT_NEAR(line.flops_per_second, 90e9, 1e3);
  // Small products that are faster for their size than large ones: no overhead.
  EXPECT_EQ(fit_product_line(std::vector<ProductSample>{{1e6, 5e-6}, {1e9, 1e-2}}).overhead_seconds, 0);
  EXPECT_THROW(fit_product_line(std::vector<ProductSample>{{1e6, 1}}), std::invalid_argument);
  EXPECT_THROW(fit_product_line(std::vector<ProductSample>{{1e6, 1}, {1e9, 0}}), std::invalid_argument);
  EXPECT_THROW(fit_product_line(std::vector<ProductSample>{{1e6, 1}, {1e9, 1e-6}}), std::invalid_argument);
}

// What was measured of a machine counts beside operations and bytes; what was not, as what is nearest.
TEST(Prices, RowsMasksAndOperatorsCostWhatWasMeasured) {
  Hardware hardware = find_hardware("cpu-core");
  Work work;
  work.kernels = 100;
  work.attention_forward_rows = 3000;
  work.attention_backward_rows = 1000;
  EXPECT_NEAR(work_ms(work, Dtype::kFp32, hardware), 100 * 1e-3 * hardware.launch_us, 1e-12);
  hardware.operator_us = 7;
  hardware.attention_forward_row_us = 0.1;
  hardware.attention_backward_row_us = 0.5;
  EXPECT_NEAR(work_ms(work, Dtype::kFp32, hardware), 0.7 + 0.3 + 0.5, 1e-12);
  Work masked;
  masked.masked_forward_flops = 1e9;
  masked.masked_backward_flops = 2e9;
  const double peak = hardware.flops(Dtype::kFp32);
  EXPECT_NEAR(attention_ms(masked, Dtype::kFp32, hardware), 1e3 * (1e9 + 2e9) / (0.4 * peak), 1e-9);
  hardware.masked_attention_forward_efficiency = 0.1;
  hardware.masked_attention_backward_efficiency = 0.2;
  EXPECT_NEAR(attention_ms(masked, Dtype::kFp32, hardware), 1e3 * (1e9 / 0.1 + 2e9 / 0.2) / peak, 1e-9);
}

// Of four ranks that share a sequence each has two of eight chunks, and multiplies the keys up to each one's end: 9 of
// 64 products of chunks, where a causal mask leaves 8.
TEST(Prices, AMaskIsMultipliedWhole) {
  DecoderShape shape{512, 64, 128, 2, 4, 4, 16, Mlp::kGated, false, 0, 0, {}};
  DecoderSetup setup;
  setup.sequence_length = 1024;
  setup.sequence_ranks = 4;
  setup.beside_calls = BesideCalls::kThisProject;
  const StepWork work = decoder_work(shape, setup);
  const Work& forward = work.passages[1].forward;
  EXPECT_DOUBLE_EQ(forward.masked_forward_flops, 4.0 * 9 / 64 * 1024 * 1024 * 64);
  EXPECT_EQ(forward.attention_forward_flops, 0);
  setup.beside_calls = BesideCalls::kNothing;
  const StepWork other = decoder_work(shape, setup);
  EXPECT_NEAR(other.passages[1].forward.attention_forward_flops, 4.0 * 8 / 64 * 1024 * 1024 * 64,
              0.01 * forward.masked_forward_flops);
  EXPECT_LT(other.passages[1].forward.bytes, forward.bytes);
}

TEST(Prices, ARingWithinANode) {
  const Hardware hardware = h100();
  const Transfer transfer = scatter_or_gather(int64_t{1} << 30, RankGroup::neighbours(8, 8), hardware);
  EXPECT_EQ(transfer.link, LinkKind::kNode);
  EXPECT_NEAR(transfer.latency_ms, 1e-3 * (8.4 + 7 * 3.4), 1e-12);
  EXPECT_NEAR(transfer.link_ms, 1e3 * std::pow(2, 30) * 7 / 8 / (450e9 * hardware.network_efficiency), 1e-9);
}

TEST(Prices, ARingOverNodesHasAllNetworkCards) {
  const Hardware hardware = h100();
  const Transfer transfer = scatter_or_gather(int64_t{1} << 30, RankGroup::neighbours(64, 8), hardware);
  EXPECT_EQ(transfer.link, LinkKind::kNetwork);
  EXPECT_NEAR(transfer.latency_ms, 1e-3 * (8.4 + 7 * 14 + 8 * 7 * 3.4), 1e-12);
  EXPECT_NEAR(transfer.link_ms, 1e3 * std::pow(2, 30) * 63 / 64 / (8 * 50e9 * hardware.network_efficiency), 1e-9);
  // Replicas with one rank a node have one card each.
  const Transfer replicas = scatter_or_gather(int64_t{1} << 20, RankGroup::strided(4, 8, 8), hardware);
  EXPECT_NEAR(replicas.link_ms, 1e3 * std::pow(2, 20) * 3 / 4 / (50e9 * hardware.network_efficiency), 1e-12);
}

TEST(Prices, ATreeHasFewerHops) {
  Hardware hardware = h100();
  hardware.hops = Hops::kTree;
  const Transfer transfer = scatter_or_gather(1 << 20, RankGroup::neighbours(64, 8), hardware);
  EXPECT_NEAR(transfer.latency_ms, 1e-3 * (8.4 + 3 * 14 + 3 * 3.4), 1e-12);
}

TEST(Prices, NobodyToTalkToTakesNoTime) {
  EXPECT_EQ(scatter_or_gather(1 << 20, RankGroup::neighbours(1, 8), h100()).alone_ms(), 0);
  EXPECT_EQ(scatter_or_gather(0, RankGroup::neighbours(8, 8), h100()).alone_ms(), 0);
}

// Llama 3.1 8B
DecoderShape llama_8b() {
  DecoderShape shape;
  shape.vocab_size = 128256;
  shape.hidden_size = 4096;
  shape.intermediate_size = 14336;
  shape.num_layers = 32;
  shape.num_heads = 32;
  shape.num_key_heads = 8;
  shape.head_dim = 128;
  return shape;
}

Work total(const StepWork& work) {
  Work sum;
  for (const Passage& passage : work.passages) {
    sum += passage.forward;
    sum += passage.backward;
  }
  return sum;
}

// 8,030,261,248 parameters, as published; 51.47 GFLOP a token at 8192 (docs/performance.md's formula).
TEST(Decoder, CountsWhatTheFormulaCounts) {
  const DecoderShape shape = llama_8b();
  EXPECT_EQ(shape.num_parameters(), 8'030'261'248);
  EXPECT_NEAR(model_flops_per_token(shape, 8192) * 1e-9, 51.47, 0.005);
  DecoderSetup setup;
  setup.sequence_length = 8192;
  setup.sequences = 2;
  setup.shard_ranks = 8;
  const StepWork work = decoder_work(shape, setup);
  const Work sum = total(work);
  // The formula's attention backward is twice the forward; flash attention's is 2.5 times.
  const double attention = sum.attention_forward_flops + sum.attention_backward_flops * 2 / 2.5;
  EXPECT_NEAR((sum.product_flops() + attention) / work.model_flops, 1, 1e-12);
  int64_t gathered = 0, reduced = 0;
  for (const UnitWork& unit : work.units) {
    gathered += unit.gather_bytes;
    reduced += unit.reduce_bytes;
  }
  EXPECT_EQ(gathered, 2 * shape.num_parameters());
  EXPECT_EQ(reduced, 4 * shape.num_parameters());
}

TEST(Decoder, RecomputationAddsAForward) {
  DecoderSetup setup;
  setup.sequence_length = 2048;
  const double once = total(decoder_work(llama_8b(), setup)).product_flops();
  const double head = 6.0 * 2048 * 128256 * 4096;
  setup.recompute = Recompute::kBlock;
  EXPECT_NEAR(total(decoder_work(llama_8b(), setup)).product_flops(), head + (once - head) * 4 / 3, 1);
  setup.recomputed_share = 0.25;
  EXPECT_NEAR(total(decoder_work(llama_8b(), setup)).product_flops(), head + (once - head) * (1 + 0.25 / 3), 1);
  setup.recompute = Recompute::kElementwise;
  EXPECT_DOUBLE_EQ(total(decoder_work(llama_8b(), setup)).product_flops(), once);
}

// Of 8192 tokens each sees 1024 at most.
TEST(Decoder, AWindowSavesAttention) {
  DecoderShape shape = llama_8b();
  const double whole = model_flops_per_token(shape, 8192);
  shape.windows.assign(32, 1024);
  const double seen = (1024.0 * 1025 / 2 + (8192 - 1024) * 1024.0) / 8192;
  EXPECT_NEAR(whole - model_flops_per_token(shape, 8192), 12 * 32 * (8193.0 / 2 - seen) * 4096, 1);
}

TEST(Decoder, NonsenseIsRefused) {
  DecoderSetup setup;
  setup.sequence_length = 2048;
  setup.sequence_ranks = 3;
  EXPECT_THROW(decoder_work(llama_8b(), setup), std::invalid_argument);
  setup.sequence_ranks = 1;
  DecoderShape shape = llama_8b();
  shape.head_dim = 0;
  EXPECT_THROW(decoder_work(shape, setup), std::invalid_argument);
}

TEST(HardwareTable, IsWithinItsOwnRules) {
  for (const std::string& name : hardware_names()) EXPECT_NO_THROW(check(find_hardware(name))) << name;
}

TEST(HardwareTable, WhatIsMissingIsNamed) {
  const auto error_of = [](auto function) -> std::string {
    try {
      function();
    } catch (const std::invalid_argument& error) {
      return error.what();
    }
    return "no error";
  };
  EXPECT_EQ(error_of([] { find_hardware("h10"); }),
            "[hardware] got 'h10', expected one of a100-80gb, h100-sxm, h200, b200, cpu-core.");
  EXPECT_EQ(error_of([] { find_hardware("a100-80gb").flops(Dtype::kFp8); }),
            "[hardware] 'a100-80gb': got dtype fp8, expected one of fp32, bf16.");
}

}  // namespace
}  // namespace fsdp::plan::time::prices_test
