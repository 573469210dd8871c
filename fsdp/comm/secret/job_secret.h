#pragma once

#include <array>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>

namespace fsdp::comm {

// HMAC-SHA-256 (RFC 2104, FIPS 180-4).
using Proof = std::array<unsigned char, 32>;
// A number that is used once.
using Nonce = std::array<unsigned char, 32>;

// From the system. Throws Error(kInternal) where it has none.
Nonce fresh_nonce();

inline std::string_view as_text(const std::array<unsigned char, 32>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}
std::string to_hex(const std::array<unsigned char, 32>& bytes);

// Compares in a time that says nothing of where they differ.
bool are_equal(const Proof& a, const Proof& b);

// What all processes of a job know and nobody else does: who computes a proof with it belongs to the job. The secret is
// never sent, printed or passed as an argument. Copies share it; it is wiped with the last one.
class JobSecret {
 public:
  // Long enough that nobody tries all of them.
  static constexpr size_t kLeastBytes = 16;
  static constexpr size_t kMostBytes = 4096;

  // None: whoever reaches the job is believed, and a proof only tells that both sides saw the same parts.
  JobSecret() = default;
  // REQUIRES: kLeastBytes to kMostBytes.
  explicit JobSecret(std::string text);

  // A new one as text, 64 hexadecimal digits.
  static std::string make_text();

  bool is_given() const { return key_ != nullptr; }

  // The proof of knowing the secret, for one purpose and bound to `parts`: a proof for other parts, for another number
  // of them or for another purpose is another one.
  Proof prove(std::string_view purpose, std::initializer_list<std::string_view> parts) const;

 private:
  std::shared_ptr<const std::string> key_;
};

}  // namespace fsdp::comm
