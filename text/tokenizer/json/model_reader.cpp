#include "text/tokenizer/json/model_reader.h"

#include <algorithm>
#include <unordered_set>
#include <utility>

#include "io/base/error.h"

namespace fsdp::tokenizer {
namespace {

constexpr const char* kMark = "\xE2\x96\x81";  // U+2581, which SentencePiece writes for a space
constexpr int64_t kFreeIds = 65'536;           // ids may have holes, but not without end
constexpr size_t kMaxAddedToken = 4096;        // bytes
constexpr size_t kMaxAddedTokens = 16 << 20;   // bytes of all together: each may become a node of a tree

void read_vocabulary(const JsonNode& node, BpeModel& model) {
  node.require_object();
  const int64_t most = 4 * static_cast<int64_t>(node.json().size()) + kFreeIds;
  std::unordered_set<int32_t> ids;
  for (const auto& [token, value] : node.json().items()) {
    if (!value.is_number_unsigned() || value.get<uint64_t>() >= static_cast<uint64_t>(most)) {
      node.fail("the id " + io::in_quotes(value.dump()) + " of " + io::in_quotes(token),
                "a whole number below " + std::to_string(most));
    }
    const auto id = static_cast<int32_t>(value.get<uint64_t>());
    if (!ids.insert(id).second) node.fail("the id " + std::to_string(id) + " twice", "an id for each token");
    model.vocabulary.emplace(token, id);
    model.highest_id = std::max(model.highest_id, id);
  }
}

// "a b" or ["a", "b"].
std::pair<std::string, std::string> read_merge(const JsonNode& merges, size_t index) {
  const nlohmann::json& value = merges.json()[index];
  const auto fail = [&] {
    merges.fail("the entry " + io::in_quotes(value.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace)) +
                    " at " + std::to_string(index),
                "\"left right\" or [\"left\", \"right\"]");
  };
  if (value.is_array()) {
    if (value.size() != 2 || !value[0].is_string() || !value[1].is_string()) fail();
    return {value[0].get<std::string>(), value[1].get<std::string>()};
  }
  if (!value.is_string()) fail();
  const auto& text = value.get_ref<const std::string&>();
  const size_t space = text.find(' ');
  if (space == std::string::npos || text.find(' ', space + 1) != std::string::npos) fail();
  return {text.substr(0, space), text.substr(space + 1)};
}

bool is_version_line(const nlohmann::json& value) {
  return value.is_string() && value.get_ref<const std::string&>().starts_with("#version");
}

// Sets merges, and whether some merge joins a mark with another character before it.
void read_merges(const JsonNode& node, BpeModel& model, bool& joins_marks) {
  if (!node.json().is_array()) node.fail(node.json().type_name(), "an array");
  model.merges = PairTable(node.json().size());
  uint32_t rank = 0;
  for (size_t i = 0; i < node.json().size(); ++i) {
    if (is_version_line(node.json()[i])) continue;
    const auto [left, right] = read_merge(node, i);
    const auto id_of = [&](const std::string& token) {
      const auto found = model.vocabulary.find(token);
      if (found == model.vocabulary.end()) {
        node.fail(
            "the token " + io::in_quotes(token) + " at " + std::to_string(i) + ", which the vocabulary does not have",
            "tokens of the vocabulary");
      }
      return found->second;
    };
    model.merges.insert(id_of(left), id_of(right), {rank++, id_of(left + right)});
    joins_marks = joins_marks || (right.starts_with(kMark) && !left.ends_with(kMark));
  }
  model.num_merges = rank;
}

void refuse_unless_empty(const JsonNode& node, std::string_view key) {
  const auto value = node.find(key);
  if (value && !value->text().empty()) value->fail(io::in_quotes(value->text()), "null");
}

}  // namespace

BpeModel read_model(const JsonNode& root, Bpe::Alphabet alphabet) {
  const JsonNode node = root.at("model");
  if (const auto type = node.find("type"); type && type->text() != "BPE") {
    type->fail("the type " + io::in_quotes(type->text()), "BPE");
  }
  if (const auto dropout = node.find("dropout"); dropout && dropout->json() != 0.0) {
    dropout->fail(io::in_quotes(dropout->json().dump()), "null: encoding is not random");
  }
  refuse_unless_empty(node, "continuing_subword_prefix");
  refuse_unless_empty(node, "end_of_word_suffix");
  BpeModel model;
  bool joins_marks = false;
  read_vocabulary(node.at("vocab"), model);
  read_merges(node.at("merges"), model, joins_marks);
  model.options.alphabet = alphabet;
  model.options.byte_fallback = node.flag_or("byte_fallback", false);
  model.options.fuse_unknown = node.flag_or("fuse_unk", false);
  model.options.ignore_merges = node.flag_or("ignore_merges", false);
  bool unknown_is_mark = false;
  if (const auto unknown = node.find("unk_token")) {
    const auto found = model.vocabulary.find(unknown->text());
    if (found == model.vocabulary.end()) unknown->fail(io::in_quotes(unknown->text()), "a token of the vocabulary");
    model.options.unknown_id = found->second;
    unknown_is_mark = unknown->text().find(kMark) != std::string::npos;
  }
  const bool may_cut = alphabet == Bpe::Alphabet::kCharacters && !model.options.ignore_merges && !joins_marks &&
                       !unknown_is_mark && model.vocabulary.contains(kMark);
  if (may_cut) model.options.separator = kMark;
  return model;
}

std::vector<AddedToken> read_added_tokens(const JsonNode& root, const BpeModel& model) {
  std::vector<AddedToken> tokens;
  std::unordered_map<std::string, size_t> places;
  const auto list = root.find("added_tokens");
  if (!list) return tokens;
  auto next_id = static_cast<int64_t>(model.vocabulary.size());
  size_t num_bytes = 0;
  for (const JsonNode& node : list->items()) {
    AddedToken token;
    token.content = node.at("content").text();
    token.single_word = node.at("single_word").flag();
    token.lstrip = node.at("lstrip").flag();
    token.rstrip = node.at("rstrip").flag();
    token.normalized = node.at("normalized").flag();
    token.special = node.at("special").flag();
    if (token.content.empty()) continue;
    if (token.content.size() > kMaxAddedToken) node.at("content").fail("a text of over 4096 bytes", "a shorter one");
    num_bytes += token.content.size();
    if (num_bytes > kMaxAddedTokens) list->fail("tokens of over 16 MiB", "fewer or shorter ones (limit)");
    const auto place = places.find(token.content);
    const auto known = model.vocabulary.find(token.content);
    const int64_t id = place != places.end()             ? tokens[place->second].id
                       : known != model.vocabulary.end() ? known->second
                                                         : next_id++;
    if (node.at("id").integer() != id) {
      node.at("id").fail(std::to_string(node.at("id").integer()),
                         std::to_string(id) + ", which is what Hugging Face's tokenizers gives this token");
    }
    token.id = static_cast<int32_t>(id);
    if (place != places.end()) {
      tokens[place->second] = token;
    } else {
      places.emplace(token.content, tokens.size());
      tokens.push_back(token);
    }
  }
  return tokens;
}

}  // namespace fsdp::tokenizer
