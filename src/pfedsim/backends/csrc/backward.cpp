// One operation backward. A value's first reader that goes back stores its gradient, later ones add to it.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "net.h"

namespace pfedsim {

// Mean cross-entropy of the last activation; leaves its gradient as the last value's.
double Net::loss(const Targets& targets, const int64_t* order) {
  const int64_t n = ops.size(), classes = volume(n), lanes = count_;
  const float* scores = act(n);
  float* out = by(n);
  Array<float> z(classes), e(classes);
  double total = 0;
  for (int64_t i = 0; i < lanes; i++) {
    const int64_t sample = order ? order[i] : i;
    float top = -std::numeric_limits<float>::infinity(), sum = 0;
    for (int64_t c = 0; c < classes; c++) z[c] = scores[c * lanes + i], top = z[c] > top ? z[c] : top;
    for (int64_t c = 0; c < classes; c++) e[c] = std::exp(z[c] - top), sum += e[c];
    const double log_sum = (double)top + std::log((double)sum);
    const float share = 1.0f / (float)count_;
    if (targets.hard) {
      const int64_t y = targets.hard[sample];
      total += log_sum - z[y];
      for (int64_t c = 0; c < classes; c++) out[c * lanes + i] = (e[c] / sum - (c == y ? 1.0f : 0.0f)) * share;
    } else {
      const float* t = targets.soft + sample * classes;
      double mass = 0;
      for (int64_t c = 0; c < classes; c++) mass += t[c], total += t[c] * (log_sum - z[c]);
      for (int64_t c = 0; c < classes; c++) out[c * lanes + i] = ((float)mass * (e[c] / sum) - t[c]) * share;
    }
  }
  return total / (double)count_;
}

bool Net::writes(int64_t value, int64_t first) {
  if (first == 0) more_[value] = written_[value], written_[value] = 1;  // the other channels of a run do as the first ones
  return more_[value];
}

// Whether a batch norm alone reads what operation i makes.
bool Net::normalised(int64_t i) const { return sole_reader_[i + 1] >= 0 && ops[sole_reader_[i + 1]].kind == STAGE && ops[sole_reader_[i + 1]].norm; }

void Net::back_bias(int64_t i, bool frozen, Channels part, float* gradient) {
  const Op& op = ops[i];
  if (!frozen && normalised(i)) {  // the norm takes any shift away: exactly zero, unless all is NaN
    const Norm& next = norms_[sole_reader_[i + 1]];
    const int64_t per = next.by_beta.size() / op.out;
    for (int64_t c = part.first; c < part.last; c++) {
      float broken = 0;
      for (int64_t k = c * per; k < (c + 1) * per; k++) broken += next.by_beta[k] + next.by_gamma[k];
      gradient[op.bias + c] = std::isfinite(broken) ? 0 : std::numeric_limits<float>::quiet_NaN();
    }
    return;
  }
  const int64_t step = plane(i + 1, count_);
  for (int64_t c = part.first; c < part.last; c++)
    gradient[op.bias + c] = (float)kernels.sum(by(i + 1, part.first) + c * step, pixels(i + 1), count_);
}

void Net::back_conv(const float* theta, int64_t i, Channels part, float* gradient) {
  const Op& op = ops[i];
  const Conv& c = plan_->convs[i];
  const float *ready = at(plan_->ready[i], part.first), *x = ready ? ready : act(op.a, part.first), *from = by(i + 1, part.first),
              *weight = theta + op.weight;
  float *wide = at(plan_->wide[i], part.first), *to = by(op.a, part.first);
  if (want_weight_[i]) {
    if (depthwise(op)) kernels.depth_by_weight(c, count_, x, from, part.first, part.last, gradient + op.weight);
    else kernels.conv_by_weight(c, count_, x, from, work_, gradient + op.weight);
  }
  if (!needed_[op.a]) return;
  const bool more = writes(op.a, part.first);
  if (depthwise(op) && op.stride_h == 1 && op.stride_w == 1) {
    const Conv turned = turned_round(c, count_);
    kernels.prepare(turned, count_, from, c.y_plane, part.first, part.last, wide);
    return kernels.depth_forward(turned, count_, wide, weight, nullptr, part.first, part.last, true, more, to);
  }
  if (c.margin) kernels.widen(c, count_, from, part.first, part.last, wide), from = wide;
  if (depthwise(op)) kernels.depth_by_input(c, count_, from, weight, work_, part.first, part.last, more, to);
  else kernels.conv_by_input(c, count_, from, weight, work_, more, to);
}

// Inputs lie along the lanes: a row of weights is then a row of lanes.
void Net::linear_by_weight(int64_t i, float* gradient) {
  const Op& op = ops[i];
  const int64_t stride = (op.in + kernels.width - 1) / kernels.width * kernels.width;
  for (int64_t k = 0; k < op.in; k++) rows_[k] = act(op.a) + k * count_;
  kernels.transpose(rows_.get(), op.in, count_, temp_.get(), stride);
  const auto product = [&](int64_t row, int64_t rows, int64_t column, int64_t columns, float* out) {
    kernels.product(rows, columns, count_, by(i + 1) + row * count_, count_, 1, temp_.get() + column, stride, nullptr, out, columns, false);
  };
  float* out = gradient + op.weight;
  if (!step_of_.theta || !at_once_[i]) return product(0, op.out, 0, op.in, out);
  enum : int64_t { ROWS = 8, COLUMNS = 4096 };  // a piece of the gradient that stays near, always at the same place
  for (int64_t column = 0; column < op.in; column += COLUMNS)
    for (int64_t row = 0; row < op.out; row += ROWS) {
      const int64_t rows = std::min<int64_t>(ROWS, op.out - row), columns = std::min<int64_t>(COLUMNS, op.in - column);
      product(row, rows, column, columns, out);
      for (int64_t r = 0; r < rows; r++) {
        const int64_t to = op.weight + (row + r) * op.in + column;
        kernels.update(step_of_.theta + to, out + r * columns, step_of_.velocity ? step_of_.velocity + to : nullptr, columns, step_of_.lr,
            step_of_.momentum, step_of_.decay);
      }
    }
}

void Net::back_linear(const float* theta, int64_t i, float* gradient) {
  linear_by_input(theta, i);  // first: the weights may take their step then
  if (want_weight_[i]) linear_by_weight(i, gradient);
}

void Net::linear_by_input(const float* theta, int64_t i) {
  const Op& op = ops[i];
  if (!needed_[op.a]) return;
  const bool more = writes(op.a);
  const bool room = op.weight + op.in * op.out + kernels.width <= size_;  // a row's last vector reads beyond it
  if (more || !room || op.in < 4 * kernels.width)
    return kernels.product(op.in, count_, op.out, theta + op.weight, 1, op.in, by(i + 1), count_, nullptr, by(op.a), count_, more);
  // inputs to the lanes here too: rows of weights are read as they lie, and no batch size wastes a lane
  kernels.product(count_, op.in, op.out, by(i + 1), 1, count_, theta + op.weight, op.in, nullptr, temp_.get(), op.in, false);
  for (int64_t l = 0; l < count_; l++) rows_[l] = temp_.get() + l * op.in;
  kernels.transpose(rows_.get(), count_, op.in, by(op.a), count_);
}

void Net::back_stage(const float* theta, int64_t i, bool frozen, Channels part, float* gradient) {
  const Op& op = ops[i];
  const bool further = needed_[op.a], more = further && writes(op.a, part.first);
  kernels.stage_backward(stage_of(op), act(op.a, part.first), at(plan_->raw[i]), by(i + 1, part.first), norm_state(theta, i), frozen,
      part.first, part.last, more, temp_.get(), further ? by(op.a, part.first) : nullptr);
  const auto copy = [&](const Array<float>& from, int64_t to) {
    std::copy(from.get() + part.first, from.get() + part.last, gradient + to + part.first);
  };
  if (want_weight_[i]) copy(norms_[i].by_gamma, op.weight);
  if (want_bias_[i]) copy(norms_[i].by_beta, op.bias);
}

void Net::back_add(int64_t i) {
  const Op& op = ops[i];
  const int64_t from = plane(i + 1, count_), n = pixels(i + 1) * count_;
  for (int64_t v : {op.a, op.b}) {
    if (!needed_[v]) continue;
    const bool more = writes(v);
    if (by(v) == by(i + 1)) continue;  // it shares its place
    for (int64_t c = 0; c < op.in; c++) {
      float* to = by(v) + c * seen(op, v, count_);
      if (more) kernels.add(to, by(i + 1) + c * from, n, to);
      else std::memcpy(to, by(i + 1) + c * from, sizeof(float) * (size_t)n);
    }
  }
}

// Pools, means and dropout.
void Net::back_window(int64_t i) {
  const Op& op = ops[i];
  if (!needed_[op.a]) return;
  float* to = by(op.a);
  const int64_t step = seen(op, op.a, count_), n = op.height * op.width * count_;
  if (!writes(op.a))
    for (int64_t c = 0; c < op.in; c++) std::memset(to + c * step, 0, sizeof(float) * (size_t)n);
  if (op.kind == MAX) return kernels.max_backward(window_of(op), (const int32_t*)at(plan_->raw[i]), by(i + 1), to);
  if (op.kind == MEAN) return kernels.mean_backward(window_of(op), by(i + 1), to);
  const float scale = op.keep > 0 ? (float)(1 / op.keep) : 0;
  for (int64_t c = 0; c < op.in; c++) {
    const float *factor = at(plan_->raw[i]) + c * plane(i + 1, count_), *from = by(i + 1) + c * plane(i + 1, count_);
    for (int64_t k = 0; k < n; k++) to[c * step + k] += from[k] * (still_ ? 1.0f : factor[k] * scale);
  }
}

void Net::back_group(const float* theta, int64_t i, float* gradient) {
  const Op& op = ops[i];
  const bool further = needed_[op.a], more = further && writes(op.a);
  kernels.group_backward(group_of(op), act(op.a), op.weight < 0 ? nullptr : theta + op.weight, at(plan_->raw[i]), by(i + 1),
      want_weight_[i] ? gradient + op.weight : nullptr, want_bias_[i] ? gradient + op.bias : nullptr, more, further ? by(op.a) : nullptr);
}

void Net::back_one(const float* theta, int64_t i, bool frozen, float* gradient) {
  switch (ops[i].kind) {
    case CONV:
    case LINEAR:
      if (want_bias_[i]) back_bias(i, frozen, {0, ops[i].out}, gradient);
      return ops[i].kind == CONV ? back_conv(theta, i, {0, ops[i].out}, gradient) : back_linear(theta, i, gradient);
    case STAGE: return back_stage(theta, i, frozen, {0, ops[i].in}, gradient);
    case ADD: return back_add(i);
    case GROUP: return back_group(theta, i, gradient);
    default: return back_window(i);
  }
}

// A run, some channels at a time: what its windows have lost is made again first.
void Net::back_channels(const float* theta, int64_t last, bool frozen, float* gradient) {
  const int64_t first = run_first_[last], channels = ops[first].in, step = block(first, count_);
  for (int64_t c = 0; c < channels; c += step) {
    const Channels part = {c, std::min(channels, c + step)};
    for (int64_t i = first; i <= last; i++) {
      if (ops[i].kind == CONV) prepared(i, part);
      else if (i < last)
        kernels.stage_forward(stage_of(ops[i]), act(ops[i].a, c), norm_state(theta, i), part.first, part.last, nullptr, act(i + 1, c));
    }
    for (int64_t i = last; i >= first; i--) {
      if (!needed_[i + 1]) continue;
      if (ops[i].kind == CONV && want_bias_[i]) back_bias(i, frozen, part, gradient);
      if (ops[i].kind == STAGE) back_stage(theta, i, frozen, part, gradient);
      else back_conv(theta, i, part, gradient);
    }
  }
}

// The last operation down to `first`.
void Net::back(const float* theta, int64_t first, int64_t last, bool frozen, float* gradient) {
  for (int64_t i = last - 1; i >= first; i--) {
    if (run_first_[i] < i) {
      if (needed_[i + 1]) back_channels(theta, i, frozen, gradient);
      i = run_first_[i];
    } else if (needed_[i + 1]) {
      back_one(theta, i, frozen, gradient);
    }
  }
}

}  // namespace pfedsim
