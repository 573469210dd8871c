#pragma once

#include <string>
#include <vector>

#include "report/chart.h"

namespace fsdp::report {

struct Range {
  double low = 0, high = 1;
};

// Where a chart's values lie in its picture: the plot, its two axes and the place around it.
class PlotFrame {
 public:
  // `right`: room for labels beside the plot, `lanes`: height of what stands between plot and steps.
  PlotFrame(Shape shape, Range steps, Range values, AxisScale scale, Unit unit, double right, double lanes);

  double x(double step) const;
  double y(double value) const;
  double left() const { return left_; }
  double right() const { return right_; }
  double top() const { return top_; }
  double bottom() const { return bottom_; }
  double width() const { return width_; }
  double height() const { return height_; }

  // The opening tag, with what the page's script needs to turn pixels into values again.
  std::string open(const std::string& title) const;
  // Lines of the grid, and the numbers of both axes.
  std::string grid() const;

 private:
  Range steps_, values_;
  AxisScale scale_;
  Unit unit_;
  double width_, height_, left_, right_, top_, bottom_, lanes_;
  bool wide_;
};

// The steps of all points, and a range of one value widened.
Range steps_of(const std::vector<Series>& series);
Range widened(Range range);

}  // namespace fsdp::report
