#include "fsdp/comm/secret/job_secret.h"

#include <nettle/hmac.h>
#include <nettle/memops.h>
#include <sys/random.h>

#include <cstdint>
#include <cstring>
#include <utility>

#include "fsdp/base/error.h"

namespace fsdp::comm {
namespace {

// With its length before it, so that no two lists of parts are the same bytes.
void absorb(hmac_sha256_ctx& state, std::string_view part) {
  std::array<uint8_t, 8> length{};
  for (size_t i = 0; i < length.size(); ++i) length[i] = static_cast<uint8_t>(uint64_t{part.size()} >> (8 * i));
  hmac_sha256_update(&state, length.size(), length.data());
  hmac_sha256_update(&state, part.size(), reinterpret_cast<const uint8_t*>(part.data()));
}

}  // namespace

Nonce fresh_nonce() {
  Nonce nonce{};
  if (getrandom(nonce.data(), nonce.size(), 0) != static_cast<ssize_t>(nonce.size())) {
    throw Error(ErrorCode::kInternal, "[init] the system gave no random bytes (getrandom).");
  }
  return nonce;
}

std::string to_hex(const std::array<unsigned char, 32>& bytes) {
  std::string text;
  for (const unsigned char byte : bytes) {
    text += "0123456789abcdef"[byte >> 4];
    text += "0123456789abcdef"[byte & 15];
  }
  return text;
}

bool are_equal(const Proof& a, const Proof& b) { return memeql_sec(a.data(), b.data(), a.size()) != 0; }

JobSecret::JobSecret(std::string text)
    : key_(new std::string(std::move(text)), [](std::string* key) {
        explicit_bzero(key->data(), key->size());
        delete key;
      }) {
  if (key_->size() < kLeastBytes || key_->size() > kMostBytes) {
    throw Error(ErrorCode::kInternal, "[internal] a secret of " + std::to_string(key_->size()) + " bytes");
  }
}

std::string JobSecret::make_text() { return to_hex(fresh_nonce()); }

Proof JobSecret::prove(std::string_view purpose, std::initializer_list<std::string_view> parts) const {
  const std::string_view key = key_ ? std::string_view(*key_) : std::string_view();
  hmac_sha256_ctx state;
  hmac_sha256_set_key(&state, key.size(), reinterpret_cast<const uint8_t*>(key.data()));
  absorb(state, purpose);
  for (const std::string_view part : parts) absorb(state, part);
  Proof proof{};
  hmac_sha256_digest(&state, proof.size(), proof.data());
  explicit_bzero(&state, sizeof(state));
  return proof;
}

}  // namespace fsdp::comm
