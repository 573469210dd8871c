// A reader of TensorBoard's event files that shares nothing with the writer: fields are walked from the formats'
// documents (TFRecord; protocol buffers' wire format), sums are computed bit by bit.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace fsdp::train::event_records {

inline uint32_t crc32c(std::string_view bytes) {
  uint32_t crc = 0xffffffff;
  for (const char c : bytes) {
    for (int bit = 0; bit < 8; ++bit) {
      const bool carry = ((crc ^ (static_cast<unsigned char>(c) >> bit)) & 1) != 0;
      crc = (crc >> 1) ^ (carry ? 0x82f63b78 : 0);
    }
  }
  return crc ^ 0xffffffff;
}

// What TFRecords store in place of a sum.
inline uint32_t masked(uint32_t crc) { return ((crc >> 15) | (crc << 17)) + 0xa282ead8; }

template <class Number>
Number number_at(std::string_view bytes, size_t at) {
  Number value{};
  EXPECT_LE(at + sizeof(Number), bytes.size());
  if (at + sizeof(Number) <= bytes.size()) std::memcpy(&value, bytes.data() + at, sizeof(Number));
  return value;
}

// Of a message: the last value of each field.
using Field = std::variant<uint64_t, double, float, std::string>;
inline std::map<uint64_t, Field> fields_of(std::string_view bytes) {
  std::map<uint64_t, Field> fields;
  size_t at = 0;
  const auto varint = [&] {
    uint64_t value = 0;
    for (int shift = 0; shift < 64 && at < bytes.size(); shift += 7) {
      const auto byte = static_cast<unsigned char>(bytes[at++]);
      value |= static_cast<uint64_t>(byte & 0x7f) << shift;
      if (byte < 0x80) break;
    }
    return value;
  };
  while (at < bytes.size()) {
    const uint64_t key = varint();
    switch (key & 7) {
      case 0:
        fields[key >> 3] = varint();
        break;
      case 1:
        fields[key >> 3] = number_at<double>(bytes, at);
        at += 8;
        break;
      case 2: {
        const uint64_t size = varint();
        fields[key >> 3] = std::string(bytes.substr(at, size));
        at += size;
        break;
      }
      case 5:
        fields[key >> 3] = number_at<float>(bytes, at);
        at += 4;
        break;
      default:
        ADD_FAILURE() << "wire type " << (key & 7);
        return fields;
    }
  }
  return fields;
}

struct ReadEvent {
  double wall_time = 0;
  int64_t step = 0;
  std::string file_version;  // of the first event of a file
  bool starts_session = false;
  std::string tag;
  float value = 0;
};

inline ReadEvent read_event(std::string_view bytes) {
  ReadEvent event;
  for (const auto& [number, field] : fields_of(bytes)) {
    if (number == 1) event.wall_time = std::get<double>(field);
    if (number == 2) event.step = static_cast<int64_t>(std::get<uint64_t>(field));
    if (number == 3) event.file_version = std::get<std::string>(field);
    if (number == 7) event.starts_session = std::get<uint64_t>(fields_of(std::get<std::string>(field)).at(1)) == 1;
    if (number != 5) continue;
    const auto value = fields_of(std::get<std::string>(fields_of(std::get<std::string>(field)).at(1)));
    event.tag = std::get<std::string>(value.at(1));
    event.value = std::get<float>(value.at(2));
  }
  return event;
}

inline std::vector<ReadEvent> read_event_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const std::string_view all = bytes;
  std::vector<ReadEvent> events;
  for (size_t at = 0; at < all.size();) {
    const auto size = number_at<uint64_t>(all, at);
    EXPECT_EQ(number_at<uint32_t>(all, at + 8), masked(crc32c(all.substr(at, 8))));
    EXPECT_LE(at + 16 + size, all.size()) << "a record is torn";
    if (at + 16 + size > all.size()) break;
    const std::string_view data = all.substr(at + 12, size);
    EXPECT_EQ(number_at<uint32_t>(all, at + 12 + size), masked(crc32c(data)));
    events.push_back(read_event(data));
    at += 16 + size;
  }
  return events;
}

// What TensorBoard shows of files read one after the other: a session that starts at a step forgets what was there from
// it on.
inline std::map<std::string, std::map<int64_t, float>> shown(const std::vector<std::string>& paths) {
  std::map<std::string, std::map<int64_t, float>> curves;
  for (const std::string& path : paths) {
    for (const ReadEvent& event : read_event_file(path)) {
      if (event.starts_session)
        for (auto& [tag, curve] : curves) curve.erase(curve.lower_bound(event.step), curve.end());
      if (!event.tag.empty()) curves[event.tag][event.step] = event.value;
    }
  }
  return curves;
}

}  // namespace fsdp::train::event_records
