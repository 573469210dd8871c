#include "train/prepare.h"

#include <algorithm>
#include <cstdio>

#include "app/command_line.h"
#include "fsdp/base/error.h"
#include "train/format.h"

namespace fsdp::app {
namespace {

// "5%" or "0.05".
double parse_share(const std::string& text) {
  size_t used = 0;
  double share = -1;
  try {
    share = std::stod(text, &used);
  } catch (const std::exception&) {
  }
  if (used + 1 == text.size() && text.back() == '%') {
    share /= 100;
    ++used;
  }
  if (used != text.size() || !(share >= 0 && share < 1)) {
    throw Error(ErrorCode::kUsage, "[prepare] --holdout: got " + text + ", expected a share such as 5% or 0.05");
  }
  return share;
}

std::vector<std::string> split_extensions(const std::string& list) {
  std::vector<std::string> extensions;
  size_t begin = 0;
  while (!list.empty() && begin <= list.size()) {
    const size_t comma = std::min(list.find(',', begin), list.size());
    const std::string item = list.substr(begin, comma - begin);
    extensions.push_back(item.empty() || item.front() == '.' ? item : "." + item);
    begin = comma + 1;
  }
  return extensions;
}

}  // namespace

int run_prepare(const Arguments& arguments) {
  train::PrepareOptions options;
  std::vector<std::string> inputs;
  std::string output;
  std::string include;
  std::string holdout = "5%";
  CLI::App parser("Turns text files into a data set: one token per byte, one document per file.", "fsdp prepare");
  parser.add_option("INPUT", inputs, "text files, and folders that are searched recursively")->required();
  parser.add_option("-o,--output", output, "data set folder to write")->required();
  parser.add_option("--include", include, "in folders, take only these extensions: .h,.cpp (an empty item: none)");
  parser.add_option("--holdout", holdout,
                    "share of the files, last in the sorted list, for the split `heldout`; default 5%");
  parser.add_option("--threads", options.threads, "default: one per core")->check(CLI::Range(0, 1024));
  parser.add_option("--max-document-bytes", options.max_document_bytes, "a longer file becomes several documents")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 30));
  parser.add_flag("--overwrite", options.overwrite, "replace an existing output folder");
  if (parse(parser, arguments) == Parsed::kHelpShown) {
    return 0;
  }
  options.inputs.assign(inputs.begin(), inputs.end());
  options.output = output;
  options.extensions = split_extensions(include);
  options.holdout = parse_share(holdout);

  train::Console console(train::Console::detect(stdout, 0));
  const train::PrepareResult result = train::prepare(options, console);
  console.line(train::format_text(
      "prepare: %s files (%s held out, %s empty and left out), %.1f MB, %s tokens -> %s | %.1f s, %.1f MB/s",
      train::with_thousands(result.num_files).c_str(), train::with_thousands(result.num_heldout_files).c_str(),
      train::with_thousands(result.num_empty_files).c_str(), static_cast<double>(result.num_bytes) / 1e6,
      train::with_thousands(result.num_tokens).c_str(), output.c_str(), result.seconds,
      static_cast<double>(result.num_bytes) / 1e6 / std::max(result.seconds, 1e-9)));
  return 0;
}

}  // namespace fsdp::app
