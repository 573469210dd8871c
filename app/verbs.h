#pragma once

#include <string>
#include <vector>

namespace fsdp::app {

// Arguments after the verb.
using Arguments = std::vector<std::string>;

// One function per verb, each in the file of its name. Returns the exit code; errors are thrown and end in main() or
// fsdp_run_verb().
int run_plan(const Arguments& arguments);
int run_train(const Arguments& arguments);
int run_prepare(const Arguments& arguments);
int run_launch(const Arguments& arguments);
int run_generate(const Arguments& arguments);
int run_eval(const Arguments& arguments);
int run_parity(const Arguments& arguments);
int run_verify(const Arguments& arguments);
int run_inspect(const Arguments& arguments);
int run_import(const Arguments& arguments);
int run_export(const Arguments& arguments);
int run_config(const Arguments& arguments);
int run_tokenizer(const Arguments& arguments);
int run_bench(const Arguments& arguments);
int run_trace(const Arguments& arguments);
int run_doctor(const Arguments& arguments);
int run_completion(const Arguments& arguments);
int run_report(const Arguments& arguments);

struct Verb {
  const char* name;
  const char* summary;
};

const std::vector<Verb>& verbs();

// The verb of that name, or null.
const Verb* find_verb(const std::string& name);

// How a sentence about a name that is no verb's goes on: "; did you mean train?", or "." where none is like it.
std::string guess_verb(const std::string& name);

}  // namespace fsdp::app
