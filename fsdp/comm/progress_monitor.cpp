#include "fsdp/comm/progress_monitor.h"

#include <csignal>
#include <sstream>
#include <vector>

namespace fsdp::comm {
namespace {

constexpr auto kPublishPeriod = std::chrono::milliseconds(200);
constexpr char kSeparator = '\x1f';

constexpr char kLineEnd = '\x1e';

std::string key_of(int rank) { return "progress/" + std::to_string(rank); }
std::string loss_key_of(int rank) { return "loss/" + std::to_string(rank); }

std::string encode(const std::vector<CallRecord>& records) {
  std::ostringstream out;
  for (const CallRecord& record : records) {
    out << record.number << kSeparator << static_cast<int>(record.state) << kSeparator << record.label.op << kSeparator
        << record.label.unit << kSeparator << record.label.cause << kLineEnd;
  }
  return out.str();
}

std::vector<Progress> decode(const std::string& text) {
  std::vector<Progress> list;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line, kLineEnd);) {
    std::vector<std::string> fields;
    std::istringstream in(line);
    for (std::string field; std::getline(in, field, kSeparator);) fields.push_back(field);
    if (fields.size() < 3) continue;
    fields.resize(5);
    list.push_back(
        {std::stoll(fields[0]), static_cast<CallState>(std::stoi(fields[1])), {fields[2], fields[3], fields[4]}});
  }
  return list;
}

}  // namespace

ProgressMonitor::ProgressMonitor(c10::intrusive_ptr<c10d::Store> store, int rank, CallLog& calls)
    : store_(std::move(store)), rank_(rank), calls_(calls), thread_([this] { run(); }) {}

ProgressMonitor::~ProgressMonitor() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  stop_changed_.notify_all();
  thread_.join();
}

void ProgressMonitor::run() {
  // Signals are the user's threads' business; a monitor that dies first would take the diagnosis with it.
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, nullptr);
  std::unique_lock lock(mutex_);
  while (!stop_) {
    stop_changed_.wait_for(lock, kPublishPeriod);
    lock.unlock();
    publish();
    lock.lock();
  }
}

void ProgressMonitor::publish() {
  const int64_t revision = calls_.revision();
  if (revision == published_revision_ || revision == 0) return;
  const std::string text = encode(calls_.current());
  try {
    const std::lock_guard lock(store_mutex_);
    store_->set(key_of(rank_), std::vector<uint8_t>(text.begin(), text.end()));
    published_revision_ = revision;
  } catch (const std::exception&) {
    // The store went away with its host; the next failure's message says less, and nothing else depends on it.
  }
}

std::optional<std::string> ProgressMonitor::read(const std::string& key) {
  try {
    const std::lock_guard lock(store_mutex_);
    if (!store_->check({key})) return std::nullopt;
    const std::vector<uint8_t> bytes = store_->get(key);
    return std::string(bytes.begin(), bytes.end());
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

std::vector<Progress> ProgressMonitor::progress_of(int rank) { return decode(read(key_of(rank)).value_or("")); }

void ProgressMonitor::publish_loss(int lost_rank) {
  const std::string text = std::to_string(lost_rank);
  try {
    const std::lock_guard lock(store_mutex_);
    store_->set(loss_key_of(rank_), std::vector<uint8_t>(text.begin(), text.end()));
  } catch (const std::exception&) {
    // As in publish().
  }
}

std::optional<int> ProgressMonitor::loss_of(int rank) {
  const auto text = read(loss_key_of(rank));
  return text ? std::optional(std::stoi(*text)) : std::nullopt;
}

}  // namespace fsdp::comm
