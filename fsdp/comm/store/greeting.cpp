#include "fsdp/comm/store/greeting.h"

#include <algorithm>

#include "fsdp/comm/store/bytes.h"
#include "fsdp/comm/store/requests.h"

namespace fsdp::comm {
namespace {

// Ends with the version of all that is sent.
constexpr std::string_view kGreetingName = "fsdpjob1";
constexpr size_t kPartBytes = 32;
constexpr size_t kCodeBytes = 16;  // of 32: enough by far for a code that is checked once (RFC 2104, section 5)
constexpr size_t kSizeBytes = sizeof(uint32_t);

// Name, two numbers of 4 bytes, and parts of 32 bytes.
std::string greeting_bytes(uint32_t first, int32_t second, std::initializer_list<std::string_view> parts) {
  std::string bytes(kGreetingName);
  append_number(bytes, first);
  append_number(bytes, second);
  for (const std::string_view part : parts) bytes += part;
  return bytes;
}

// Takes the name away, if it is there.
bool take_greeting_name(std::string_view& bytes, size_t size) {
  if (bytes.size() != size || bytes.substr(0, kGreetingName.size()) != kGreetingName) return false;
  bytes.remove_prefix(kGreetingName.size());
  return true;
}

Nonce take_part(std::string_view& bytes) {
  Nonce part{};
  std::copy_n(bytes.begin(), kPartBytes, part.begin());
  bytes.remove_prefix(kPartBytes);
  return part;
}

JobSecret key_for(const JobSecret& secret, const char* purpose, const Nonce& store_nonce, const Nonce& rank_nonce) {
  return JobSecret(std::string(as_text(secret.prove(purpose, {as_text(store_nonce), as_text(rank_nonce)}))));
}

}  // namespace

std::string encode(const Invitation& invitation) {
  return greeting_bytes(invitation.asks_for_secret ? 1 : 0, 0, {as_text(invitation.nonce)});
}

std::string encode(const Application& application) {
  return greeting_bytes(application.has_secret ? 1 : 0, application.rank,
                        {as_text(application.nonce), as_text(application.proof)});
}

std::string encode(const Admission& admission) {
  return greeting_bytes(static_cast<uint32_t>(admission.verdict), 0, {as_text(admission.proof)});
}

std::optional<Invitation> decode_invitation(std::string_view bytes) {
  if (!take_greeting_name(bytes, kInvitationBytes)) return std::nullopt;
  const auto asks = take_number<uint32_t>(bytes);
  if (asks > 1 || take_number<int32_t>(bytes) != 0) return std::nullopt;
  return Invitation{asks == 1, take_part(bytes)};
}

std::optional<Application> decode_application(std::string_view bytes) {
  if (!take_greeting_name(bytes, kApplicationBytes)) return std::nullopt;
  const auto has = take_number<uint32_t>(bytes);
  const auto rank = take_number<int32_t>(bytes);
  if (has > 1 || rank < 0) return std::nullopt;
  const Nonce nonce = take_part(bytes);
  return Application{has == 1, rank, nonce, take_part(bytes)};
}

std::optional<Admission> decode_admission(std::string_view bytes) {
  if (!take_greeting_name(bytes, kAdmissionBytes)) return std::nullopt;
  const auto verdict = take_number<uint32_t>(bytes);
  if (verdict > static_cast<uint32_t>(AdmissionVerdict::kSecretDiffers) || take_number<int32_t>(bytes) != 0) {
    return std::nullopt;
  }
  return Admission{static_cast<AdmissionVerdict>(verdict), take_part(bytes)};
}

bool may_become_application(std::string_view bytes) {
  const size_t size = std::min(bytes.size(), kGreetingName.size());
  return bytes.substr(0, size) == kGreetingName.substr(0, size);
}

AdmissionVerdict judge(const JobSecret& secret, const Nonce& store_nonce, const Application& application) {
  if (secret.is_given() && !application.has_secret) return AdmissionVerdict::kSecretMissing;
  if (!secret.is_given() && application.has_secret) return AdmissionVerdict::kSecretUnknown;
  const Proof expected = proof_of_rank(secret, store_nonce, application.nonce, application.rank);
  return are_equal(application.proof, expected) ? AdmissionVerdict::kAdmitted : AdmissionVerdict::kSecretDiffers;
}

Proof proof_of_rank(const JobSecret& secret, const Nonce& store_nonce, const Nonce& rank_nonce, int32_t rank) {
  return secret.prove("rank at the store", {as_text(store_nonce), as_text(rank_nonce), std::to_string(rank)});
}

Proof proof_of_store(const JobSecret& secret, const Nonce& store_nonce, const Nonce& rank_nonce) {
  return secret.prove("store", {as_text(store_nonce), as_text(rank_nonce)});
}

FrameCodec::FrameCodec(const JobSecret& secret, const Nonce& store_nonce, const Nonce& rank_nonce, Side side)
    : sent_{key_for(secret, "frames of the store", store_nonce, rank_nonce), 0},
      received_{key_for(secret, "frames of the rank", store_nonce, rank_nonce), 0} {
  if (side == Side::kRank) std::swap(sent_, received_);
}

Proof FrameCodec::code_of(Direction& direction, std::string_view message) {
  return direction.key.prove("frame", {std::to_string(direction.count++), message});
}

std::string FrameCodec::seal(std::string_view message) {
  std::string frame;
  append_number(frame, static_cast<uint32_t>(message.size()));
  frame += message;
  frame += as_text(code_of(sent_, message)).substr(0, kCodeBytes);
  return frame;
}

FrameCodec::Opened FrameCodec::open(std::string& bytes, std::string& message) {
  if (bytes.size() < kSizeBytes) return Opened::kIncomplete;
  std::string_view rest = bytes;
  const size_t size = take_number<uint32_t>(rest);
  if (size > kMostMessageBytes) return Opened::kForged;
  if (rest.size() < size + kCodeBytes) return Opened::kIncomplete;
  Proof expected = code_of(received_, rest.substr(0, size));
  Proof got = expected;
  std::copy_n(rest.begin() + static_cast<std::ptrdiff_t>(size), kCodeBytes, got.begin());
  if (!are_equal(got, expected)) return Opened::kForged;
  message.assign(rest.substr(0, size));
  bytes.erase(0, kSizeBytes + size + kCodeBytes);
  return Opened::kFrame;
}

}  // namespace fsdp::comm
