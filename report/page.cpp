#include "report/page.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "plan/picture/xml_text.h"
#include "report/memory_chart.h"
#include "report/page_assets.h"
#include "report/page_tables.h"
#include "report/run_charts.h"
#include "report/summary.h"

namespace fsdp::report {
namespace {

using plan::xml_text;

std::string fact(const char* name, const std::string& value, const std::string& more = "") {
  return std::string("<div><dt>") + name + "</dt><dd>" + xml_text(value) +
         (more.empty() ? "" : " <small>" + xml_text(more) + "</small>") + "</dd></div>";
}

std::string counted(int64_t count, const char* one, const char* many) {
  return count == 0 ? "" : std::to_string(count) + " " + (count == 1 ? one : many);
}

std::string joined(const std::vector<std::string>& parts) {
  std::string text;
  for (const std::string& part : parts)
    if (!part.empty()) text += (text.empty() ? "" : ", ") + part;
  return text;
}

std::string card(const RunRecord& run, int place) {
  const Summary sum = summarize(run);
  const StateText state = describe(run.state);
  const std::string planned = std::isfinite(sum.steps_planned) ? " of " + with_commas(sum.steps_planned) : "";
  const std::string troubles = joined({counted(sum.resumes, "resume", "resumes"), counted(sum.skips, "skip", "skips"),
                                       counted(sum.rollbacks, "rollback", "rollbacks")});
  std::string html = "<section class=\"card\"><header>" + run_badge(place) + draw_key(place) + "<h3>" +
                     xml_text(run.name) + "</h3><span class=\"state " + state.style + "\">" + state.text +
                     "</span></header><dl>";
  html += fact("Steps", with_commas(static_cast<double>(sum.steps_done)) + planned, troubles);
  html += fact("Tokens read", std::isfinite(sum.tokens) ? with_commas(sum.tokens) : "-");
  html += fact("Loss of the last steps", number_text(sum.loss));
  html += fact("Held out", number_text(sum.heldout),
               sum.best_heldout < sum.heldout ? "best " + number_text(sum.best_heldout) : "");
  html += fact("Throughput", number_text(sum.tokens_per_s) + " tok/s", "median");
  html += fact("MFU", number_text(sum.mfu, Unit::kPercent), "median");
  html += fact("Peak memory", number_text(sum.peak_bytes, Unit::kBytes), "rank 0");
  html += fact("Time", duration_text(sum.seconds));
  html += "</dl>";
  const std::string start = subject_of(run);
  if (!start.empty()) html += "<p><small>" + xml_text(start) + "</small></p>";
  for (const std::string& note : run.notes) html += "<p class=\"note\">" + xml_text(note) + "</p>";
  return html + "</section>\n";
}

std::string cards(const std::vector<RunRecord>& runs) {
  std::string html = "<div class=\"cards\">";
  for (size_t i = 0; i < runs.size(); ++i) html += card(runs[i], static_cast<int>(i));
  return html + "</div>\n";
}

// The signs of the picture, but not those that are not in it.
std::string sign_key(const Chart& chart) {
  std::map<std::string, int> kinds;
  for (const Mark& mark : chart.marks) ++kinds[mark.kind];
  std::string html;
  for (const auto& [kind, count] : kinds) {
    html += "<span>" + draw_sign(kind) + " " + event_words(kind) +
            (count > 1 ? " (" + std::to_string(count) + ")" : "") + "</span>";
  }
  return html.empty() ? "" : "<div class=\"signs\">" + html + "</div>";
}

std::string loss_section(const std::vector<RunRecord>& runs) {
  const Chart chart = loss_chart(runs);
  std::string wide = draw_chart(chart, Shape::kWide), compact = draw_chart(chart, Shape::kCompact);
  if (wide.empty()) return "";
  compact.insert(compact.find("compact") + 7, " both");
  return "<h2>Loss</h2><section class=\"card\"><p class=\"soft\">nats per target; thin: each step, bold: smoothed; "
         "hollow "
         "marks: held-out text</p>" +
         wide + compact + sign_key(chart) + "</section>\n";
}

std::string chart_card(const Chart& chart) {
  const std::string svg = draw_chart(chart, Shape::kCompact);
  if (svg.empty()) return "";
  return "<section class=\"card\"><h3>" + xml_text(chart.title) + "</h3><p><small>" + xml_text(chart.what) +
         "</small></p>" + svg + "</section>\n";
}

std::string chart_grid(const std::vector<RunRecord>& runs) {
  std::string html;
  for (const Chart& chart : other_charts(runs)) html += chart_card(chart);
  return html.empty() ? "" : "<h2>Course</h2><div class=\"grid\">" + html + "</div>\n";
}

std::string part(const char* style, double ms, double whole) {
  return std::string("<span class=\"") + style + "\" style=\"width:" + number_text(100 * ms / whole) + "%\"></span>";
}

// Bars of equal scale: the longest step is as wide as the page.
std::string split_section(const std::vector<RunRecord>& runs) {
  double longest = 0;
  for (const RunRecord& run : runs) longest = std::max(longest, summarize(run).step_ms);
  std::string html;
  for (size_t i = 0; i < runs.size(); ++i) {
    const Summary sum = summarize(runs[i]);
    if (!(sum.step_ms > 0)) continue;
    const double data = std::max(0.0, std::isfinite(sum.data_ms) ? sum.data_ms : 0);
    const double exposed = std::max(0.0, std::isfinite(sum.exposed_ms) ? sum.exposed_ms : 0);
    const double rest = std::max(0.0, sum.step_ms - data - exposed);
    const auto words = [&](const char* style, const char* name, double ms) {
      return std::string("<span><span class=\"swatch ") + style + "\"></span>" + name + " <b>" +
             number_text(ms, Unit::kMilliseconds) + "</b> (" + number_text(ms / sum.step_ms, Unit::kPercent) +
             ")</span>";
    };
    html += "<p class=\"run-line\">" + run_badge(static_cast<int>(i)) + " <b>" + xml_text(runs[i].name) +
            "</b>: " + number_text(sum.step_ms, Unit::kMilliseconds) + " per step</p><div class=\"split\">" +
            part("m0", rest, longest) + part("m3 hatched", exposed, longest) + part("m1", data, longest) +
            "</div><div class=\"signs\">" + words("m0", "computed", rest) +
            words("m3 hatched", "waited for communication", exposed) + words("m1", "waited for data", data) + "</div>";
  }
  if (html.empty()) return "";
  return "<h2>Where a step goes</h2><section class=\"card\"><p class=\"soft\">means of rank 0 over the run; computed: "
         "model, loss, optimizer and everything else</p>" +
         html + "</section>\n";
}

std::string memory_section(const std::vector<RunRecord>& runs) {
  std::string html;
  for (size_t i = 0; i < runs.size(); ++i) {
    const std::string picture = draw_memory(runs[i], static_cast<int>(i));
    if (picture.empty()) continue;
    html += "<section class=\"card\"><header>" + run_badge(static_cast<int>(i)) + "<h3>" + xml_text(runs[i].name) +
            "</h3></header>" + picture + "</section>\n";
  }
  if (html.empty()) return "";
  return "<h2>Memory</h2><p class=\"soft\">of rank 0, by what it holds</p><div class=\"grid\">" + html + "</div>\n";
}

std::string head(const std::vector<RunRecord>& runs, const PageOptions& options) {
  std::string names;
  for (const RunRecord& run : runs) names += (names.empty() ? "" : ", ") + run.name;
  const std::string refresh = options.refresh_seconds ? "<meta http-equiv=\"refresh\" content=\"" +
                                                            std::to_string(*options.refresh_seconds) + "\">\n"
                                                      : "";
  return "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" "
         "content=\"width=device-width,initial-scale=1\">\n<meta http-equiv=\"Content-Security-Policy\" "
         "content=\"default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'\">\n" +
         refresh + "<title>" + xml_text(names) + "</title>\n<style>" + kPageStyle +
         "</style>\n</head>\n<body>\n<main>\n<h1>Training report</h1>\n<p class=\"soft\">" + xml_text(options.written) +
         (options.refresh_seconds ? "; new every " + std::to_string(*options.refresh_seconds) + " s" : "") + "</p>\n";
}

}  // namespace

std::string write_page(const std::vector<RunRecord>& runs, const PageOptions& options) {
  return head(runs, options) + "<h2>" + (runs.size() == 1 ? "Run" : "Runs") + "</h2>" + cards(runs) +
         loss_section(runs) + chart_grid(runs) + split_section(runs) + memory_section(runs) + event_section(runs) +
         settings_section(runs, options.defaults) + sample_section(runs) + "<footer>" + xml_text(options.version) +
         " wrote this page by <code>" + xml_text(options.command) +
         "</code>. It needs no network.</footer>\n</main>\n<script>" + kPageScript + "</script>\n</body>\n</html>\n";
}

}  // namespace fsdp::report
