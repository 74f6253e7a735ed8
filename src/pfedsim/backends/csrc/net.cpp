#include "net.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <new>
#include <utility>

namespace pfedsim {

static const int64_t EVAL_BLOCK = 32;  // images at a time in eval mode: small enough for the caches

static int64_t volume(const Op& op) { return op.in * op.height * op.width; }
static int64_t out_volume(const Op& op) { return op.out * op.out_height * op.out_width; }
static int64_t rounded(int64_t n, int64_t by) { return (n + by - 1) / by * by; }

Buffer::Buffer(int64_t count) {
  const size_t bytes = (size_t)rounded(std::max<int64_t>(count, 1), 16) * sizeof(float);
  data_ = (float*)std::aligned_alloc(64, bytes);
  if (!data_) throw std::bad_alloc();
  std::memset(data_, 0, bytes);
}

static Array<Op> copied(const Op* ops, int64_t count) {
  Array<Op> copy(count);
  std::copy(ops, ops + count, copy.get());
  return copy;
}

static Conv conv_of(const Op& op) {
  return {op.in, op.height + 2 * op.pad_h, op.width + 2 * op.pad_w, op.out, op.out_height, op.out_width, op.kernel_h, op.kernel_w,
      op.pad_h, op.pad_w};
}
static Stage stage_of(const Op& op) {
  return {op.in, op.height, op.width, op.out_height, op.out_width, op.pool_h, op.pool_w, op.norm != 0, op.relu != 0};
}

Net::Net(const Kernels& k, const Op* first, int64_t count, int64_t head_at, int64_t size)
    : kernels(k), ops(copied(first, count)), head(head_at), size_(size), norms_(count) {
  int64_t packed = 0, widest = 0, inputs = 0;
  for (int64_t i = 0; i < count; i++) {
    const Op& op = ops[i];
    if (op.kind == CONV) packed = std::max(packed, op.out * op.in * op.kernel_h * op.kernel_w);
    if (op.kind == STAGE && op.norm)
      for (Array<float>* v : {&norms_[i].mean, &norms_[i].inverse, &norms_[i].by_gamma, &norms_[i].by_beta}) *v = Array<float>(op.in);
    widest = std::max(widest, std::max(volume(op), out_volume(op)));
    inputs = std::max(inputs, op.in);
  }
  packed_ = Buffer(packed), sums_ = Buffer(packed * k.width), zeros_ = Buffer(widest);
  widest_input_ = inputs;
  want_weight_ = Array<char>(count), want_bias_ = Array<char>(count);
  want(nullptr);
}

void Net::reserve(int64_t count) {
  const int64_t lanes = rounded(count, kernels.width);
  if (lanes <= capacity_) return;
  const int64_t n = ops.size();
  Array<Buffer> act(n + 1), by_act(n + 1), raw(n), padded(n);
  int64_t turned = 0;
  for (int64_t i = 0; i <= n; i++) {
    act[i] = Buffer((i < n ? volume(ops[i]) : out_volume(ops[n - 1])) * lanes);
    // A convolution or linear layer does not need its output again, a stage and the network's input do.
    if (i == 0 || ops[i - 1].kind == STAGE) by_act[i] = Buffer((i < n ? volume(ops[i]) : out_volume(ops[n - 1])) * lanes);
    if (i == n) break;
    const Op& op = ops[i];
    if (op.kind == STAGE && op.pool_h * op.pool_w > 1) raw[i] = Buffer(out_volume(op) * lanes);
    if (op.kind == CONV && (op.pad_h || op.pad_w)) padded[i] = Buffer(op.in * conv_of(op).height * conv_of(op).width * lanes);
    if (op.kind == LINEAR) turned = std::max(turned, rounded(op.in, kernels.width) * lanes);
  }
  turned_ = Buffer(turned);
  mask_ = Array<int32_t>(lanes), rows_ = Array<const float*>(std::max(lanes, widest_input_));
  act_ = std::move(act), by_act_ = std::move(by_act), raw_ = std::move(raw), padded_ = std::move(padded);
  capacity_ = lanes;
}

void Net::set_batch(int64_t count) {
  reserve(count);
  batch_ = {count, rounded(count, kernels.width), mask_.get()};
  for (int64_t i = 0; i < batch_.lanes; i++) mask_[i] = i < count ? -1 : 0;
}

// Samples as rows into the lanes of activation `at`; padding lanes hold zeros.
void Net::gather(int64_t at, const float* x, const int64_t* order) {
  const int64_t width = at < ops.size() ? volume(ops[at]) : out_volume(ops[ops.size() - 1]);
  for (int64_t i = 0; i < batch_.lanes; i++) rows_[i] = i < batch_.count ? x + (order ? order[i] : i) * width : zeros_.get();
  kernels.transpose(rows_.get(), batch_.lanes, width, act_[at].get(), batch_.lanes);
}

// Lanes back to rows.
void Net::scatter(const float* from, int64_t width, float* out) const {
  for (int64_t i = 0; i < batch_.count; i++)
    for (int64_t k = 0; k < width; k++) out[i * width + k] = from[k * batch_.lanes + i];
}

NormState Net::norm_state(const float* theta, int64_t i) {
  if (!ops[i].norm) return {};
  Norm& n = norms_[i];
  return {n.mean.get(), n.inverse.get(), theta + ops[i].weight, theta + ops[i].bias, n.by_gamma.get(), n.by_beta.get()};
}

// One operation forward; `statistics` is theta where norms move them (train mode), else null.
void Net::run(const float* theta, int64_t i, float* statistics, bool training) {
  const Op& op = ops[i];
  const float *x = act_[i].get(), *bias = op.bias < 0 ? nullptr : theta + op.bias;
  float* out = act_[i + 1].get();
  const int64_t lanes = batch_.lanes;
  if (op.kind == CONV) {
    const Conv c = conv_of(op);
    if (padded_[i].get()) {
      float* to = padded_[i].get();
      std::memset(to, 0, sizeof(float) * (size_t)(c.in * c.height * c.width * lanes));
      for (int64_t r = 0; r < op.in * op.height; r++)
        std::memcpy(to + ((r / op.height * c.height + r % op.height + op.pad_h) * c.width + op.pad_w) * lanes, x + r * op.width * lanes,
            sizeof(float) * (size_t)(op.width * lanes));
      x = to;
    }
    return kernels.conv_forward(c, batch_, x, theta + op.weight, bias, packed_.get(), out);
  }
  if (op.kind == LINEAR) return kernels.product(op.out, lanes, op.in, theta + op.weight, op.in, 1, x, lanes, bias, out, lanes);
  if (op.norm) {
    const int64_t pixels = op.height * op.width;
    const double n = (double)(pixels * batch_.count);
    for (int64_t c = 0; c < op.in; c++) {
      double mean, variance;
      if (training) {
        double spread;
        kernels.moments(x + c * pixels * lanes, pixels, batch_, &mean, &spread);
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
  kernels.stage_forward(stage_of(op), batch_, x, norm_state(theta, i), raw_[i].get(), out);
}

void Net::want(const uint8_t* moves) {
  const int64_t n = ops.size();
  wanted_from_ = n;
  for (int64_t i = n - 1; i >= 0; i--) {
    const Op& op = ops[i];
    const int64_t weights = op.kind == STAGE ? op.in
        : out_volume(op) / (op.out_height * op.out_width) * op.in * (op.kind == CONV ? op.kernel_h * op.kernel_w : 1);
    const auto any = [&](int64_t start, int64_t count) { return start >= 0 && (!moves || std::any_of(moves + start,
        moves + start + count, [](uint8_t m) { return m != 0; })); };
    want_weight_[i] = op.weight_trains && any(op.weight, weights);
    want_bias_[i] = op.bias_trains && any(op.bias, op.out);
    if (want_weight_[i] || want_bias_[i]) wanted_from_ = i;
  }
}

void Net::forward(float* theta, const float* x, const int64_t* order, int64_t count) {
  set_batch(count);
  gather(0, x, order);
  for (int64_t i = 0; i < ops.size(); i++) run(theta, i, theta, true);
}

void Net::features(float* out) const { scatter(act_[head].get(), volume(ops[head]), out); }

// Mean cross-entropy of the last activation; leaves its gradient in the place of the last gradient.
double Net::loss(const Targets& targets, const int64_t* order) {
  const int64_t classes = out_volume(ops[ops.size() - 1]), lanes = batch_.lanes, n = ops.size();
  const float* scores = act_[n].get();
  float* by = gradient_at(n);
  Array<float> z(classes), e(classes);
  double total = 0;
  for (int64_t i = 0; i < lanes; i++) {
    if (i >= batch_.count) {
      for (int64_t c = 0; c < classes; c++) by[c * lanes + i] = 0;
      continue;
    }
    const int64_t sample = order ? order[i] : i;
    float top = -std::numeric_limits<float>::infinity(), sum = 0;
    for (int64_t c = 0; c < classes; c++) z[c] = scores[c * lanes + i], top = z[c] > top ? z[c] : top;
    for (int64_t c = 0; c < classes; c++) e[c] = std::exp(z[c] - top), sum += e[c];
    const double log_sum = (double)top + std::log((double)sum);
    const float share = 1.0f / (float)batch_.count;
    if (targets.hard) {
      const int64_t y = targets.hard[sample];
      total += log_sum - z[y];
      for (int64_t c = 0; c < classes; c++) by[c * lanes + i] = (e[c] / sum - (c == y ? 1.0f : 0.0f)) * share;
    } else {
      const float* t = targets.soft + sample * classes;
      double mass = 0;
      for (int64_t c = 0; c < classes; c++) mass += t[c], total += t[c] * (log_sum - z[c]);
      for (int64_t c = 0; c < classes; c++) by[c * lanes + i] = ((float)mass * (e[c] / sum) - t[c]) * share;
    }
  }
  return total / (double)batch_.count;
}

void Net::back_affine(const float* theta, int64_t i, bool frozen, bool by_input, float* gradient) {
  const Op& op = ops[i];
  const int64_t lanes = batch_.lanes, pixels = op.out_height * op.out_width;
  const float *x = padded_[i].get() ? padded_[i].get() : act_[i].get(), *by_out = gradient_at(i + 1);
  if (want_bias_[i]) {
    if (!frozen && normalised(i)) {  // the norm takes any shift away: exactly zero, unless all is NaN
      const Norm& next = norms_[i + 1];
      const int64_t per = next.by_beta.size() / op.out;
      for (int64_t c = 0; c < op.out; c++) {
        float broken = 0;
        for (int64_t k = c * per; k < (c + 1) * per; k++) broken += next.by_beta[k] + next.by_gamma[k];
        gradient[op.bias + c] = std::isfinite(broken) ? 0 : std::numeric_limits<float>::quiet_NaN();
      }
    } else {
      for (int64_t c = 0; c < op.out; c++) gradient[op.bias + c] = (float)kernels.sum(by_out + c * pixels * lanes, pixels, batch_);
    }
  }
  if (op.kind == CONV) {
    if (want_weight_[i]) kernels.conv_by_weight(conv_of(op), batch_, x, by_out, sums_.get(), gradient + op.weight);
    if (by_input) kernels.conv_by_input(conv_of(op), batch_, by_out, theta + op.weight, packed_.get(), gradient_at(i));
    return;
  }
  if (want_weight_[i]) {  // inputs to the lanes: a row of weights is then a row of lanes
    const int64_t stride = rounded(op.in, kernels.width);
    for (int64_t k = 0; k < op.in; k++) rows_[k] = x + k * lanes;
    kernels.transpose(rows_.get(), op.in, batch_.count, turned_.get(), stride);
    kernels.product(op.out, op.in, batch_.count, by_out, lanes, 1, turned_.get(), stride, nullptr, gradient + op.weight, op.in);
  }
  if (by_input) kernels.product(op.in, lanes, op.out, theta + op.weight, 1, op.in, by_out, lanes, nullptr, gradient_at(i), lanes);
}

void Net::back_stage(const float* theta, int64_t i, bool frozen, float* by_x, float* gradient) {
  const Op& op = ops[i];
  kernels.stage_backward(stage_of(op), batch_, act_[i].get(), raw_[i].get(), act_[i + 1].get(), gradient_at(i + 1), norm_state(theta, i),
      frozen, by_x);
  if (want_weight_[i]) std::copy_n(norms_[i].by_gamma.get(), op.in, gradient + op.weight);
  if (want_bias_[i]) std::copy_n(norms_[i].by_beta.get(), op.in, gradient + op.bias);
}

// Operations last-1 down to first; the first's own input gradient only where asked for.
void Net::back(const float* theta, int64_t first, int64_t last, bool frozen, bool by_input, float* gradient) {
  for (int64_t i = last - 1; i >= first; i--) {
    const bool further = i > first || by_input;
    if (ops[i].kind == STAGE) back_stage(theta, i, frozen, further ? gradient_at(i) : nullptr, gradient);
    else back_affine(theta, i, frozen, further, gradient);
  }
}

double Net::backward(const float* theta, const Targets& targets, const int64_t* order, const float* extra, float* gradient) {
  const double value = loss(targets, order);
  const int64_t n = ops.size();
  if (wanted_from_ >= head) {
    back(theta, wanted_from_, n, false, false, gradient);
    return value;
  }
  back(theta, head, n, false, true, gradient);
  if (extra) {
    const int64_t width = volume(ops[head]);
    float* by = gradient_at(head);
    for (int64_t k = 0; k < width; k++)
      for (int64_t i = 0; i < batch_.count; i++) by[k * batch_.lanes + i] += extra[i * width + k];
  }
  back(theta, wanted_from_, head, false, false, gradient);
  return value;
}

void Net::evaluate(const float* theta, const float* x, int64_t count, int64_t first, int64_t last, float* out) {
  const int64_t from = volume(ops[first]), to = last < ops.size() ? volume(ops[last]) : out_volume(ops[ops.size() - 1]);
  for (int64_t at = 0; at < count; at += EVAL_BLOCK) {
    set_batch(std::min(EVAL_BLOCK, count - at));
    gather(first, x + at * from, nullptr);
    for (int64_t i = first; i < last; i++) run(theta, i, nullptr, false);
    scatter(act_[last].get(), to, out + at * to);
  }
}

double Net::head_gradient(const float* theta, const float* z, int64_t count, const Targets& targets, float* gradient, float* by_z) {
  const int64_t n = ops.size();
  set_batch(count);
  gather(head, z, nullptr);
  for (int64_t i = head; i < n; i++) run(theta, i, nullptr, false);
  const double value = loss(targets, nullptr);
  back(theta, head, n, true, true, gradient);
  scatter(gradient_at(head), volume(ops[head]), by_z);
  return value;
}

void Net::moments(const float* theta, const float* x, int64_t count, double* means, double* variances) {
  int64_t last = 0, norms = 0;
  for (int64_t i = 0; i < ops.size(); i++)
    if (ops[i].norm) last = i + 1, norms += ops[i].in;
  std::fill(means, means + norms, 0), std::fill(variances, variances + norms, 0);
  for (int64_t at = 0; at < count; at += EVAL_BLOCK) {
    set_batch(std::min(EVAL_BLOCK, count - at));
    gather(0, x + at * volume(ops[0]), nullptr);
    const double share = (double)batch_.count / (double)(at + batch_.count);
    double *mean = means, *variance = variances;
    for (int64_t i = 0; i < last; i++) {
      const Op& op = ops[i];
      const int64_t pixels = op.height * op.width;
      for (int64_t c = 0; op.norm && c < op.in; c++, mean++, variance++) {  // two groups of values taken together
        double here, spread;
        kernels.moments(act_[i].get() + c * pixels * batch_.lanes, pixels, batch_, &here, &spread);
        const double apart = here - *mean;
        *mean += share * apart;
        *variance = (1 - share) * *variance + share * spread / (double)(pixels * batch_.count) + share * (1 - share) * apart * apart;
      }
      if (i + 1 < last) run(theta, i, nullptr, false);
    }
  }
}

void Net::descend(float* theta, const float* x, const Targets& targets, const int64_t* order, const int64_t* ends, int64_t steps,
                  const uint8_t* moves, float lr, float momentum, float decay, double* losses) {
  const auto moving = [&](int64_t k) { return k >= 0 && k < size_ && moves[k]; };
  if (!step_.get()) step_ = Buffer(size_), velocity_ = Buffer(size_);
  float *step = step_.get(), *velocity = velocity_.get();
  std::memset(step, 0, sizeof(float) * (size_t)size_);
  std::memset(velocity, 0, sizeof(float) * (size_t)size_);
  int64_t turns = 0;  // between entries that move and entries that do not: they come in long stretches
  for (int64_t k = 0; k <= size_; k++) turns += moving(k) != moving(k - 1);
  Array<int64_t> turn(turns);
  for (int64_t k = 0, t = 0; k <= size_; k++)
    if (moving(k) != moving(k - 1)) turn[t++] = k;
  want(moves);
  for (int64_t s = 0, at = 0; s < steps; at = ends[s++]) {
    forward(theta, x, order + at, ends[s] - at);
    losses[s] = backward(theta, targets, order + at, nullptr, step);
    for (int64_t t = 0; t < turns; t += 2) {
      const int64_t at_entry = turn[t], entries = turn[t + 1] - turn[t];
      kernels.update(theta + at_entry, step + at_entry, momentum != 0 ? velocity + at_entry : nullptr, entries, lr, momentum, decay);
    }
  }
  want(nullptr);
}

}  // namespace pfedsim
