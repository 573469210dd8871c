#include "report/memory_chart.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "plan/picture/xml_text.h"
#include "report/plot_frame.h"
#include "report/svg.h"

namespace fsdp::report {
namespace {

struct Layer {
  const char* name;
  const char* meaning;
  double StepFigures::*bytes;  // null: what the others leave of the resident memory
};

// From the ground up. Light and dark, plain and hatched take turns, so that neighbours differ without their colours.
constexpr std::array<Layer, 5> kLayers = {
    {{"weights", "main and model weights at rest", &StepFigures::params},
     {"gradients", "at rest", &StepFigures::grads},
     {"optimizer", "its moments", &StepFigures::optimizer},
     {"communication", "gathered units and reduce buffers, at most", &StepFigures::comm},
     {"rest", "activations, data, libraries", nullptr}}};

double or_zero(double value) { return std::isfinite(value) && value > 0 ? value : 0; }

double layer_bytes(const StepFigures& row, const Layer& layer) {
  if (layer.bytes != nullptr) return or_zero(row.*layer.bytes);
  double known = 0;
  for (const Layer& other : kLayers)
    if (other.bytes != nullptr) known += or_zero(row.*other.bytes);
  return std::max(0.0, or_zero(row.resident) - known);
}

class MemoryDrawing {
 public:
  MemoryDrawing(const std::vector<StepFigures>& rows, const std::string& title, int place)
      : rows_(rows),
        title_(title),
        place_(place),
        frame_(Shape::kCompact, {static_cast<double>(rows.front().step), static_cast<double>(rows.back().step)},
               {0, 1.08 * highest(rows)}, AxisScale::kEven, Unit::kBytes, 14, 0) {}

  std::string draw() {
    std::string svg = frame_.open(title_) + hatches();
    std::vector<double> ground(rows_.size(), 0);
    for (size_t i = 0; i < kLayers.size(); ++i) svg += draw_layer(i, ground);
    return svg + frame_.grid() + draw_peak() + "</svg>\n";
  }

 private:
  static double highest(const std::vector<StepFigures>& rows) {
    double most = 1;
    for (const StepFigures& row : rows) {
      double sum = 0;
      for (const Layer& layer : kLayers) sum += layer_bytes(row, layer);
      most = std::max({most, sum, or_zero(row.peak)});
    }
    return most;
  }

  std::string hatch_name(size_t layer) const { return "hatch" + std::to_string(place_) + "-" + std::to_string(layer); }

  std::string hatches() const {
    std::string defs = "<defs>";
    for (const size_t layer : {size_t{1}, size_t{3}}) {
      defs += "<pattern id=\"" + hatch_name(layer) +
              "\" width=\"6\" height=\"6\" patternUnits=\"userSpaceOnUse\" patternTransform=\"rotate(" +
              (layer == 1 ? "45" : "-45") + ")\"><rect class=\"m" + std::to_string(layer) +
              "\" width=\"6\" height=\"6\"/><path class=\"hatch\" d=\"M0 0V6\"/></pattern>";
    }
    return defs + "</defs>";
  }

  // One point has no area: it is drawn as if it had been so all the time.
  double x(size_t row, bool is_end) const {
    if (rows_.size() == 1) return is_end ? frame_.right() : frame_.left();
    return frame_.x(static_cast<double>(rows_[row].step));
  }

  std::string draw_layer(size_t layer, std::vector<double>& ground) const {
    std::string lower, upper;
    double thickest = 0, label_x = 0, label_y = 0;
    for (size_t i = 0; i < rows_.size(); ++i) {
      const double from = ground[i], to = ground[i] += layer_bytes(rows_[i], kLayers[layer]);
      const std::string left = pixel(x(i, false)), right = pixel(x(i, true));
      upper += (i == 0 ? "M" : "L") + left + " " + pixel(frame_.y(to));
      if (rows_.size() == 1) upper += "L" + right + " " + pixel(frame_.y(to));
      std::string foot = "L" + right + " " + pixel(frame_.y(from));
      if (rows_.size() == 1) foot += "L" + left + " " + pixel(frame_.y(from));
      lower.insert(0, foot);
      if (const double height = frame_.y(from) - frame_.y(to); i >= rows_.size() / 4 && height > thickest) {
        thickest = height;
        label_x = rows_.size() == 1 ? (frame_.left() + frame_.right()) / 2 : x(i, false);
        label_y = (frame_.y(from) + frame_.y(to)) / 2;
      }
    }
    const std::string fill = layer == 1 || layer == 3 ? " style=\"fill:url(#" + hatch_name(layer) + ")\"" : "";
    std::string svg = "<path class=\"layer m" + std::to_string(layer) + "\"" + fill + " d=\"" + upper + lower +
                      "Z\"/><path class=\"edge\" data-name=\"up to " + kLayers[layer].name + "\" d=\"" + upper + "\"/>";
    if (thickest >= 16) {
      const double half = 4.0 * static_cast<double>(std::string(kLayers[layer].name).size());
      const double middle = std::clamp(label_x, frame_.left() + half, frame_.right() - half);
      svg += "<text class=\"inside\" text-anchor=\"middle\" x=\"" + pixel(middle) + "\" y=\"" + pixel(label_y + 4) +
             "\">" + kLayers[layer].name + "</text>";
    }
    return svg + "\n";
  }

  std::string draw_peak() const {
    std::string path;
    for (size_t i = 0; i < rows_.size(); ++i) {
      if (!std::isfinite(rows_[i].peak)) continue;
      path += (path.empty() ? "M" : "L") + pixel(x(i, false)) + " " + pixel(frame_.y(rows_[i].peak));
      if (rows_.size() == 1) path += "L" + pixel(x(i, true)) + " " + pixel(frame_.y(rows_[i].peak));
    }
    return path.empty() ? "" : "<path class=\"peak\" data-name=\"peak so far\" d=\"" + path + "\"/>\n";
  }

  const std::vector<StepFigures>& rows_;
  const std::string& title_;
  int place_;
  PlotFrame frame_;
};

std::string layer_list(const StepFigures& last) {
  std::string html = "<ul class=\"layers\">";
  for (size_t i = kLayers.size(); i-- > 0;) {
    html += "<li><span class=\"swatch m" + std::to_string(i) + (i == 1 || i == 3 ? " hatched" : "") + "\"></span>" +
            kLayers[i].name + " <b>" + number_text(layer_bytes(last, kLayers[i]), Unit::kBytes) + "</b> <small>" +
            kLayers[i].meaning + "</small></li>";
  }
  if (std::isfinite(last.peak))
    html += "<li><span class=\"swatch dashed\"></span>peak of the process <b>" + number_text(last.peak, Unit::kBytes) +
            "</b></li>";
  return html + "</ul>\n";
}

}  // namespace

std::string draw_memory(const RunRecord& run, int place) {
  std::vector<StepFigures> rows;
  for (const StepFigures& row : run.steps)
    if (std::isfinite(row.resident)) rows.push_back(row);
  if (rows.empty()) return "";
  // More points than pixels say nothing more.
  constexpr size_t kMostPoints = 400;
  std::vector<StepFigures> drawn;
  for (size_t i = 0; i < rows.size(); i += 1 + rows.size() / kMostPoints) drawn.push_back(rows[i]);
  if (drawn.back().step != rows.back().step) drawn.push_back(rows.back());
  const std::string title = "Memory of " + run.name;
  return MemoryDrawing(drawn, title, place).draw() + layer_list(rows.back());
}

}  // namespace fsdp::report
