#include "fsdp/optim/adafactor/adafactor.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <utility>

#include "fsdp/base/check.h"
#include "fsdp/optim/adamw_update.h"
#include "fsdp/optim/muon.h"
#include "fsdp/optim/update_rule.h"

namespace fsdp {
namespace {

// Elements that operators work on at a time.
constexpr int64_t kDevicePiece = int64_t{1} << 24;

void check_adafactor_options(const AdafactorOptions& options) {
  FSDP_CHECK(options.lr >= 0 && options.weight_decay >= 0, "[Adafactor] lr ", options.lr, ", weight decay ",
             options.weight_decay, ": expected at least 0.");
  FSDP_CHECK(options.beta2_decay <= 0, "[Adafactor] beta2_decay: got ", options.beta2_decay,
             ", expected at most 0; usual: -0.8.");
  FSDP_CHECK(options.eps1.value_or(1) > 0 && options.eps2 >= 0, "[Adafactor] eps: got ", options.eps1.value_or(1),
             " and ", options.eps2, ", expected a number above 0 and one of at least 0.");
  FSDP_CHECK(options.clip > 0, "[Adafactor] clip: got ", options.clip, ", expected a number above 0; usual: 1.");
}

// Sizes of a parameter as matrices one below the other. A vector has no columns.
struct MatrixSizes {
  int64_t matrices = 1, rows = 1, columns = 0;

  explicit MatrixSizes(const std::vector<int64_t>& sizes) {
    const size_t dims = sizes.size();
    if (dims < 2) return;
    rows = sizes[dims - 2];
    columns = sizes[dims - 1];
    for (size_t i = 0; i + 2 < dims; ++i) matrices *= sizes[i];
  }
  bool is_factored() const { return rows > 0 && columns > 0; }
};

LeafNeeds adafactor_needs(const at::Tensor& leaf) {
  const MatrixSizes sizes(logical_sizes(leaf));
  if (!sizes.is_factored()) return {{{"variance"}}, RunOf::kTensor};
  return {{{"row_var", {}, sizes.columns}, {"col_var", {}, sizes.rows}}, RunOf::kTensor};
}

// A part of a parameter, [r, C] or [n], and what its second moment is made of.
struct Piece {
  at::Tensor weight, gradient, copy;
  at::Tensor rows_r1 = {}, columns_1C = {};  // whose product is the second moment
  at::Tensor moment = {};                    // where it is not factored
};

double smallest_moment(const AdafactorOptions& options, at::ScalarType dtype) {
  const double eps = options.eps1.value_or(dtype == at::kDouble ? std::numeric_limits<double>::epsilon()
                                                                : std::numeric_limits<float>::epsilon());
  return eps * eps;
}

// One parameter's update, in three passes over it: the means, the size of the update, the update.
class AdafactorUpdate {
 public:
  AdafactorUpdate(const FlatRun& run, const AdafactorOptions& options, const GradientFactor& factor)
      : run_(run),
        options_(options),
        factor_(factor),
        sizes_(run.sizes),
        newest_(std::pow(static_cast<double>(run.step), options.beta2_decay)),
        least_(smallest_moment(options, run.weight.scalar_type())),
        zero_(at::zeros({}, run.weight.options())) {}

  void carry_out() {
    const at::Tensor size = step_size();
    sizes_.is_factored() ? update_means() : update_moment();
    at::Tensor squares = zero_.clone();
    for_each_part([&](const Piece& piece) { squares += direction(piece).square_().sum(); });
    const at::Tensor scale = size / (squares.div_(count()).sqrt_().div_(options_.clip)).clamp_min_(1);
    for_each_part([&](const Piece& piece) {
      if (options_.weight_decay > 0) piece.weight.mul_(1 - options_.lr * options_.weight_decay);
      piece.weight.sub_(direction(piece).mul_(scale));
      if (piece.copy.defined()) piece.copy.copy_(piece.weight);
    });
  }

 private:
  double count() const { return static_cast<double>(run_.weight.numel()); }

  // Of the weight before this step.
  at::Tensor step_size() const {
    if (options_.rate == AdafactorRate::kAbsolute) return zero_ + options_.lr;
    at::Tensor squares = zero_.clone();
    for_each_part([&](const Piece& piece) { squares += piece.weight.square().sum(); });
    const double rate = std::min(options_.lr, 1 / std::sqrt(static_cast<double>(run_.step)));
    return squares.div_(count()).sqrt_().clamp_min_(options_.eps2).mul_(rate);
  }

  at::Tensor direction(const Piece& piece) const {
    const at::Tensor moment = piece.moment.defined() ? piece.moment.clone() : piece.rows_r1 * piece.columns_1C;
    return moment.clamp_min_(least_).rsqrt_().mul_(factor_.times(piece.gradient));
  }

  void update_moment() {
    for_each_part([&](const Piece& piece) { piece.moment.lerp_(factor_.times(piece.gradient).square(), newest_); });
  }

  // Sums of a piece are taken by one thread, so they do not depend on how many there are.
  void update_means() {
    const at::Tensor of_rows = at::zeros_like(run_.states[0]), of_columns = at::zeros_like(run_.states[1]);
    for_each_rows([&](int64_t matrix, int64_t first, int64_t count) {
      const at::Tensor squares = factor_.times(rows_of(run_.gradient, matrix, first, count)).square();
      of_rows.narrow(0, matrix * sizes_.rows + first, count).copy_(squares.sum(1));
      of_columns.narrow(0, matrix * sizes_.columns, sizes_.columns).add_(squares.sum(0));
    });
    run_.states[0].lerp_(of_rows.div_(sizes_.columns), newest_);
    run_.states[1].lerp_(of_columns.div_(sizes_.rows), newest_);
    const at::Tensor rows_MR = run_.states[0].view({sizes_.matrices, sizes_.rows});
    scaled_rows_MR_ = rows_MR / rows_MR.mean(1, /*keepdim=*/true).clamp_min_(std::sqrt(least_));
  }

  at::Tensor rows_of(const at::Tensor& flat, int64_t matrix, int64_t first, int64_t count) const {
    return flat.narrow(0, (matrix * sizes_.rows + first) * sizes_.columns, count * sizes_.columns)
        .view({count, sizes_.columns});
  }

  int64_t piece_numel() const { return run_.weight.is_cpu() ? kHostPiece : kDevicePiece; }

  void for_each_rows(const std::function<void(int64_t matrix, int64_t first, int64_t count)>& visit) const {
    const int64_t longest = std::max<int64_t>(1, piece_numel() / sizes_.columns);
    for (int64_t matrix = 0; matrix < sizes_.matrices; ++matrix) {
      for (int64_t first = 0; first < sizes_.rows; first += longest)
        visit(matrix, first, std::min(longest, sizes_.rows - first));
    }
  }

  void for_each_part(const std::function<void(const Piece&)>& visit) const {
    if (!sizes_.is_factored()) {
      return for_each_piece(run_, piece_numel(), [&](const FlatRun& part) {
        visit({part.weight, part.gradient, part.copy, {}, {}, part.states[0]});
      });
    }
    for_each_rows([&](int64_t matrix, int64_t first, int64_t count) {
      Piece piece{rows_of(run_.weight, matrix, first, count), rows_of(run_.gradient, matrix, first, count), {}};
      if (run_.copy.defined()) piece.copy = rows_of(run_.copy, matrix, first, count);
      if (scaled_rows_MR_.defined()) {
        piece.rows_r1 = scaled_rows_MR_[matrix].narrow(0, first, count).unsqueeze(1);
        piece.columns_1C = run_.states[1].narrow(0, matrix * sizes_.columns, sizes_.columns).unsqueeze(0);
      }
      visit(piece);
    });
  }

  const FlatRun& run_;
  const AdafactorOptions& options_;
  const GradientFactor& factor_;
  const MatrixSizes sizes_;
  const double newest_;  // how much this step counts in the means
  const double least_;
  const at::Tensor zero_;
  at::Tensor scaled_rows_MR_;
};

class AdafactorRule : public UpdateRule {
 public:
  AdafactorRule(AdafactorGroups groups, const AdafactorOptions& options, const AdamWOptions& adamw)
      : adafactor(options) {
    check_adafactor_options(options);
    for (const at::Tensor& leaf : groups.whole) {
      FSDP_CHECK(leaf.defined(), "[Adafactor] got an undefined tensor, expected a parameter.");
      add_whole(leaf);
    }
    for (AdamWGroup& group : with_decay<AdamWGroup>(std::move(groups.others), adamw)) {
      check_options(group.options);
      others.push_back(group.options);
      leaves_.push_back({std::move(group.parameters), adamw_needs(adamw)});
    }
  }

  const char* name() const override { return "Adafactor"; }
  size_t num_groups() const override { return 1 + others.size(); }
  double& lr(size_t group) override { return group == 0 ? adafactor.lr : others.at(group - 1).lr; }
  void update(const FlatRun& run, const GradientFactor& factor) override {
    if (run.options >= num_shapes_) return adamw_update(run, others[run.options - num_shapes_], factor);
    AdafactorUpdate(run, adafactor, factor).carry_out();
  }

  AdafactorOptions adafactor;
  std::vector<AdamWOptions> others;

 private:
  // Leaves of equal sizes keep states of equal sizes.
  void add_whole(const at::Tensor& leaf) {
    LeafNeeds needs = adafactor_needs(leaf);
    const auto twin =
        std::find_if(leaves_.begin(), leaves_.end(), [&](const LeafGroup& group) { return group.needs == needs; });
    if (twin != leaves_.end()) return twin->leaves.push_back(leaf);
    leaves_.push_back({{leaf}, std::move(needs)});
    num_shapes_ = leaves_.size();
  }

  size_t num_shapes_ = 0;
};

}  // namespace

AdafactorGroups adafactor_groups(const torch::nn::Module& module, double weight_decay,
                                 const std::vector<std::string>& by_adamw) {
  MuonGroups groups = muon_groups(module, weight_decay, by_adamw);
  return {std::move(groups.matrices), std::move(groups.others)};
}

Adafactor::Adafactor(std::vector<at::Tensor> parameters, AdafactorOptions options)
    : Adafactor(AdafactorGroups{std::move(parameters), {}}, options, {}) {}
Adafactor::Adafactor(AdafactorGroups groups, AdafactorOptions options, AdamWOptions adamw)
    : FlatOptimizer(std::make_unique<AdafactorRule>(std::move(groups), options, adamw)) {}

AdafactorOptions& Adafactor::options() { return static_cast<AdafactorRule&>(rule()).adafactor; }
AdamWOptions& Adafactor::adamw_options(size_t group) {
  return static_cast<AdafactorRule&>(rule()).others.at(group - 1);
}

}  // namespace fsdp
