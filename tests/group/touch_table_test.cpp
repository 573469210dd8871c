#include "fsdp/group/touch_table.h"

#include <gtest/gtest.h>

#include <thread>

namespace fsdp {
namespace {

// The table compares addresses and never looks behind them, so these need no objects.
template <class T>
T* address(uintptr_t base, size_t i) {
  return reinterpret_cast<T*>(base + 64 * i);
}
const c10::StorageImpl* storage(size_t i) { return address<const c10::StorageImpl>(uintptr_t{1} << 50, i); }
ParameterGroup* group(size_t i) { return address<ParameterGroup>(uintptr_t{1} << 51, i); }
UnitState* unit(size_t i) { return address<UnitState>(uintptr_t{1} << 52, i); }

constexpr size_t kMany = 10'000;

// The table is the process's: what a test adds it removes.
class TouchTableTest : public ::testing::Test {
 protected:
  void TearDown() override {
    for (size_t i = 0; i < kMany; ++i) table_.remove(storage(i), group(i));
  }
  void expect_entry(size_t i, bool present) {
    const TouchTable::Entry entry = table_.find(storage(i));
    EXPECT_EQ(entry.group, present ? group(i) : nullptr) << i;
    EXPECT_EQ(entry.unit, present ? unit(i) : nullptr) << i;
  }
  TouchTable& table_ = TouchTable::instance();
};

TEST_F(TouchTableTest, FindsWhatWasAddedAndNothingElse) {
  for (size_t i = 0; i < kMany; i += 2) table_.add(storage(i), {group(i), unit(i), Role::kUnsharded});
  for (size_t i = 0; i < kMany; ++i) expect_entry(i, i % 2 == 0);
  EXPECT_EQ(table_.find(nullptr).group, nullptr);
}

TEST_F(TouchTableTest, ForgetsWhatWasRemovedAndKeepsTheRest) {
  for (size_t i = 0; i < kMany; ++i) table_.add(storage(i), {group(i), unit(i), Role::kUnsharded});
  for (size_t i = 0; i < kMany; i += 3) table_.remove(storage(i), group(i));
  for (size_t i = 0; i < kMany; ++i) expect_entry(i, i % 3 != 0);
}

TEST_F(TouchTableTest, AnAddressMayComeBackAsAnother) {
  for (size_t round = 0; round < 1000; ++round) {
    table_.add(storage(1), {group(round), unit(round), Role::kUnsharded});
    EXPECT_EQ(table_.find(storage(1)).group, group(round));
    table_.remove(storage(1), group(round));
    EXPECT_EQ(table_.find(storage(1)).group, nullptr);
  }
}

TEST_F(TouchTableTest, AnAddressThatCameBackIsNotRemovedByItsLastOwner) {
  table_.add(storage(1), {group(2), unit(2), Role::kMainGrad});
  table_.add(storage(1), {group(1), unit(1), Role::kUnsharded});
  table_.remove(storage(1), group(2));
  expect_entry(1, true);
}

TEST_F(TouchTableTest, TellsTheRole) {
  table_.add(storage(5), {group(5), unit(5), Role::kMainWeight});
  EXPECT_EQ(table_.find(storage(5)).group, group(5));
  EXPECT_EQ(table_.find(storage(5)).role, Role::kMainWeight);
}

// Readers look up while a writer adds and the table grows several times: entries that are there are always found.
TEST_F(TouchTableTest, ReadersNeverMissAnEntry) {
  constexpr size_t kFixed = 64;
  for (size_t i = 0; i < kFixed; ++i) table_.add(storage(i), {group(i), unit(i), Role::kUnsharded});
  std::atomic<bool> stop{false};
  std::atomic<int64_t> misses{0};
  std::vector<std::thread> readers;
  for (int reader = 0; reader < 2; ++reader) {
    readers.emplace_back([&] {
      for (size_t i = 0; !stop.load(std::memory_order_relaxed); i = (i + 1) % kFixed) {
        const TouchTable::Entry entry = table_.find(storage(i));
        if (entry.group != group(i) || entry.unit != unit(i)) ++misses;
      }
    });
  }
  for (size_t i = kFixed; i < kMany; ++i) table_.add(storage(i), {group(i), unit(i), Role::kUnsharded});
  stop = true;
  for (std::thread& reader : readers) reader.join();
  EXPECT_EQ(misses.load(), 0);
}

}  // namespace
}  // namespace fsdp
