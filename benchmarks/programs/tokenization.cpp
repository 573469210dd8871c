// Encodes documents with a tokenizer on one thread, and times it. Also the probe of
// tests/interop/tokenizer_differential.py.
//
//   tokenization TOKENIZER DOCUMENTS [--rounds N] [--ids FILE] [--texts FILE]
//
// DOCUMENTS: for each its size in bytes as uint32, and its bytes; little-endian. --ids: for each document the number of
// its ids and the ids, int32. --texts: what they decode to, in the form of DOCUMENTS. Prints one line of JSON.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "text/tokenizer/tokenizer.h"

namespace fsdp::benchmarks::tokenization_program {
namespace {

using fsdp::tokenizer::Tokenizer;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

std::string read_whole(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error(path + ": cannot be read");
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

std::vector<std::string_view> documents_of(std::string_view bytes) {
  std::vector<std::string_view> documents;
  while (!bytes.empty()) {
    uint32_t size = 0;
    if (bytes.size() < sizeof size) throw std::runtime_error("DOCUMENTS ends inside a size");
    std::memcpy(&size, bytes.data(), sizeof size);
    bytes.remove_prefix(sizeof size);
    if (bytes.size() < size) throw std::runtime_error("DOCUMENTS ends inside a document");
    documents.push_back(bytes.substr(0, size));
    bytes.remove_prefix(size);
  }
  return documents;
}

void write_block(std::ofstream& file, uint32_t size, const void* data, size_t num_bytes) {
  file.write(reinterpret_cast<const char*>(&size), sizeof size);
  file.write(static_cast<const char*>(data), static_cast<std::streamsize>(num_bytes));
}

void write_results(const Tokenizer& tokenizer, const std::vector<std::string_view>& documents,
                   const std::string& ids_path, const std::string& texts_path) {
  std::ofstream ids_file(ids_path, std::ios::binary);
  std::ofstream texts_file(texts_path, std::ios::binary);
  for (const std::string_view document : documents) {
    const std::vector<int32_t> ids = tokenizer.encode(document);
    if (!ids_path.empty())
      write_block(ids_file, static_cast<uint32_t>(ids.size()), ids.data(), ids.size() * sizeof ids[0]);
    if (texts_path.empty()) continue;
    const std::string text = tokenizer.decode(ids);
    write_block(texts_file, static_cast<uint32_t>(text.size()), text.data(), text.size());
  }
}

}  // namespace

int run(int argc, char** argv) {
  std::string folder;
  std::string path;
  std::string ids_path;
  std::string texts_path;
  int num_rounds = 1;
  CLI::App parser("Times a tokenizer on one thread.");
  parser.add_option("TOKENIZER", folder)->required();
  parser.add_option("DOCUMENTS", path)->required();
  parser.add_option("--rounds", num_rounds)->check(CLI::Range(1, 1000));
  parser.add_option("--ids", ids_path);
  parser.add_option("--texts", texts_path);
  CLI11_PARSE(parser, argc, argv);

  const Clock::time_point load_start = Clock::now();
  const Tokenizer tokenizer = Tokenizer::load(folder);
  const double load_s = seconds_since(load_start);
  const std::string bytes = read_whole(path);
  const std::vector<std::string_view> documents = documents_of(bytes);
  std::vector<double> encode_s;
  std::vector<int32_t> ids;
  size_t num_ids = 0;
  for (int round = 0; round < num_rounds; ++round) {
    num_ids = 0;
    const Clock::time_point start = Clock::now();
    for (const std::string_view document : documents) {
      ids.clear();
      tokenizer.encode(document, fsdp::tokenizer::SpecialTokens::kNone, ids);
      num_ids += ids.size();
    }
    encode_s.push_back(seconds_since(start));
  }
  if (!ids_path.empty() || !texts_path.empty()) write_results(tokenizer, documents, ids_path, texts_path);
  std::printf("{\"load_s\": %.4f, \"encode_s\": %.6f, \"bytes\": %zu, \"ids\": %zu, \"documents\": %zu}\n", load_s,
              *std::min_element(encode_s.begin(), encode_s.end()), bytes.size() - 4 * documents.size(), num_ids,
              documents.size());
  return 0;
}

}  // namespace fsdp::benchmarks::tokenization_program
