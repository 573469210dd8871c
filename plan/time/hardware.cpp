#include "plan/time/hardware.h"

#include <algorithm>
#include <stdexcept>

namespace fsdp::plan::time {
namespace {

// Latencies of rings with the "simple" protocol, as NCCL's own cost model has them (nccl, src/graph/tuning.cc: baseLat,
// hwLat): 8.4 us a call, 3.4 us a hop over NVLink, 14 us a hop over the network.
constexpr double kStartUs = 8.4;
constexpr double kNvlinkHopUs = 3.4;
constexpr double kNetworkHopUs = 14;

struct Chip {
  const char* name;
  double fp32, bf16, fp8;                // TFLOP/s, dense; 0: none
  double achievable;                     // share of the peak: "Maximum Achievable Matmul FLOPS" of ml-engineering
  double attention, attention_backward;  // TFLOP/s of FlashAttention-2, causal, head 128, forward and backward
  int processors;
  double memory, nvlink, network;  // GB/s; one direction
};

constexpr Chip kChips[] = {
    {"a100-80gb", 19.5, 312, 0, 0.859, 190, 170, 108, 2039, 300, 25},
    {"h100-sxm", 66.9, 989.4, 1978.9, 0.803, 350, 300, 132, 3350, 450, 50},
    {"h200", 66.9, 989.4, 1978.9, 0.803, 350, 300, 132, 4800, 450, 50},
    {"b200", 75, 2250, 4500, 0.776, 700, 600, 148, 7700, 900, 50},
};
constexpr const char* kCpuName = "cpu-core";

Hardware make_gpu(const Chip& chip, const Shares& shares) {
  Hardware hardware;
  hardware.name = chip.name;
  hardware.peak_flops = {{Dtype::kFp32, chip.fp32 * 1e12}, {Dtype::kBf16, chip.bf16 * 1e12}};
  if (chip.fp8 > 0) hardware.peak_flops[Dtype::kFp8] = chip.fp8 * 1e12;
  hardware.product_efficiency = chip.achievable * shares.products;
  hardware.tile_rows = 128;
  hardware.tile_columns = 256;
  hardware.processors = chip.processors;
  hardware.attention_forward_efficiency = chip.attention / chip.bf16 * shares.attention;
  hardware.attention_backward_efficiency = chip.attention_backward / chip.bf16 * shares.attention;
  hardware.memory_bytes_per_second = chip.memory * 1e9;
  hardware.memory_efficiency = shares.memory;
  hardware.launch_us = 4;
  hardware.node = {chip.nvlink * 1e9, kNvlinkHopUs};
  hardware.network = {chip.network * 1e9, kNetworkHopUs};
  hardware.network_efficiency = 0.8;
  hardware.start_us = kStartUs;
  hardware.slowdown_by_transfers = shares.slowdown;
  return hardware;
}

// One core of a server processor with AVX-512 (AMD's Zen 4), ranks that share memory on one node.
Hardware make_cpu() {
  Hardware hardware;
  hardware.name = kCpuName;
  hardware.execution = Execution::kProgramComputes;
  hardware.peak_flops = {{Dtype::kFp32, 117e9}, {Dtype::kBf16, 234e9}};
  hardware.product_efficiency = 0.85;
  hardware.attention_forward_efficiency = 0.4;
  hardware.attention_backward_efficiency = 0.4;
  hardware.memory_bytes_per_second = 13.5e9;
  hardware.launch_us = 5;
  hardware.node = {5e9, 1};
  hardware.network = {1.25e9, 30};
  hardware.start_us = 5;
  return hardware;
}

void expect(bool holds, const std::string& field, double got, const char* expected) {
  if (!holds)
    throw std::invalid_argument("[hardware] " + field + ": got " + std::to_string(got) + ", expected " + expected +
                                ".");
}

}  // namespace

double Hardware::flops(Dtype dtype) const {
  if (const auto peak = peak_flops.find(dtype); peak != peak_flops.end()) return peak->second;
  std::string known;
  for (const auto& [other, peak] : peak_flops) known.append(known.empty() ? "" : ", ").append(time::name(other));
  throw std::invalid_argument("[hardware] '" + name + "': got dtype " + std::string(time::name(dtype)) +
                              ", expected one of " + known + ".");
}

void check(const Hardware& hardware) {
  const auto share = [](double value) { return value > 0 && value <= 1; };
  const auto positive = [](double value) { return value > 0; };
  const auto duration = [](double value) { return value >= 0; };
  const char* const a_share = "a share, above 0 and at most 1";
  const char* const above_zero = "a number above 0";
  const char* const a_duration = "at least 0";
  expect(!hardware.peak_flops.empty(), "peak_flops", 0, "a rate for one dtype at least");
  for (const auto& [dtype, peak] : hardware.peak_flops)
    expect(positive(peak), "peak_flops." + std::string(name(dtype)), peak, above_zero);
  expect(share(hardware.product_efficiency), "product_efficiency", hardware.product_efficiency, a_share);
  expect(hardware.tile_rows >= 0 && hardware.tile_columns >= 0 && hardware.processors >= 0, "processors",
         hardware.processors, a_duration);
  expect(hardware.processors == 0 || (hardware.tile_rows > 0 && hardware.tile_columns > 0), "tile_rows",
         hardware.tile_rows, "tiles where there are processors");
  expect(share(hardware.attention_forward_efficiency), "attention_forward_efficiency",
         hardware.attention_forward_efficiency, a_share);
  expect(share(hardware.attention_backward_efficiency), "attention_backward_efficiency",
         hardware.attention_backward_efficiency, a_share);
  for (const auto& [field, value] :
       {std::pair("masked_attention_forward_efficiency", hardware.masked_attention_forward_efficiency),
        std::pair("masked_attention_backward_efficiency", hardware.masked_attention_backward_efficiency)})
    expect(value >= 0 && value <= 1, field, value, "a share, or 0 where it is that without a mask");
  for (const auto& [field, value] : {std::pair("attention_forward_row_us", hardware.attention_forward_row_us),
                                     std::pair("attention_backward_row_us", hardware.attention_backward_row_us),
                                     std::pair("operator_us", hardware.operator_us)})
    expect(duration(value), field, value, a_duration);
  expect(positive(hardware.memory_bytes_per_second), "memory_bytes_per_second", hardware.memory_bytes_per_second,
         above_zero);
  expect(share(hardware.memory_efficiency), "memory_efficiency", hardware.memory_efficiency, a_share);
  expect(duration(hardware.launch_us), "launch_us", hardware.launch_us, a_duration);
  for (const auto& [field, link] : {std::pair("node", hardware.node), std::pair("network", hardware.network)}) {
    expect(positive(link.bytes_per_second), std::string(field) + ".bytes_per_second", link.bytes_per_second,
           above_zero);
    expect(duration(link.hop_us), std::string(field) + ".hop_us", link.hop_us, a_duration);
  }
  expect(share(hardware.network_efficiency), "network_efficiency", hardware.network_efficiency, a_share);
  expect(duration(hardware.start_us), "start_us", hardware.start_us, a_duration);
  expect(duration(hardware.slowdown_by_transfers), "slowdown_by_transfers", hardware.slowdown_by_transfers, a_duration);
}

std::vector<std::string> hardware_names() {
  std::vector<std::string> names;
  for (const Chip& chip : kChips) names.emplace_back(chip.name);
  names.emplace_back(kCpuName);
  return names;
}

Hardware find_hardware(const std::string& name, const Shares& shares) {
  for (const Chip& chip : kChips) {
    if (chip.name == name) return make_gpu(chip, shares);
  }
  if (name == kCpuName) return make_cpu();
  std::string names;
  for (const std::string& known : hardware_names()) names.append(names.empty() ? "" : ", ").append(known);
  throw std::invalid_argument("[hardware] got '" + name + "', expected one of " + names + ".");
}

}  // namespace fsdp::plan::time
