// How the store of a job and a rank that connects to it prove to each other that they know the secret of the job, and
// how all that follows is bound to that proof.
//
//   store -> rank   Invitation: whether a secret is asked for, and the store's nonce
//   rank -> store   Application: its number, its nonce, and its proof over both nonces
//   store -> rank   Admission: the verdict, and the store's proof over both nonces
//   both ways       frames: size, message, and a code of the message and its number in the connection
//
// The rank proves first, so that who only connects gets nothing to try secrets on. Both nonces are fresh, so nothing of
// another connection or another job can be played again; the keys of the codes are made of the secret and both nonces,
// so who passes the proofs of others on can neither change nor add a byte. Nothing is encrypted: the store holds
// addresses and names, no weights and no secret. Without a secret the same bytes are exchanged and prove nothing.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "fsdp/comm/secret/job_secret.h"

namespace fsdp::comm {

struct Invitation {
  bool asks_for_secret = false;
  Nonce nonce{};
};

struct Application {
  bool has_secret = false;
  int32_t rank = 0;  // as it says
  Nonce nonce{};
  Proof proof{};
};

enum class AdmissionVerdict : uint8_t { kAdmitted, kSecretMissing, kSecretUnknown, kSecretDiffers };

struct Admission {
  AdmissionVerdict verdict = AdmissionVerdict::kAdmitted;
  Proof proof{};
};

inline constexpr size_t kInvitationBytes = 48;
inline constexpr size_t kApplicationBytes = 80;
inline constexpr size_t kAdmissionBytes = 48;

std::string encode(const Invitation& invitation);
std::string encode(const Application& application);
std::string encode(const Admission& admission);
// Nothing if `bytes` are not what encode() writes: another program, or another version of this one.
std::optional<Invitation> decode_invitation(std::string_view bytes);
std::optional<Application> decode_application(std::string_view bytes);
std::optional<Admission> decode_admission(std::string_view bytes);

// Whether an application may begin with `bytes`, which are fewer than it has.
bool may_become_application(std::string_view bytes);

// The store's judgement on `application`.
AdmissionVerdict judge(const JobSecret& secret, const Nonce& store_nonce, const Application& application);
Proof proof_of_rank(const JobSecret& secret, const Nonce& store_nonce, const Nonce& rank_nonce, int32_t rank);
Proof proof_of_store(const JobSecret& secret, const Nonce& store_nonce, const Nonce& rank_nonce);

// Frames of one connection after the greeting. Each side seals what it sends and opens what it receives. Not
// thread-safe.
class FrameCodec {
 public:
  enum class Side { kStore, kRank };
  FrameCodec() = default;
  FrameCodec(const JobSecret& secret, const Nonce& store_nonce, const Nonce& rank_nonce, Side side);

  std::string seal(std::string_view message);

  enum class Opened { kFrame, kIncomplete, kForged };
  // Takes the first frame from the front of `bytes` and puts what it holds into `message`. kForged: the connection is
  // not to be used any more.
  Opened open(std::string& bytes, std::string& message);

 private:
  struct Direction {
    JobSecret key;
    uint64_t count = 0;
  };
  static Proof code_of(Direction& direction, std::string_view message);

  Direction sent_;
  Direction received_;
};

}  // namespace fsdp::comm
