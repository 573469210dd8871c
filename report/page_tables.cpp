#include "report/page_tables.h"

#include <algorithm>
#include <map>
#include <set>

#include "plan/picture/xml_text.h"
#include "report/chart.h"
#include "report/summary.h"

namespace fsdp::report {
namespace {

using plan::xml_text;

// Text over several lines, whose line ends stay.
std::string block_text(const std::string& text) {
  std::string html;
  size_t begin = 0;
  for (size_t end; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1)
    html += xml_text(text.substr(begin, end - begin)) + "\n";
  return html + xml_text(text.substr(begin));
}

// Checkpoints are many, and in the picture: here they are counted.
bool is_told(const Event& event) { return event.kind != "committed"; }

std::string event_row(const Event& event, int place) {
  return "<tr><td>" + run_badge(place) + "</td><td>" + (has_sign(event.kind) ? draw_sign(event.kind) + " " : "") +
         event_words(event.kind) + "</td><td>step " + with_commas(static_cast<double>(event.step)) +
         "</td><td><small>" + moment_text(event.time) + "</small></td><td>" + xml_text(event.text) + "</td></tr>\n";
}

std::string value_cell(const std::string& value) {
  return "<td class=\"mono\">" + (value.empty() ? "<small>not there</small>" : xml_text(value)) + "</td>";
}

std::string difference_table(const std::vector<std::string>& heads, const std::vector<Difference>& rows) {
  std::string html = "<div class=\"wide-table\"><table><tr><th>key</th>";
  for (const std::string& head : heads) html += "<th>" + head + "</th>";
  html += "</tr>\n";
  for (const Difference& row : rows) {
    html += "<tr><td class=\"mono key\">" + xml_text(row.key) + "</td>";
    for (const std::string& value : row.values) html += value_cell(value);
    html += "</tr>\n";
  }
  return html + "</table></div>\n";
}

std::string all_settings(const RunRecord& run, int place) {
  if (run.settings.empty()) return "";
  std::string html =
      "<details><summary>all settings of " + run_badge(place) + " " + xml_text(run.name) + "</summary><pre>";
  for (const Setting& setting : run.settings) html += xml_text(setting.key + " = " + setting.value) + "\n";
  return html + "</pre></details>\n";
}

// The first, the last, and some between.
std::vector<const SampleText*> chosen(const std::vector<const SampleText*>& samples) {
  constexpr size_t kMost = 6;
  if (samples.size() <= kMost) return samples;
  std::vector<const SampleText*> few;
  for (size_t i = 0; i < kMost; ++i) few.push_back(samples[i * (samples.size() - 1) / (kMost - 1)]);
  return few;
}

std::string samples_of(const RunRecord& run, int place) {
  std::map<std::string, std::vector<const SampleText*>> by_prompt;
  for (const SampleText& sample : run.samples) by_prompt[sample.prompt].push_back(&sample);
  std::string html;
  for (const auto& [prompt, samples] : by_prompt) {
    html += "<section class=\"card\"><header>" + run_badge(place) + "<h3>" +
            xml_text(prompt.empty() ? "(empty prompt)" : prompt) + "</h3></header>";
    for (const SampleText* sample : chosen(samples)) {
      html += "<p><small>after step " + with_commas(static_cast<double>(sample->step)) + "</small></p><pre><b>" +
              block_text(prompt) + "</b>" + block_text(sample->text) + "</pre>";
    }
    html += "</section>\n";
  }
  return html;
}

}  // namespace

std::string run_badge(int place) {
  return "<span class=\"badge r" + std::to_string(place) + "\">" + letter(place) + "</span>";
}

std::string event_words(const std::string& kind) {
  static const std::map<std::string, std::string> words = {{"started", "started"},
                                                           {"resumed", "resumed from a checkpoint"},
                                                           {"committed", "checkpoint"},
                                                           {"save_failed", "save failed"},
                                                           {"spike", "spike"},
                                                           {"skipped", "step skipped"},
                                                           {"rolled_back", "rolled back"},
                                                           {"passing_error", "passing error of a machine"},
                                                           {"slow_rank", "slow rank"},
                                                           {"stopped", "stopped on request"},
                                                           {"ended", "finished"},
                                                           {"failed", "failed"}};
  const auto found = words.find(kind);
  return found == words.end() ? xml_text(kind) : found->second;
}

std::string subject_of(const RunRecord& run) {
  for (auto event = run.events.rbegin(); event != run.events.rend(); ++event)
    if (event->kind == "started") return event->text;
  return "";
}

std::string event_section(const std::vector<RunRecord>& runs) {
  std::string html;
  for (size_t i = 0; i < runs.size(); ++i) {
    constexpr int64_t kMostRows = 60;
    int64_t checkpoints = 0, rows = 0;
    for (const Event& event : runs[i].events) {
      checkpoints += event.kind == "committed" ? 1 : 0;
      if (!is_told(event)) continue;
      if (++rows <= kMostRows) html += event_row(event, static_cast<int>(i));
    }
    if (rows > kMostRows) {
      html += "<tr><td>" + run_badge(static_cast<int>(i)) + "</td><td colspan=\"4\">and " +
              std::to_string(rows - kMostRows) + " more in events.jsonl</td></tr>\n";
    }
    if (checkpoints > 0) {
      html += "<tr><td>" + run_badge(static_cast<int>(i)) + "</td><td>" + draw_sign("committed") +
              " checkpoints</td><td colspan=\"3\">" + std::to_string(checkpoints) + " committed</td></tr>\n";
    }
  }
  if (html.empty()) return "";
  return "<h2>What happened</h2><section class=\"card\"><table class=\"stack\">" + html + "</table></section>\n";
}

std::string settings_section(const std::vector<RunRecord>& runs, const std::vector<Setting>& defaults) {
  const bool alone = runs.size() == 1;
  std::vector<const std::vector<Setting>*> settings;
  std::vector<std::string> heads;
  if (alone) {
    settings.push_back(&defaults);
    heads.emplace_back("default");
  }
  for (size_t i = 0; i < runs.size(); ++i) {
    if (runs[i].settings.empty()) continue;
    settings.push_back(&runs[i].settings);
    heads.push_back(run_badge(static_cast<int>(i)));
  }
  if (settings.size() < 2) return "";
  const std::vector<Difference> rows = differences(settings);
  std::string html = "<h2>Settings</h2><section class=\"card\"><p class=\"soft\">" +
                     std::string(alone ? "Where the run differs from the defaults" : "Where the runs differ") + "</p>";
  html += rows.empty() ? "<p>Nowhere, but for output.folder.</p>" : difference_table(heads, rows);
  for (size_t i = 0; i < runs.size(); ++i) html += all_settings(runs[i], static_cast<int>(i));
  return html + "</section>\n";
}

std::string sample_section(const std::vector<RunRecord>& runs) {
  std::string html;
  for (size_t i = 0; i < runs.size(); ++i) html += samples_of(runs[i], static_cast<int>(i));
  return html.empty() ? "" : "<h2>Texts that the models wrote</h2><div class=\"grid\">" + html + "</div>\n";
}

}  // namespace fsdp::report
