#include "train/logs/event_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <system_error>

#include "fsdp/base/error.h"
#include "train/base/format.h"

namespace fsdp::train {
namespace {

namespace fs = std::filesystem;

constexpr const char* kNameBegin = "events.out.tfevents.";

// CRC-32C (Castagnoli), which TFRecords use: not the polynomial of zip files.
constexpr std::array<uint32_t, 256> make_crc_table() {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t value = i;
    for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ ((value & 1) != 0 ? 0x82F63B78u : 0u);
    table[i] = value;
  }
  return table;
}

// A sum of data that holds sums would be a weak one, so the format turns and shifts it.
uint32_t masked_crc(const std::string& data) {
  static constexpr std::array<uint32_t, 256> kTable = make_crc_table();
  uint32_t crc = ~0u;
  for (const char c : data) crc = kTable[(crc ^ static_cast<unsigned char>(c)) & 0xff] ^ (crc >> 8);
  return std::rotr(~crc, 15) + 0xa282ead8u;
}

template <class Number>
std::string little_endian(Number value) {
  std::string bytes;
  for (size_t i = 0; i < sizeof(Number); ++i) bytes += static_cast<char>((value >> (8 * i)) & 0xff);
  return bytes;
}

// Protocol buffers: a message is a sequence of fields, each its number and kind and then its value.
enum class Wire { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

std::string varint(uint64_t value) {
  std::string bytes;
  for (; value >= 0x80; value >>= 7) bytes += static_cast<char>(value | 0x80);
  return bytes + static_cast<char>(value);
}

std::string key_of(int number, Wire wire) {
  return varint(static_cast<uint64_t>(number) << 3 | static_cast<int>(wire));
}

std::string bytes_field(int number, const std::string& bytes) {
  return key_of(number, Wire::kBytes) + varint(bytes.size()) + bytes;
}
std::string varint_field(int number, uint64_t value) { return key_of(number, Wire::kVarint) + varint(value); }
std::string double_field(int number, double value) {
  return key_of(number, Wire::kFixed64) + little_endian(std::bit_cast<uint64_t>(value));
}
std::string float_field(int number, float value) {
  return key_of(number, Wire::kFixed32) + little_endian(std::bit_cast<uint32_t>(value));
}

// tensorflow.Event: wall_time = 1, step = 2, file_version = 3, summary = 5, session_log = 7.
std::string event(int64_t step, const std::string& what) {
  const std::chrono::duration<double> now = std::chrono::system_clock::now().time_since_epoch();
  return double_field(1, now.count()) + varint_field(2, static_cast<uint64_t>(step)) + what;
}

// Summary.value = 1; of a value: tag = 1, simple_value = 2.
std::string scalar_summary(const std::string& tag, double value) {
  return bytes_field(5, bytes_field(1, bytes_field(1, tag) + float_field(2, static_cast<float>(value))));
}

// SessionLog.status = 1: START = 1. Readers drop what they have from this event's step on.
std::string session_start() { return bytes_field(7, varint_field(1, 1)); }

std::string new_file_name() {
  char host[256] = "host";
  gethostname(host, sizeof(host) - 1);
  const auto now =
      std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch());
  return kNameBegin + format_text("%010lld.%s.%d.0", static_cast<long long>(now.count()), host, getpid());
}

}  // namespace

EventFile::EventFile(const fs::path& folder, int64_t last_step) : path_(folder / new_file_name()) {
  std::error_code ignored;
  fs::create_directories(folder, ignored);
  descriptor_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (descriptor_ < 0) {
    throw Error(ErrorCode::kFileSystem, "[train] output.tensorboard: " + path_.string() +
                                            ": cannot be written: " + std::strerror(errno) +
                                            ". Choose another output.folder, or leave output.tensorboard out.");
  }
  append_record(event(0, bytes_field(3, "brain.Event:2")));
  go_back_to(last_step);
}

EventFile::~EventFile() { close(descriptor_); }

void EventFile::add(int64_t step, const std::string& tag, double value) {
  append_record(event(step, scalar_summary(tag, value)));
}

void EventFile::go_back_to(int64_t last_step) { append_record(event(last_step + 1, session_start())); }

void EventFile::append_record(const std::string& data) {
  const std::string length = little_endian(static_cast<uint64_t>(data.size()));
  const std::string record = length + little_endian(masked_crc(length)) + data + little_endian(masked_crc(data));
  if (write(descriptor_, record.data(), record.size()) != static_cast<ssize_t>(record.size())) {
    throw Error(ErrorCode::kFileSystem,
                "[train] " + path_.string() + ": " + std::strerror(errno) + ". Free some space, and start again.");
  }
}

void EventFile::remove_all(const fs::path& folder) {
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    if (entry.path().filename().string().rfind(kNameBegin, 0) == 0) fs::remove(entry.path(), ignored);
  }
}

}  // namespace fsdp::train
