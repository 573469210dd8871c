#include "fsdp/buffer/buffer_allocator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "fsdp/base/error.h"

namespace fsdp {
namespace {

using ::testing::HasSubstr;

const c10::Device kCpu{c10::kCPU};

struct Kind {
  std::string name;
  AllocatorOptions options;
};

std::vector<Kind> all_kinds() {
  return {{"direct", AllocatorOptions::direct()},          {"storage_resize", AllocatorOptions::storage_resize()},
          {"rotary", AllocatorOptions::rotary()},          {"rotary2", AllocatorOptions::rotary(2)},
          {"pool", AllocatorOptions::fixed_pool(1 << 16)}, {"traced", AllocatorOptions::traced()}};
}

// Memory that its user filled and nobody else may touch.
struct Piece {
  c10::DataPtr memory;
  int64_t bytes;
  int value;

  void check() const {
    const auto* data = static_cast<const unsigned char*>(memory.get());
    for (int64_t i = 0; i < bytes; ++i) ASSERT_EQ(data[i], static_cast<unsigned char>(value));
  }
};

Piece take(BufferAllocator& allocator, int64_t bytes, int value) {
  Piece piece{allocator.take(bytes), bytes, value};
  EXPECT_EQ(reinterpret_cast<uintptr_t>(piece.memory.get()) % 64, 0U) << bytes;
  std::memset(piece.memory.get(), value, static_cast<size_t>(bytes));
  return piece;
}

void give_back(BufferAllocator& allocator, Piece piece) {
  piece.check();
  allocator.give_back(std::move(piece.memory), piece.bytes);
}

// One step of a model: each block's weights in turn, overlapping by one, with a gradient buffer now and then.
void run_step(BufferAllocator& allocator, int blocks, int64_t bytes) {
  Piece root = take(allocator, 3 * bytes, 200);
  Piece previous = take(allocator, bytes, 0);
  for (int block = 1; block < blocks; ++block) {
    Piece next = take(allocator, bytes, block);
    give_back(allocator, std::move(previous));
    previous = std::move(next);
    if (block % 2 == 0) give_back(allocator, take(allocator, 2 * bytes, 100 + block));
  }
  give_back(allocator, std::move(previous));
  give_back(allocator, std::move(root));
  allocator.end_of_step();
}

TEST(BufferAllocator, EveryKindServesStepsWithoutOverlap) {
  for (const Kind& kind : all_kinds()) {
    SCOPED_TRACE(kind.name);
    const auto allocator = make_buffer_allocator(kind.options, kCpu);
    for (int step = 0; step < 4; ++step) run_step(*allocator, 5, 1000);
    allocator->trim();
    run_step(*allocator, 5, 1000);
  }
}

TEST(BufferAllocator, SteadyStepsTakeNothingFromTheSystem) {
  for (const Kind& kind : all_kinds()) {
    SCOPED_TRACE(kind.name);
    const auto allocator = make_buffer_allocator(kind.options, kCpu);
    run_step(*allocator, 6, 512);
    run_step(*allocator, 6, 512);
    const int64_t before = allocator->num_allocations();
    run_step(*allocator, 6, 512);
    const bool asks_each_time =
        kind.options.kind == AllocatorKind::kDirect || kind.options.kind == AllocatorKind::kStorageResize;
    EXPECT_EQ(allocator->num_allocations() - before, asks_each_time ? 9 : 0);
  }
}

TEST(BufferAllocator, WhatTheSystemGetsBackAtOnce) {
  for (const AllocatorOptions& options : {AllocatorOptions::direct(), AllocatorOptions::storage_resize()}) {
    const auto allocator = make_buffer_allocator(options, kCpu);
    Piece piece = take(*allocator, 4096, 1);
    EXPECT_EQ(allocator->reserved_bytes(), 4096);
    give_back(*allocator, std::move(piece));
    EXPECT_EQ(allocator->reserved_bytes(), 0);
  }
}

TEST(BufferAllocator, RotaryKeepsThePeakOrAsManyAsItWasTold) {
  for (const int slabs : {0, 2}) {
    const auto allocator = make_buffer_allocator(AllocatorOptions::rotary(slabs), kCpu);
    std::vector<Piece> pieces;
    for (int i = 0; i < 5; ++i) pieces.push_back(take(*allocator, 64, i));
    for (Piece& piece : pieces) give_back(*allocator, std::move(piece));
    EXPECT_EQ(allocator->reserved_bytes(), slabs == 0 ? 5 * 64 : 2 * 64);
    EXPECT_EQ(allocator->num_allocations(), 5);
    allocator->trim();
    EXPECT_EQ(allocator->reserved_bytes(), 0);
  }
}

TEST(BufferAllocator, AFullPoolSaysHowLargeItShouldBe) {
  const auto allocator = make_buffer_allocator(AllocatorOptions::fixed_pool(8192), kCpu);
  const Piece piece = take(*allocator, 4096, 1);
  try {
    allocator->take(8192);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kMemory);
    EXPECT_THAT(error.what(), HasSubstr("at least 12.0 KiB"));
  }
  allocator->take(4096);
}

// Blocks one after the other, at most two at a time: the arena holds the root, two blocks and a gradient.
TEST(BufferAllocator, TracedPlansTheSizeOfItsArena) {
  const auto allocator = make_buffer_allocator(AllocatorOptions::traced(), kCpu);
  run_step(*allocator, 8, 1024);
  EXPECT_EQ(allocator->reserved_bytes(), (3 + 2 + 2) * 1024 - 1024);
  run_step(*allocator, 8, 1024);
  EXPECT_EQ(allocator->reserved_bytes(), (3 + 2 + 2) * 1024 - 1024);
}

TEST(BufferAllocator, TracedServesAStepThatDiffersAndPlansAnew) {
  const auto allocator = make_buffer_allocator(AllocatorOptions::traced(), kCpu);
  for (int step = 0; step < 3; ++step) run_step(*allocator, 4, 1024);
  for (int step = 0; step < 3; ++step) run_step(*allocator, 9, 2048);
  const int64_t before = allocator->num_allocations();
  run_step(*allocator, 9, 2048);
  EXPECT_EQ(allocator->num_allocations(), before);
}

// Any order of takes and returns: no two users ever share a byte, whatever was planned before.
TEST(BufferAllocator, RandomUse) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  for (const Kind& kind : all_kinds()) {
    SCOPED_TRACE(kind.name);
    const auto allocator =
        make_buffer_allocator(kind.name == "pool" ? AllocatorOptions::fixed_pool(1 << 20) : kind.options, kCpu);
    for (int step = 0; step < 20; ++step) {
      std::mt19937 same(step % 3 == 0 ? random() : 7U);  // some steps repeat each other
      std::map<int, Piece> pieces;
      for (int event = 0; event < 60; ++event) {
        if (pieces.empty() || (pieces.size() < 12 && same() % 2 == 0)) {
          pieces.emplace(event, take(*allocator, 1 + static_cast<int64_t>(same() % 3000), event));
        } else {
          const auto victim = std::next(pieces.begin(), static_cast<long>(same() % pieces.size()));
          give_back(*allocator, std::move(victim->second));
          pieces.erase(victim);
        }
      }
      for (auto& [event, piece] : pieces) give_back(*allocator, std::move(piece));
      allocator->end_of_step();
    }
  }
}

TEST(BufferAllocator, ContradictoryOptionsAreRefused) {
  for (const AllocatorOptions& options :
       {AllocatorOptions{AllocatorKind::kRotary, -1, 0}, AllocatorOptions{AllocatorKind::kTraced, 2, 0},
        AllocatorOptions{AllocatorKind::kFixedPool, 0, 0}, AllocatorOptions{AllocatorKind::kDirect, 0, 100}}) {
    EXPECT_THROW(make_buffer_allocator(options, kCpu), Error);
  }
}

}  // namespace
}  // namespace fsdp
