#include "app/verbs.h"

#include <algorithm>

#include "train/base/edit_distance.h"

namespace fsdp::app {

const std::vector<Verb>& verbs() {
  static const std::vector<Verb> all = {
      {"prepare", "turn documents into a data set of tokens", run_prepare},
      {"plan", "say what a run will take, before it exists", run_plan},
      {"train", "train a model, alone or as one of many ranks", run_train},
      {"launch", "start a verb as several ranks on this host", run_launch},
      {"report", "draw trainings as one page of HTML", run_report},
      {"trace", "draw a recorded step, and say what it waited for", run_trace},
      {"generate", "continue prompts with a trained model, or chat with it", run_generate},
      {"eval", "measure a model: perplexity, multiple choice", run_eval},
      {"parity", "compare a model with values computed elsewhere", run_parity},
      {"verify", "check that checkpoints are whole, byte by byte", run_verify},
      {"inspect", "say what a model folder or data set holds", run_inspect},
      {"import", "turn other checkpoints into a model folder", run_import},
      {"export", "turn a model folder or checkpoint into other formats", run_export},
      {"config", "print configuration keys, check a file, compare two", run_config},
      {"tokenizer", "train a tokenizer, or use one", run_tokenizer},
      {"bench", "compare strategies by training a little with each", run_bench},
      {"doctor", "say whether training would work on this machine", run_doctor},
      {"completion", "print what a shell needs to complete command lines", run_completion},
  };
  return all;
}

const Verb* find_verb(const std::string& name) {
  for (const Verb& verb : verbs()) {
    if (name == verb.name) {
      return &verb;
    }
  }
  return nullptr;
}

std::string nearest_verb(const std::string& name) {
  const std::vector<Verb>& all = verbs();
  const auto distance = [&](const Verb& verb) { return train::edit_distance(name, verb.name); };
  return std::min_element(all.begin(), all.end(),
                          [&](const Verb& a, const Verb& b) { return distance(a) < distance(b); })
      ->name;
}

}  // namespace fsdp::app
