// Reads files of documents on one core and prints what that took.
#include <CLI/CLI.hpp>
#include <cstdint>
#include <ctime>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "benchmarks/support/command_line.h"
#include "text/documents/document_reader.h"

namespace fsdp::benchmarks::documents_program {
namespace {

double cpu_ms() {
  timespec now = {};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e3 + static_cast<double>(now.tv_nsec) * 1e-6;
}

}  // namespace

int run(int argc, char** argv) {
  std::string path;
  int times = 1;
  CLI::App app("Reads a file of documents; prints CPU milliseconds, documents and bytes of text");
  app.add_option("path", path)->required();
  app.add_option("--times", times);
  parse_or_exit(app, argc, argv);

  std::vector<double> ms;
  int64_t num_documents = 0;
  uint64_t text_bytes = 0;
  for (int i = 0; i < times; ++i) {
    const double start = cpu_ms();
    const auto reader = fsdp::io::DocumentReader::open(path, {});
    fsdp::io::Document document;
    num_documents = 0;
    text_bytes = 0;
    while (reader->next(document)) {
      ++num_documents;
      text_bytes += document.text.size();
    }
    ms.push_back(cpu_ms() - start);
  }
  std::cout << nlohmann::json{{"cpu_ms", ms}, {"documents", num_documents}, {"text_bytes", text_bytes}} << "\n";
  return 0;
}

}  // namespace fsdp::benchmarks::documents_program
