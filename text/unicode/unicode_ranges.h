#pragma once

#include <span>
#include <string_view>

namespace fsdp::tokenizer {

struct CodePointRange {
  char32_t first;
  char32_t last;  // included
};

// What a \p{property} of a pattern takes in Unicode 16 and not in Unicode 14.
struct NewMembers {
  std::string_view property;
  std::span<const CodePointRange> ranges;
};

// Character classes, sorted, as Hugging Face's tokenizers 0.23 has them: another version of Unicode would split new
// characters elsewhere.
namespace unicode_ranges {

std::span<const CodePointRange> letters();  // \p{L} of its regex engine, Unicode 16
std::span<const CodePointRange> numbers();  // \p{N}
std::span<const CodePointRange> marks();    // \p{M}
std::span<const CodePointRange> spaces();   // \s
std::span<const CodePointRange> digits();   // what the pre-tokenizer Digits takes, Rust's char::is_numeric
// What its NFC, of Unicode 9, leaves as it is and a newer NFC would not.
std::span<const CodePointRange> unnormalized();
std::span<const NewMembers> new_members();

}  // namespace unicode_ranges
}  // namespace fsdp::tokenizer
