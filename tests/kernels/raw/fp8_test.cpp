#include "kernels/raw/formats/fp8.h"

#include "kernels/raw/formats/fp8_bytes.h"

#include <bit>
#include <limits>

#include "tests/kernels/raw/numbers.h"

namespace fsdp::kernels::raw {
namespace {

constexpr Fp8Format kFormats[] = {Fp8Format::kE4m3, Fp8Format::kE5m2};

// The format by its definition: every positive number it has, in order, so that the code of each is its place.
class Reference {
 public:
  explicit Reference(Fp8Format format)
      : lowest_exponent_(format == Fp8Format::kE4m3 ? -124 : -117), has_infinity_(format == Fp8Format::kE5m2) {
    const int mantissa_bits = format == Fp8Format::kE4m3 ? 3 : 2, bias = format == Fp8Format::kE4m3 ? 7 : 15;
    const int steps = 1 << mantissa_bits, codes = format == Fp8Format::kE4m3 ? 0x7F : 0x7C;
    for (int code = 0; code < codes; ++code) {
      const int exponent = code / steps, mantissa = code % steps;
      numbers_.push_back(exponent == 0 ? std::ldexp(mantissa, 1 - bias - mantissa_bits)
                                       : std::ldexp(steps + mantissa, exponent - bias - mantissa_bits));
    }
  }

  double largest() const { return numbers_.back(); }

  int exponent_of(double largest_in_block) const {
    if (largest_in_block == 0) return 0;
    int exponent = lowest_exponent_;
    exponent = std::max(exponent, std::ilogb(largest_in_block) - std::ilogb(largest()) - 2);
    while (std::ldexp(largest(), exponent) < largest_in_block) ++exponent;
    return exponent;
  }

  double round(double x, int exponent) const {
    if (std::isnan(x)) return x;
    if (std::isinf(x)) return has_infinity_ ? x : std::numeric_limits<double>::quiet_NaN();
    const double wanted = std::ldexp(std::abs(x), -exponent);
    const auto above = std::lower_bound(numbers_.begin(), numbers_.end(), wanted);
    const auto upper = static_cast<size_t>(above - numbers_.begin());
    if (upper == 0) return std::copysign(0.0, x);
    const double from_above = numbers_[upper] - wanted, from_below = wanted - numbers_[upper - 1];
    const bool takes_upper = from_above < from_below || (from_above == from_below && upper % 2 == 0);
    const double number = std::ldexp(numbers_[takes_upper ? upper : upper - 1], exponent);
    return std::copysign(static_cast<double>(static_cast<float>(number)), x);
  }

 private:
  int lowest_exponent_;
  bool has_infinity_;
  std::vector<double> numbers_;
};

// Of any magnitude that fp32 has, in blocks whose numbers are near each other, with what is not a number among them,
// blocks of zeros, and numbers halfway between two of a format.
template <class T>
std::vector<T> all_kinds_of_numbers(int64_t blocks, int64_t block, uint32_t seed) {
  std::mt19937 engine(seed);
  std::vector<T> numbers;
  for (int64_t i = 0; i < blocks; ++i) {
    const int exponent = static_cast<int>(engine() % 277) - 149;
    const bool zeros = engine() % 100 == 0;
    for (int64_t j = 0; j < block; ++j) {
      const uint32_t kind = engine() % 256;
      const double steps =
          kind < 128 ? static_cast<double>(engine() % 64) / 32 : static_cast<double>(engine()) * 0x1p-31;
      double number = std::ldexp(steps, exponent - static_cast<int>(engine() % 20)) * (engine() % 2 ? 1 : -1);
      if (kind == 255) number = std::bit_cast<float>(static_cast<uint32_t>(engine()));
      if (kind == 254) number = std::numeric_limits<double>::infinity();
      numbers.push_back(from_float<T>(zeros ? 0.0f : static_cast<float>(number)));
    }
  }
  return numbers;
}

double largest_finite(const std::vector<double>& numbers) {
  double largest = 0;
  for (const double number : numbers)
    if (std::isfinite(number)) largest = std::max(largest, std::abs(number));
  return largest;
}

template <class T>
void expect_the_references(const std::vector<T>& x, int64_t rows, int64_t columns, Fp8Block block, Fp8Format format) {
  const Reference reference(format);
  Guarded<T> out(rows * columns);
  std::vector<int8_t> exponents(static_cast<size_t>(num_fp8_blocks(rows, columns, block)));
  round_to_fp8(x.data(), rows, columns, block, format, out.data(), exponents.data());
  ASSERT_TRUE(out.is_intact());
  size_t place = 0;
  for (int64_t row = 0; row < rows; row += block.rows) {
    for (int64_t column = 0; column < columns; column += block.columns, ++place) {
      std::vector<int64_t> cells;
      for (int64_t r = row; r < std::min(rows, row + block.rows); ++r)
        for (int64_t c = column; c < std::min(columns, column + block.columns); ++c) cells.push_back(r * columns + c);
      std::vector<double> numbers;
      for (const int64_t cell : cells) numbers.push_back(to_float(x[static_cast<size_t>(cell)]));
      const int exponent = reference.exponent_of(largest_finite(numbers));
      ASSERT_EQ(exponents[place], exponent) << "largest " << largest_finite(numbers);
      for (size_t i = 0; i < cells.size(); ++i) {
        const double expected = reference.round(numbers[i], exponent), got = out[cells[i]];
        if (std::isnan(expected))
          ASSERT_TRUE(std::isnan(got)) << numbers[i];
        else
          ASSERT_EQ(std::bit_cast<uint64_t>(got), std::bit_cast<uint64_t>(expected)) << numbers[i] << " e " << exponent;
      }
    }
  }
}

TEST(RawFp8, AMillionBlocksHaveTheBitsOfTheDefinition) {
  constexpr int64_t kColumns = 1000, kBlock = 8, kRows = 2000;  // 250,000 blocks a format and type
  uint32_t seed = 100;
  for (const Fp8Format format : kFormats) {
    const auto floats = all_kinds_of_numbers<float>(kRows * kColumns / kBlock, kBlock, ++seed);
    const auto halves = all_kinds_of_numbers<Bf16>(kRows * kColumns / kBlock, kBlock, ++seed);
    for_each_isa([&] {
      ASSERT_NO_FATAL_FAILURE(expect_the_references(floats, kRows, kColumns, {1, kBlock}, format));
      ASSERT_NO_FATAL_FAILURE(expect_the_references(halves, kRows, kColumns, {1, kBlock}, format));
    });
  }
}

// Whole matrices, rows, columns and tiles, with what is left over at the ends.
TEST(RawFp8, BlocksMayHaveAnyShape) {
  for_each_isa([] {
    for (const auto& [rows, columns] : {std::pair<int64_t, int64_t>{1, 1}, {3, 15}, {37, 53}, {130, 140}}) {
      const auto x = all_kinds_of_numbers<float>(rows * columns, 1, 3);
      for (const Fp8Block block : {Fp8Block{rows, columns}, {1, columns}, {rows, 1}, {1, 32}, {32, 1}, {128, 128}}) {
        SCOPED_TRACE(::testing::Message() << rows << "x" << columns << " by " << block.rows << "x" << block.columns);
        ASSERT_NO_FATAL_FAILURE(expect_the_references(x, rows, columns, block, Fp8Format::kE4m3));
      }
    }
  });
}

// A matrix that lies in pieces, as ranks have it: they agree on the blocks' codes, and send bytes.
template <class T>
void expect_bytes_to_be_the_same(int64_t rows, int64_t columns, const Fp8Block& block, uint32_t seed) {
  const int64_t numel = rows * columns;
  const std::vector<T> x = all_kinds_of_numbers<T>(numel, 1, seed);
  std::vector<T> expected(x.size()), got(x.size());
  round_to_fp8(x.data(), rows, columns, block, Fp8Format::kE4m3, expected.data());
  const Fp8Matrix matrix{rows, columns, block};
  const int64_t cuts[] = {0, numel / 7, numel / 7, numel / 2 + 1, numel};
  std::vector<uint8_t> codes(static_cast<size_t>(matrix.num_blocks())), bytes(x.size());
  const auto for_each_piece = [&](const auto& body) {
    for (size_t i = 0; i + 1 < std::size(cuts); ++i)
      if (cuts[i] < cuts[i + 1]) body(Fp8Range{matrix, cuts[i], cuts[i + 1] - cuts[i]});
  };
  for_each_piece([&](const Fp8Range& range) { raise_fp8_codes(x.data() + range.begin, range, codes.data()); });
  for_each_piece([&](const Fp8Range& range) {
    to_fp8_bytes(x.data() + range.begin, range, codes.data(), bytes.data() + range.begin);
  });
  from_fp8_bytes(bytes.data(), {matrix, 0, numel}, codes.data(), got.data());
  for (size_t i = 0; i < x.size(); ++i) {
    const float a = to_float(expected[i]), b = to_float(got[i]);
    if (std::isnan(a))
      ASSERT_TRUE(std::isnan(b)) << to_float(x[i]);
    else
      ASSERT_EQ(std::bit_cast<uint32_t>(b), std::bit_cast<uint32_t>(a)) << to_float(x[i]);
  }
}

TEST(RawFp8, BytesOfPiecesStandForTheSameNumbers) {
  for (const auto& [rows, columns] : {std::pair<int64_t, int64_t>{1, 5}, {37, 53}, {130, 300}, {1000, 1000}}) {
    for (const Fp8Block block : {Fp8Block{rows, columns}, {128, 128}, {4, 4}, {1, 8}}) {
      SCOPED_TRACE(::testing::Message() << rows << "x" << columns << " by " << block.rows << "x" << block.columns);
      ASSERT_NO_FATAL_FAILURE(expect_bytes_to_be_the_same<float>(rows, columns, block, 5));
      ASSERT_NO_FATAL_FAILURE(expect_bytes_to_be_the_same<Bf16>(rows, columns, block, 6));
    }
  }
}

TEST(RawFp8, MayBeRoundedInPlace) {
  for_each_isa([] {
    const std::vector<Bf16> x = random_numbers<Bf16>(1000, 4);
    std::vector<Bf16> apart(1000), in_place = x;
    round_to_fp8(x.data(), 10, 100, {1, 32}, Fp8Format::kE4m3, apart.data());
    round_to_fp8(in_place.data(), 10, 100, {1, 32}, Fp8Format::kE4m3, in_place.data());
    EXPECT_TRUE(same_bits(in_place.data(), apart.data(), 1000));
  });
}

}  // namespace
}  // namespace fsdp::kernels::raw
