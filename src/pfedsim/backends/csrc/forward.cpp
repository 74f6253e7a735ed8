// One operation forward.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "net.h"

namespace pfedsim {

Stage Net::stage_of(const Op& op) const {
  return {op.in, op.height, op.width, op.out_height, op.out_width, op.pool_h, op.pool_w, count_, seen(op, op.a, count_),
      plane(&op - &ops[0] + 1, count_), op.norm != 0, op.act};
}

Window Net::window_of(const Op& op) const {
  return {op.in, op.height, op.width, op.out_height, op.out_width, op.kernel_h, op.kernel_w, op.stride_h, op.stride_w, op.pad_h, op.pad_w,
      count_, seen(op, op.a, count_), plane(&op - &ops[0] + 1, count_), op.count_pad != 0};
}

Group Net::group_of(const Op& op) const {
  return {op.in, op.groups, op.height * op.width, count_, seen(op, op.a, count_), plane(&op - &ops[0] + 1, count_), op.by_element != 0,
      (float)op.epsilon};
}

NormState Net::norm_state(const float* theta, int64_t i) {
  if (!ops[i].norm) return {};
  Norm& n = norms_[i];
  return {n.mean.get(), n.inverse.get(), theta + ops[i].weight, theta + ops[i].bias, n.by_gamma.get(), n.by_beta.get()};
}

// The convolution's input with its border and phases, or the input itself where it needs neither.
const float* Net::prepared(int64_t i, Channels part) {
  const Op& op = ops[i];
  float* ready = at(plan_->ready[i], part.first);
  if (!ready) return act(op.a, part.first);
  kernels.prepare(plan_->convs[i], count_, act(op.a, part.first), seen(op, op.a, count_), part.first, part.last, ready);
  return ready;
}

// In eval mode the stage after a convolution is done with it: its statistics are known before.
bool Net::joined(int64_t i, Mode mode, int64_t lanes) const {
  const Op& op = ops[i];
  return mode == EVAL && op.kind == CONV && !depthwise(op) && i + 1 < ops.size() && i + 1 != head && sole_reader_[i + 1] == i + 1
      && i + 1 != cut && ops[i + 1].kind == STAGE && ops[i + 1].pool_h * ops[i + 1].pool_w == 1 && ops[i + 1].in == op.out
      && plane(i + 1, lanes) == plane(i + 2, lanes);
}

void Net::run_conv(const float* theta, int64_t i, Channels part) {
  const Op& op = ops[i];
  const Conv& c = plan_->convs[i];
  const float *x = prepared(i, part), *bias = op.bias < 0 ? nullptr : theta + op.bias;
  float* out = act(i + 1, part.first);
  if (depthwise(op)) return kernels.depth_forward(c, count_, x, theta + op.weight, bias, part.first, part.last, false, false, out);
  if (!joined(i, plan_->mode, count_)) return kernels.conv_forward(c, count_, x, theta + op.weight, bias, work_, nullptr, {}, out);
  if (ops[i + 1].norm) find_norm(theta, i + 1, nullptr, {0, op.out});
  const Stage after = stage_of(ops[i + 1]);
  kernels.conv_forward(c, count_, x, theta + op.weight, bias, work_, &after, norm_state(theta, i + 1), act(i + 2));
}

// What a batch norm subtracts and divides by; `statistics` is theta where they move (train mode), else null.
void Net::find_norm(const float* theta, int64_t i, float* statistics, Channels part) {
  const Op& op = ops[i];
  const int64_t pixels = op.height * op.width;
  const double n = (double)(pixels * count_);
  for (int64_t c = part.first; c < part.last; c++) {
    double mean, variance;
    if (statistics) {
      double spread;
      kernels.moments(act(op.a, part.first) + c * seen(op, op.a, count_), pixels, count_, &mean, &spread);
      variance = spread / n;
      float *kept_mean = statistics + op.mean + c, *kept_variance = statistics + op.variance + c;
      *kept_mean = (float)((1 - op.momentum) * *kept_mean + op.momentum * mean);
      *kept_variance = (float)((1 - op.momentum) * *kept_variance + op.momentum * (spread / (n - 1)));
    } else {
      mean = theta[op.mean + c], variance = theta[op.variance + c];
    }
    norms_[i].mean[c] = (float)mean;
    norms_[i].inverse[c] = (float)(1 / std::sqrt(variance + op.epsilon));
  }
}

// `kept` null: eval mode, nothing is dropped.
void Net::run_dropout(int64_t i, const float* kept) {
  const Op& op = ops[i];
  const int64_t from = seen(op, op.a, count_), to = plane(i + 1, count_), pixels = op.height * op.width, volume = op.in * pixels;
  const float scale = op.keep > 0 ? (float)(1 / op.keep) : 0;
  for (int64_t c = 0; c < op.in; c++) {
    const float* x = act(op.a) + c * from;
    float *factor = at(plan_->raw[i]) + c * to, *out = act(i + 1) + c * to;
    if (!kept) {
      std::memcpy(out, x, sizeof(float) * (size_t)(pixels * count_));
      continue;
    }
    for (int64_t l = 0; l < count_; l++) rows_[l] = kept + l * volume + c * pixels;
    kernels.transpose(rows_.get(), count_, pixels, factor, count_);
    for (int64_t k = 0; k < pixels * count_; k++) out[k] = x[k] * (factor[k] * scale);
  }
}

void Net::run_stage(const float* theta, int64_t i, float* statistics, Channels part) {
  const Op& op = ops[i];
  if (op.norm) find_norm(theta, i, statistics, part);
  kernels.stage_forward(stage_of(op), act(op.a, part.first), norm_state(theta, i), part.first, part.last, at(plan_->raw[i]),
      act(i + 1, part.first));
}

void Net::run(const float* theta, int64_t i, float* statistics) {
  const Op& op = ops[i];
  const float *x = act(op.a), *weight = op.weight < 0 ? nullptr : theta + op.weight, *bias = op.bias < 0 ? nullptr : theta + op.bias;
  float* out = act(i + 1);
  switch (op.kind) {
    case CONV: return run_conv(theta, i, {0, op.in});
    case LINEAR: return kernels.product(op.out, count_, op.in, weight, op.in, 1, x, count_, bias, out, count_, false);
    case STAGE: return run_stage(theta, i, statistics, {0, op.in});
    case ADD:
      for (int64_t c = 0; c < op.in; c++)
        kernels.add(x + c * seen(op, op.a, count_), act(op.b) + c * seen(op, op.b, count_), op.height * op.width * count_, out + c * plane(i + 1, count_));
      return;
    case MAX: return kernels.max_forward(window_of(op), x, (int32_t*)at(plan_->raw[i]), out);
    case MEAN: return kernels.mean_forward(window_of(op), x, out);
    case GROUP: return kernels.group_forward(group_of(op), x, weight, bias, at(plan_->raw[i]), out);
    default: return run_dropout(i, nullptr);
  }
}

// A run of operations, some channels at a time.
void Net::run_channels(const float* theta, int64_t first, float* statistics) {
  const int64_t channels = ops[first].in, step = block(run_first_[first], count_);
  for (int64_t c = 0; c < channels; c += step)
    for (int64_t i = first; i <= run_last_[first]; i++) {
      const Channels part = {c, std::min(channels, c + step)};
      if (ops[i].kind == STAGE) run_stage(theta, i, statistics, part);
      else run_conv(theta, i, part);
    }
}

// Operations first..last (exclusive); `kept` null: nothing is dropped.
void Net::run_all(const float* theta, int64_t first, int64_t last, float* statistics, const float* kept) {
  for (int64_t i = first; i < last; i++) {
    if (joined(i, plan_->mode, count_)) {
      run(theta, i++, statistics);
    } else if (run_last_[i] > i) {
      run_channels(theta, i, statistics);
      i = run_last_[i];
    } else if (ops[i].kind == DROPOUT && kept) {
      run_dropout(i, kept);
      kept += count_ * volume(i + 1);
    } else {
      run(theta, i, statistics);
    }
  }
}

}  // namespace pfedsim
