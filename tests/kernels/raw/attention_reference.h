// Causal attention of several documents and its gradients, in double precision as the formulas say.
#pragma once

#include "kernels/raw/attention/causal_attention.h"
#include "tests/kernels/raw/numbers.h"

namespace fsdp::kernels::raw::attention {

struct Case {
  int64_t heads, key_heads, dim, window;
  std::vector<int64_t> lengths;  // of documents
};

// A sum, and the magnitudes it is made of: what an error is relative to.
struct Sum {
  double value = 0, size = 0;

  void add(double term) {
    value += term;
    size += std::abs(term);
  }
};

// Tokens beside the documents, and columns beside the heads: neither read nor written.
inline constexpr int64_t kTokensBefore = 3, kTokensBehind = 2, kColumnsBehind = 5;

template <class T>
struct Attention {
  explicit Attention(const Case& c);

  int64_t tokens() const { return document_end + kTokensBehind; }
  // Of rows of q, y and their gradients, and of k, v and theirs.
  int64_t stride() const { return sizes.heads * sizes.dim + kColumnsBehind; }
  int64_t key_stride() const { return sizes.key_heads * sizes.dim + kColumnsBehind; }

  Sizes sizes;
  std::vector<Task> tasks;  // of each document and key head
  int64_t document_end = kTokensBefore;
  std::vector<T> q, k, v, grad_y;
  // Laid out like those; log_sum_exp [tokens, H].
  std::vector<Sum> y, grad_q, grad_k, grad_v, log_sum_exp;
  // What a forward hands to the backward: y and log_sum_exp, rounded.
  std::vector<T> y_of_forward;
  std::vector<float> log_sum_exp_of_forward;

 private:
  void attend(const Task& task, int64_t head, int64_t token);
};

template <class T>
Attention<T>::Attention(const Case& c)
    : sizes{c.heads,  c.key_heads,
            c.dim,    *std::max_element(c.lengths.begin(), c.lengths.end()),
            c.window, 1 / std::sqrt(static_cast<float>(c.dim))} {
  for (const int64_t length : c.lengths) {
    for (int64_t key_head = 0; key_head < c.key_heads; ++key_head) tasks.push_back({document_end, length, key_head});
    document_end += length;
  }
  q = random_numbers<T>(tokens() * stride(), 1, 4);
  k = random_numbers<T>(tokens() * key_stride(), 2);
  v = random_numbers<T>(tokens() * key_stride(), 3);
  grad_y = random_numbers<T>(tokens() * stride(), 4);
  y.resize(q.size());
  grad_q.resize(q.size());
  grad_k.resize(k.size());
  grad_v.resize(k.size());
  log_sum_exp.resize(static_cast<size_t>(tokens() * sizes.heads));
  y_of_forward.resize(q.size());
  log_sum_exp_of_forward.resize(log_sum_exp.size());
  for (const Task& task : tasks)
    for (int64_t head = task.key_head * sizes.group(); head < (task.key_head + 1) * sizes.group(); ++head)
      for (int64_t token = task.first_token; token < task.first_token + task.length; ++token) attend(task, head, token);
}

template <class T>
double dot(const T* a, const T* b, int64_t count) {
  double total = 0;
  for (int64_t i = 0; i < count; ++i) total += static_cast<double>(to_float(a[i])) * to_float(b[i]);
  return total;
}

// One query and head: y = sum of p v with p = e^(score - n), n = log(sum of e^score), score = scale * q . k. So with
// g = grad_y: dp = g . v, dscore = p (dp - g . y).
template <class T>
void Attention<T>::attend(const Task& task, int64_t head, int64_t token) {
  const int64_t dim = sizes.dim, row = token * stride() + head * dim;
  const int64_t first = std::max(task.first_token, token - sizes.window + 1);
  const auto key_row = [&](int64_t key) { return key * key_stride() + task.key_head * dim; };
  std::vector<double> p;
  for (int64_t key = first; key <= token; ++key)
    p.push_back(sizes.scale * dot(q.data() + row, k.data() + key_row(key), dim));
  const double top = *std::max_element(p.begin(), p.end());
  double total = 0;
  for (const double score : p) total += std::exp(score - top);
  const double n = top + std::log(total);
  log_sum_exp.data()[token * sizes.heads + head].add(n);
  log_sum_exp_of_forward.data()[token * sizes.heads + head] = static_cast<float>(n);
  for (int64_t key = first; key <= token; ++key) {
    double& weight = p.data()[key - first];
    weight = std::exp(weight - n);
    for (int64_t i = 0; i < dim; ++i) y.data()[row + i].add(weight * to_float(v.data()[key_row(key) + i]));
  }
  for (int64_t i = row; i < row + dim; ++i) y_of_forward.data()[i] = rounded<T>(y.data()[i].value);
  const double delta = dot(grad_y.data() + row, y_of_forward.data() + row, dim);
  for (int64_t key = first; key <= token; ++key) {
    const int64_t at = key_row(key);
    const double weight = p.data()[key - first];
    const double change = weight * (dot(grad_y.data() + row, v.data() + at, dim) - delta);
    for (int64_t i = 0; i < dim; ++i) {
      grad_q.data()[row + i].add(sizes.scale * change * to_float(k.data()[at + i]));
      grad_k.data()[at + i].add(sizes.scale * change * to_float(q.data()[row + i]));
      grad_v.data()[at + i].add(weight * to_float(grad_y.data()[row + i]));
    }
  }
}

}  // namespace fsdp::kernels::raw::attention
