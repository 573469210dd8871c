#include "fsdp/comm/store/guest.h"

#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <utility>

#include "fsdp/comm/store/sockets.h"

namespace fsdp::comm {
namespace {

// One guest at a time may not keep the others waiting.
constexpr int kReadsPerVisit = 16;
constexpr size_t kReadBytes = 1 << 16;
// Of answers that it does not take.
constexpr size_t kMostUnsentBytes = 2 * kMostMessageBytes;

RefusalReason reason_of(AdmissionVerdict verdict) {
  switch (verdict) {
    case AdmissionVerdict::kSecretMissing:
      return RefusalReason::kSecretMissing;
    case AdmissionVerdict::kSecretUnknown:
      return RefusalReason::kSecretUnknown;
    default:
      return RefusalReason::kSecretDiffers;
  }
}

}  // namespace

Guest::Guest(FileDescriptor socket) : socket_(std::move(socket)), address_(peer_of(socket_)), nonce_(fresh_nonce()) {}

bool Guest::greet(const JobSecret& secret) {
  to_send_ += encode(Invitation{secret.is_given(), nonce_});
  return send_rest();
}

std::string Guest::name() const {
  return address_ + (rank_ ? ", which says that it is rank " + std::to_string(*rank_) : "");
}

bool Guest::refuse(RefusalReason reason) {
  refusal_ = reason;
  return false;
}

// Of a stranger no more bytes are kept than an application has.
bool Guest::read_application() {
  std::array<char, kApplicationBytes> part{};
  const ssize_t count = recv(socket_.get(), part.data(), kApplicationBytes - received_.size(), 0);
  if (count < 0) return errno == EAGAIN || errno == EINTR;
  if (count == 0) return refuse(received_.empty() ? RefusalReason::kSilent : RefusalReason::kStranger);
  received_.append(part.data(), static_cast<size_t>(count));
  return may_become_application(received_) || refuse(RefusalReason::kStranger);
}

bool Guest::consider(const JobSecret& secret) {
  const auto application = decode_application(received_);
  if (!application) return refuse(RefusalReason::kStranger);
  rank_ = application->rank;
  const AdmissionVerdict verdict = judge(secret, nonce_, *application);
  Admission admission{verdict, {}};
  const bool is_admitted = verdict == AdmissionVerdict::kAdmitted;
  if (is_admitted) admission.proof = proof_of_store(secret, nonce_, application->nonce);
  to_send_ += encode(admission);
  const bool is_sent = send_rest();
  if (!is_admitted) return refuse(reason_of(verdict));
  codec_.emplace(secret, nonce_, application->nonce, FrameCodec::Side::kStore);
  received_.clear();
  return is_sent;
}

bool Guest::receive(const JobSecret& secret) {
  if (!is_proven()) {
    if (!read_application()) return false;
    return received_.size() < kApplicationBytes || consider(secret);
  }
  std::array<char, kReadBytes> part;
  for (int i = 0; i < kReadsPerVisit; ++i) {
    const ssize_t count = recv(socket_.get(), part.data(), part.size(), 0);
    if (count < 0) return errno == EAGAIN || errno == EINTR;
    if (count == 0) return false;
    received_.append(part.data(), static_cast<size_t>(count));
    if (received_.size() > 2 * kMostMessageBytes) return refuse(RefusalReason::kForged);
  }
  return true;
}

std::optional<StoreRequest> Guest::next_request() {
  if (!is_proven() || refusal_) return std::nullopt;
  std::string message;
  switch (codec_->open(received_, message)) {
    case FrameCodec::Opened::kIncomplete:
      return std::nullopt;
    case FrameCodec::Opened::kForged:
      refuse(RefusalReason::kForged);
      return std::nullopt;
    case FrameCodec::Opened::kFrame:
      break;
  }
  auto request = decode_request(message);
  if (!request) refuse(RefusalReason::kForged);
  return request;
}

bool Guest::answer(const StoreAnswer& answer) {
  to_send_ += codec_->seal(encode(answer));
  return to_send_.size() <= kMostUnsentBytes && send_rest();
}

bool Guest::send_rest() {
  while (!to_send_.empty()) {
    const ssize_t count = send(socket_.get(), to_send_.data(), to_send_.size(), MSG_NOSIGNAL);
    if (count < 0) return errno == EAGAIN || errno == EINTR;
    to_send_.erase(0, static_cast<size_t>(count));
  }
  return true;
}

}  // namespace fsdp::comm
