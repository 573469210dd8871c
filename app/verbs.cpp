#include "app/verbs.h"

#include <algorithm>

#include "train/base/edit_distance.h"

namespace fsdp::app {

const std::vector<Verb>& verbs() {
  static const std::vector<Verb> all = {
      {"prepare", "turn documents into a data set of tokens"},
      {"plan", "say what a run will take, before it exists"},
      {"train", "train a model, alone or as one of many ranks"},
      {"launch", "start a verb as several ranks on this host"},
      {"report", "draw trainings as one page of HTML"},
      {"trace", "draw a recorded step, and say what it waited for"},
      {"generate", "continue prompts with a trained model, or chat with it"},
      {"eval", "measure a model: perplexity, multiple choice"},
      {"parity", "compare a model with values computed elsewhere"},
      {"verify", "check that checkpoints are whole, byte by byte"},
      {"inspect", "say what a model folder or data set holds"},
      {"import", "turn other checkpoints into a model folder"},
      {"export", "turn a model folder or checkpoint into other formats"},
      {"config", "print configuration keys, check a file, compare two"},
      {"tokenizer", "train a tokenizer, or use one"},
      {"bench", "compare strategies by training a little with each"},
      {"doctor", "say whether training would work on this machine"},
      {"completion", "print what a shell needs to complete command lines"},
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

std::string guess_verb(const std::string& name) {
  const std::vector<Verb>& all = verbs();
  const auto distance = [&](const Verb& verb) { return train::edit_distance(name, verb.name); };
  const auto nearest =
      std::min_element(all.begin(), all.end(), [&](const Verb& a, const Verb& b) { return distance(a) < distance(b); });
  return train::did_you_mean(train::is_near(name, nearest->name) ? nearest->name : "");
}

}  // namespace fsdp::app
