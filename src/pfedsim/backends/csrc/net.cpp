// The network's verbs: batches in and out of the lanes, training, scoring.
#include "net.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#ifdef __linux__
#include <sys/mman.h>
#endif

namespace pfedsim {

static const int64_t EVAL_BLOCK = 32;  // images at a time in eval mode: small enough for the caches

Buffer::Buffer(int64_t count) {
  const size_t huge = (size_t)1 << 21, line = 64;
  size_t bytes = (size_t)std::max<int64_t>(count, 1) * sizeof(float);
  const size_t unit = bytes >= 2 * huge ? huge : line;
  bytes = (bytes + unit - 1) / unit * unit;
  data_ = (float*)std::aligned_alloc(unit, bytes);
  if (!data_) throw std::bad_alloc();
#ifdef __linux__
  if (unit == huge) madvise(data_, bytes, MADV_HUGEPAGE);
#endif
  std::memset(data_, 0, bytes);
}

static Array<Op> copied(const Op* ops, int64_t count) {
  Array<Op> copy(count);
  std::copy(ops, ops + count, copy.get());
  return copy;
}

Net::Net(const Kernels& k, const Op* first, int64_t count, int64_t head_at, int64_t cut_at, int64_t size)
    : kernels(k), ops(copied(first, count)), head(head_at), cut(cut_at), size_(size), norms_(count) {
  sole_reader_ = Array<int64_t>(count + 1), dense_ = Array<char>(count + 1), needed_ = Array<char>(count + 1),
  written_ = Array<char>(count + 1), more_ = Array<char>(count + 1);
  std::fill_n(sole_reader_.get(), count + 1, -2);
  dense_[0] = dense_[cut] = dense_[count] = 1;
  for (int64_t i = 0; i < count; i++) {
    const Op& op = ops[i];
    for (int64_t v : {op.a, op.b}) {
      if (v < 0) continue;
      sole_reader_[v] = sole_reader_[v] == -2 ? i : -1;
      if (op.kind == LINEAR || op.in * pixels(v) != volume(v)) dense_[v] = 1;  // a matrix, or another shape than it was made
    }
    if (op.out_height * op.out_width == 1) dense_[i + 1] = 1;
    if (op.kind == STAGE && op.norm)
      for (Array<float>* v : {&norms_[i].mean, &norms_[i].inverse, &norms_[i].by_gamma, &norms_[i].by_beta}) *v = Array<float>(op.in);
  }
  find_runs();
  want_weight_ = Array<char>(count), want_bias_ = Array<char>(count);
  want(nullptr);
}

// Samples as rows into the lanes of a value.
void Net::gather(int64_t value, const float* x, const int64_t* order) {
  const int64_t width = volume(value);
  for (int64_t i = 0; i < count_; i++) rows_[i] = x + (order ? order[i] : i) * width;
  kernels.transpose(rows_.get(), count_, width, act(value), count_);
}

// Lanes back to rows.
void Net::scatter(const float* from, int64_t width, float* out) const {
  for (int64_t i = 0; i < count_; i++)
    for (int64_t k = 0; k < width; k++) out[i * width + k] = from[k * count_ + i];
}

static int64_t weights(const Op& op) {
  if (op.kind == CONV) return op.out * op.in / op.groups * op.kernel_h * op.kernel_w;
  if (op.kind == LINEAR) return op.out * op.in;
  return op.in * (op.by_element ? op.height * op.width : 1);
}

void Net::want(const uint8_t* moves) {
  const auto any = [&](int64_t start, int64_t count) {
    return start >= 0 && (!moves || std::memchr(moves + start, 1, (size_t)count));
  };
  for (int64_t i = 0; i < ops.size(); i++) {
    const Op& op = ops[i];
    want_weight_[i] = op.weight_trains && any(op.weight, weights(op));
    want_bias_[i] = op.bias_trains && any(op.bias, op.kind == GROUP ? weights(op) : op.out);
    needed_[i + 1] = want_weight_[i] || want_bias_[i] || needed_[op.a] || (op.b >= 0 && needed_[op.b]);
  }
}

void Net::forward(float* theta, const float* x, const int64_t* order, const float* kept, int64_t count) {
  set_batch(count, TRAIN);
  still_ = false;
  gather(0, x, order);
  run_all(theta, 0, ops.size(), theta, kept);
}

void Net::features(float* out) const { scatter(act(cut), volume(cut), out); }

double Net::backward(const float* theta, const Targets& targets, const int64_t* order, const float* extra, float* gradient) {
  const double value = loss(targets, order);
  std::memset(written_.get(), 0, (size_t)written_.size());
  back(theta, head, ops.size(), false, gradient);
  if (extra && needed_[cut]) {
    const int64_t width = volume(cut);
    for (int64_t k = 0; k < width; k++)
      for (int64_t i = 0; i < count_; i++) by(cut)[k * count_ + i] += extra[i * width + k];
  }
  back(theta, 0, head, false, gradient);
  return value;
}

void Net::evaluate(const float* theta, const float* x, int64_t count, bool body, bool tail, float* out) {
  const int64_t first = body ? 0 : cut, last = tail ? ops.size() : cut, from = volume(first), to = volume(last);
  for (int64_t done = 0; done < count; done += EVAL_BLOCK) {
    set_batch(std::min(EVAL_BLOCK, count - done), EVAL);
    gather(first, x + done * from, nullptr);
    run_all(theta, body ? 0 : head, tail ? ops.size() : head, nullptr, nullptr);
    scatter(act(last), to, out + done * to);
  }
}

double Net::head_gradient(const float* theta, const float* z, int64_t count, const Targets& targets, float* gradient, float* by_z) {
  const int64_t n = ops.size();
  set_batch(count, TRAIN);
  still_ = true;
  gather(cut, z, nullptr);
  run_all(theta, head, n, nullptr, nullptr);
  const double value = loss(targets, nullptr);
  std::memset(written_.get(), 0, (size_t)written_.size());
  std::memset(needed_.get(), 1, (size_t)needed_.size());
  back(theta, head, n, true, gradient);
  want(nullptr);
  scatter(by(cut), volume(cut), by_z);
  return value;
}

// Two groups of values taken together: `share` of them are the new ones.
static void merge(double here, double spread, double share, double* mean, double* variance) {
  const double apart = here - *mean;
  *mean += share * apart;
  *variance = (1 - share) * *variance + share * spread + share * (1 - share) * apart * apart;
}

void Net::moments(const float* theta, const float* x, int64_t count, double* means, double* variances) {
  const auto channels = [](const Op& op) { return op.norm || op.kind == GROUP ? weights(op) : 0; };
  int64_t norms = 0;
  for (int64_t i = 0; i < ops.size(); i++) norms += channels(ops[i]);
  std::fill(means, means + norms, 0), std::fill(variances, variances + norms, 0);
  for (int64_t done = 0; done < count; done += EVAL_BLOCK) {
    set_batch(std::min(EVAL_BLOCK, count - done), APART);
    gather(0, x + done * volume(0), nullptr);
    const double share = (double)count_ / (double)(done + count_);
    int64_t k = 0;
    for (int64_t i = 0; i < ops.size(); i++) {
      const Op& op = ops[i];
      const int64_t parts = channels(op) / op.in, n = parts ? op.height * op.width / parts : 0;  // parts: of a channel, each normed alone
      for (int64_t c = 0; c < channels(op); c++, k++) {
        double here, spread;
        kernels.moments(act(op.a) + c / parts * seen(op, op.a, count_) + c % parts * count_, n, count_, &here, &spread);
        merge(here, spread / (double)(n * count_), share, means + k, variances + k);
      }
      if (k < norms) run(theta, i, nullptr);
    }
  }
}

// Where stretches of entries that move begin and end, in turns: there are few.
static Array<int64_t> turns(const uint8_t* moves, int64_t size) {
  const auto all = [&](bool write, Array<int64_t>& found) {
    int64_t count = 0;
    bool now = false;
    for (int64_t k = 0; k < size;) {
      const void* other = now ? std::memchr(moves + k, 0, (size_t)(size - k)) : std::memchr(moves + k, 1, (size_t)(size - k));
      if (!other) break;
      k = (const uint8_t*)other - moves;
      if (write) found[count] = k;
      count++, now = !now;
    }
    if (now && write) found[count] = size;
    return count + now;
  };
  Array<int64_t> found;
  found = Array<int64_t>(all(false, found));
  all(true, found);
  return found;
}

void Net::descend(float* theta, const float* x, const Targets& targets, const int64_t* order, const float* kept, const int64_t* ends,
                  int64_t steps, const uint8_t* moves, bool fresh, float lr, float momentum, float decay, double* losses) {
  if (!step_.get()) step_ = Buffer(size_);  // zeros: what no operation writes has no gradient
  if (momentum != 0 && !velocity_.get()) velocity_ = Buffer(size_);
  float *step = step_.get(), *velocity = momentum != 0 ? velocity_.get() : nullptr;
  if (fresh && velocity) std::memset(velocity, 0, sizeof(float) * (size_t)size_);
  int64_t dropped = 0;  // entries of `kept` that a sample takes
  for (int64_t i = 0; i < ops.size(); i++) dropped += ops[i].kind == DROPOUT ? volume(i + 1) : 0;
  Array<uint8_t> later(size_);  // what moves, but for what moves on the way back
  std::copy(moves, moves + size_, later.get());
  at_once_ = Array<char>(ops.size());
  for (int64_t i = 0; i < ops.size(); i++) {
    const Op& op = ops[i];
    if (op.kind != LINEAR || !op.weight_trains || std::memchr(moves + op.weight, 0, (size_t)weights(op))) continue;
    at_once_[i] = 1;
    std::memset(later.get() + op.weight, 0, (size_t)weights(op));
  }
  const Array<int64_t> turn = turns(later.get(), size_);
  struct Usual {  // again at the end, also where memory runs out
    Net& net;
    ~Usual() { net.want(nullptr), net.step_of_ = {}; }
  } usual{*this};
  step_of_ = {theta, velocity, lr, momentum, decay};
  want(moves);
  for (int64_t s = 0, at = 0; s < steps; at = ends[s++]) {
    forward(theta, x, order + at, kept ? kept + at * dropped : nullptr, ends[s] - at);
    losses[s] = backward(theta, targets, order + at, nullptr, step);
    for (int64_t t = 0; t < turn.size(); t += 2) {
      const int64_t at_entry = turn[t], entries = turn[t + 1] - turn[t];
      kernels.update(theta + at_entry, step + at_entry, velocity ? velocity + at_entry : nullptr, entries, lr, momentum, decay);
    }
  }
}

}  // namespace pfedsim
