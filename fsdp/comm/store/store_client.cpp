#include "fsdp/comm/store/store_client.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "fsdp/base/check.h"
#include "fsdp/comm/store/sockets.h"

namespace fsdp::comm {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kEnterPause{20};
constexpr milliseconds kLongestEnterPause{500};
// For words of the greeting: a store that is alive says them at once.
constexpr milliseconds kGreetingPatience = std::chrono::seconds(10);
// For an answer beyond the time the store itself may take.
constexpr milliseconds kAnswerPatience = std::chrono::seconds(10);
constexpr milliseconds kLongestTimeout = std::chrono::hours(24 * 365);

std::string text_of(const std::vector<uint8_t>& bytes) { return {bytes.begin(), bytes.end()}; }
std::vector<uint8_t> bytes_of(const std::string& text) { return {text.begin(), text.end()}; }

std::string name_keys(const std::vector<std::string>& keys) {
  if (keys.empty()) return "no key";
  return "'" + keys.front() + "'" + (keys.size() > 1 ? " and " + std::to_string(keys.size() - 1) + " more" : "");
}

// Nothing: the other side does not say so many bytes in time.
std::optional<std::string> receive_exactly(const FileDescriptor& connection, std::string& received, size_t size,
                                           std::chrono::steady_clock::time_point until) {
  while (received.size() < size) {
    if (!receive_some(connection, received, until)) return std::nullopt;
  }
  std::string front = received.substr(0, size);
  received.erase(0, size);
  return front;
}

}  // namespace

StoreClient::StoreClient(StoreAddress address) : Store(address.deadline), address_(std::move(address)) {
  const auto until = Clock::now() + address_.deadline;
  for (auto pause = kEnterPause; try_to_enter(until) == Entry::kTryAgain;
       pause = std::min(2 * pause, kLongestEnterPause)) {
    if (Clock::now() >= until) throw_unreachable(failure_);
    std::this_thread::sleep_for(std::min<Clock::duration>(pause, until - Clock::now()));
  }
}

// A store that is crowded by strangers may close the connection of a rank too.
StoreClient::Entry StoreClient::try_to_enter(Clock::time_point until) {
  const auto time_left = std::max(milliseconds(0), std::chrono::ceil<milliseconds>(until - Clock::now()));
  Attempted attempted = connect_within(address_.host, address_.port, time_left);
  if (!attempted.connection) {
    failure_ = attempted.failure;
    return Entry::kTryAgain;
  }
  const auto words_until = std::min(until, Clock::now() + kGreetingPatience);
  failure_ = "something accepts the connection, but does not greet as the store of a job does";
  std::string received;
  const auto first = receive_exactly(attempted.connection, received, kInvitationBytes, words_until);
  if (!first && received.empty()) return Entry::kTryAgain;
  const auto invitation = first ? decode_invitation(*first) : std::nullopt;
  if (!invitation) throw_not_ours();
  Application application{address_.secret.is_given(), address_.rank, fresh_nonce(), {}};
  application.proof = proof_of_rank(address_.secret, invitation->nonce, application.nonce, address_.rank);
  failure_ = "the store closes the connection";
  if (!send_all(attempted.connection, encode(application), words_until)) return Entry::kTryAgain;
  const auto last = receive_exactly(attempted.connection, received, kAdmissionBytes, words_until);
  if (!last) return Entry::kTryAgain;
  const auto admission = decode_admission(*last);
  if (!admission) throw_not_ours();
  check_admission(*admission, invitation->nonce, application.nonce);
  codec_ = FrameCodec(address_.secret, invitation->nonce, application.nonce, FrameCodec::Side::kRank);
  connection_ = std::move(attempted.connection);
  received_ = std::move(received);
  return Entry::kAdmitted;
}

void StoreClient::check_admission(const Admission& admission, const Nonce& store_nonce, const Nonce& own_nonce) const {
  const std::string place = c10::str("the store at ", address_.host, ":", address_.port);
  const std::string prefix = c10::str("[init] ", address_.who, ": job secret: ");
  const char* fix = " Start all ranks with the same FSDP_JOB_SECRET or FSDP_JOB_SECRET_FILE.";
  switch (admission.verdict) {
    case AdmissionVerdict::kAdmitted: {
      const Proof expected = proof_of_store(address_.secret, store_nonce, own_nonce);
      if (are_equal(admission.proof, expected)) return;
      FSDP_THROW(kCommunication, prefix, place, " does not prove that it knows the secret: it is not the job's. ",
                 "Another program listens there; set MASTER_PORT to a free port.");
    }
    case AdmissionVerdict::kSecretMissing:
      FSDP_THROW(kUsage, prefix, "got none, expected the one of ", place, ".", fix);
    case AdmissionVerdict::kSecretUnknown:
      FSDP_THROW(kUsage, prefix, "got one, but ", place, " has none.", fix);
    case AdmissionVerdict::kSecretDiffers:
      FSDP_THROW(kUsage, prefix, "got another one than ", place, " has.", fix,
                 " If they are, another job listens there: set MASTER_PORT to a free port.");
  }
}

void StoreClient::throw_unreachable(const std::string& reason) const {
  FSDP_THROW(kCommunication, "[init] ", address_.who, " cannot reach the store at ", address_.host, ":", address_.port,
             " within ", std::chrono::duration<double>(address_.deadline).count(), " s: ", reason,
             ". Check that rank 0 runs (and has not ended already), and that MASTER_ADDR and MASTER_PORT name it.");
}

void StoreClient::throw_not_ours() const {
  FSDP_THROW(kCommunication, "[init] ", address_.who, ": what listens at ", address_.host, ":", address_.port,
             " is not the store of a job of this build. Set MASTER_PORT to a free port, and start the same program on ",
             "all ranks.");
}

c10::intrusive_ptr<c10d::Store> StoreClient::clone() {
  StoreAddress address = address_;
  auto copy = c10::make_intrusive<StoreClient>(std::move(address));
  copy->setTimeout(getTimeout());
  return copy;
}

StoreAnswer StoreClient::ask(const StoreRequest& request) {
  const std::lock_guard lock(mutex_);
  StoreAnswer answer = exchange(request);
  if (answer.verdict == StoreVerdict::kDone) return answer;
  if (answer.verdict == StoreVerdict::kLate) {
    FSDP_THROW(kCommunication, "[store] ", address_.who, ": after ",
               std::chrono::duration<double>(request.patience).count(), " s there is no ", name_keys(request.keys),
               " in the store of the job.");
  }
  FSDP_THROW(kCommunication, "[store] ", address_.who, ": the value at ", name_keys(request.keys), " is no number.");
}

StoreAnswer StoreClient::exchange(const StoreRequest& request) {
  const std::string message = encode(request);
  FSDP_CHECK(message.size() <= kMostMessageBytes, "[store] ", address_.who, ": ", name_keys(request.keys), ": got ",
             message.size(), " bytes, expected at most ", kMostMessageBytes, ".");
  FSDP_CHECK(request.keys.size() <= kMostListItems, "[store] ", address_.who, ": got ", request.keys.size(),
             " keys, expected at most ", kMostListItems, ".");
  const auto until = Clock::now() + std::min(request.patience, kLongestTimeout) + kAnswerPatience;
  const bool is_sent = connection_ && send_all(connection_, codec_.seal(message), until);
  auto answer = decode_answer(is_sent ? receive_message(until) : "");
  const bool lacks_values = answer && request.operation == StoreOperation::kGet &&
                            answer->verdict == StoreVerdict::kDone && answer->values.size() != request.keys.size();
  if (!answer || lacks_values) {
    connection_ = FileDescriptor();  // an answer that comes late would be taken for the next one
    FSDP_THROW(kCommunication, "[store] ", address_.who, ": the store of the job at ", address_.host, ":",
               address_.port, " does not answer. Check the process that hosts it: rank 0, or the launcher.");
  }
  return *answer;
}

// "": none came, or a forged one.
std::string StoreClient::receive_message(Clock::time_point until) {
  std::string message;
  auto opened = FrameCodec::Opened::kIncomplete;
  while ((opened = codec_.open(received_, message)) == FrameCodec::Opened::kIncomplete) {
    if (!receive_some(connection_, received_, until)) return "";
  }
  return opened == FrameCodec::Opened::kFrame ? message : "";
}

void StoreClient::set(const std::string& key, const std::vector<uint8_t>& value) {
  ask({StoreOperation::kSet, getTimeout(), 0, {key}, {text_of(value)}});
}

std::vector<uint8_t> StoreClient::compareSet(const std::string& key, const std::vector<uint8_t>& expected,
                                             const std::vector<uint8_t>& wanted) {
  const auto answer = ask({StoreOperation::kCompareSet, getTimeout(), 0, {key}, {text_of(expected), text_of(wanted)}});
  return answer.values.empty() ? std::vector<uint8_t>() : bytes_of(answer.values[0]);
}

std::vector<uint8_t> StoreClient::get(const std::string& key) {
  return bytes_of(ask({StoreOperation::kGet, getTimeout(), 0, {key}, {}}).values[0]);
}

int64_t StoreClient::add(const std::string& key, int64_t value) {
  return ask({StoreOperation::kAdd, getTimeout(), value, {key}, {}}).number;
}

bool StoreClient::deleteKey(const std::string& key) {
  return ask({StoreOperation::kDelete, getTimeout(), 0, {key}, {}}).number != 0;
}

bool StoreClient::check(const std::vector<std::string>& keys) {
  return ask({StoreOperation::kCheck, getTimeout(), 0, keys, {}}).number != 0;
}

int64_t StoreClient::getNumKeys() { return ask({StoreOperation::kCount, getTimeout(), 0, {}, {}}).number; }

void StoreClient::wait(const std::vector<std::string>& keys) { wait(keys, getTimeout()); }

void StoreClient::wait(const std::vector<std::string>& keys, const milliseconds& timeout) {
  ask({StoreOperation::kWait, timeout == kNoTimeout ? kLongestTimeout : timeout, 0, keys, {}});
}

void StoreClient::append(const std::string& key, const std::vector<uint8_t>& value) {
  ask({StoreOperation::kAppend, getTimeout(), 0, {key}, {text_of(value)}});
}

std::vector<std::vector<uint8_t>> StoreClient::multiGet(const std::vector<std::string>& keys) {
  const auto answer = ask({StoreOperation::kGet, getTimeout(), 0, keys, {}});
  std::vector<std::vector<uint8_t>> values;
  for (const std::string& value : answer.values) values.push_back(bytes_of(value));
  return values;
}

void StoreClient::multiSet(const std::vector<std::string>& keys, const std::vector<std::vector<uint8_t>>& values) {
  FSDP_CHECK(keys.size() == values.size(), "[store] multiSet: got ", keys.size(), " keys and ", values.size(),
             " values, expected as many.");
  StoreRequest request{StoreOperation::kSet, getTimeout(), 0, keys, {}};
  for (const std::vector<uint8_t>& value : values) request.values.push_back(text_of(value));
  ask(request);
}

}  // namespace fsdp::comm
