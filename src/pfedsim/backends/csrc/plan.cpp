// Where everything of a pass lies: one arena, in which values that are never alive together share their place. Time runs 0..n-1 forward,
// operation i goes back at 2n - i. A channel of a value starts `plane` floats after the one before: a line more than it needs where nobody
// reads the value as a matrix, since powers of two apart all channels would fall into the same few lines of the cache.
#include <algorithm>
#include <cstring>
#include <utility>

#include "net.h"

namespace pfedsim {

static int64_t rounded(int64_t n, int64_t by) { return (n + by - 1) / by * by; }

static bool prepares(const Op& op) {
  return op.kind == CONV && (op.pad_h || op.pad_w || op.stride_h > 1 || op.stride_w > 1);
}

int64_t Net::pixels(int64_t v) const { return v == 0 ? ops[0].height * ops[0].width : ops[v - 1].out_height * ops[v - 1].out_width; }
int64_t Net::volume(int64_t v) const { return (v == 0 ? ops[0].in : ops[v - 1].out) * pixels(v); }
int64_t Net::plane(int64_t v, int64_t lanes) const { return dense_[v] ? pixels(v) * lanes : rounded(pixels(v) * lanes, 16) + 16; }
int64_t Net::seen(const Op& op, int64_t v, int64_t lanes) const { return dense_[v] ? op.height * op.width * lanes : plane(v, lanes); }

Conv Net::conv_of(const Op& op, int64_t lanes) const {
  Conv c = {op.in, op.out, op.groups, op.height, op.width, op.out_height, op.out_width, op.kernel_h, op.kernel_w, op.stride_h, op.stride_w,
      op.pad_h, op.pad_w, 0, 0, 0, 0, 0, 0, 0, 0};
  const int64_t out = &op - &ops[0] + 1;
  c.in_plane = seen(op, op.a, lanes), c.y_plane = plane(out, lanes);
  if (op.kernel_h == 1 && op.kernel_w == 1 && !prepares(op))  // a matrix product: the whole channel is one row
    c.height = c.rows = 1, c.width = c.columns = op.height * op.width;
  if (prepares(op)) {
    c.phase = (c.kernel_w - 1) / c.stride_w + c.columns;
    c.x_row = c.stride_w * c.phase * lanes;
    c.x_plane = ((c.rows - 1) * c.stride_h + c.kernel_h) * c.x_row;
  } else {
    c.phase = c.width, c.x_row = c.width * lanes, c.x_plane = c.in_plane;
  }
  c.margin = c.kernel_w > 1 ? c.kernel_w : 0;
  c.by_row = (c.columns + 2 * c.margin) * lanes;
  c.by_plane = c.margin ? c.rows * c.by_row : c.y_plane;
  return c;
}

bool depthwise(const Op& op) {
  return op.groups == op.in && op.in == op.out && op.in > 1 && op.kernel_h <= MOST_KERNEL && op.kernel_w <= MOST_KERNEL
      && op.pad_h < op.kernel_h && op.pad_w < op.kernel_w;
}

// The convolution that takes a depthwise gradient back where there is no stride: the same with its filters turned round.
Conv turned_round(const Conv& c, int64_t lanes) {
  Conv t = c;
  t.height = c.rows, t.width = c.columns, t.rows = c.height, t.columns = c.width;
  t.pad_h = c.kernel_h - 1 - c.pad_h, t.pad_w = c.kernel_w - 1 - c.pad_w;
  t.phase = c.kernel_w - 1 + t.columns, t.x_row = t.phase * lanes, t.x_plane = (t.rows - 1 + c.kernel_h) * t.x_row;
  t.y_plane = c.in_plane;
  return t;
}

Net::Plan Net::planned(int64_t lanes, Mode mode) const {
  const int64_t n = ops.size();
  Plan p;
  const bool training = mode == TRAIN;
  p.lanes = lanes, p.mode = mode;
  p.act = Array<Slot>(n + 1), p.by = Array<Slot>(n + 1), p.raw = Array<Slot>(n), p.ready = Array<Slot>(n), p.wide = Array<Slot>(n);
  p.convs = Array<Conv>(n);
  const auto uses = [&](Slot& s, int64_t t) {
    if (training || t <= n) s.first = s.last < 0 ? t : std::min(s.first, t), s.last = std::max(s.last, t);
  };
  for (int64_t v = 0; v <= n; v++) p.act[v].size = p.by[v].size = (volume(v) / pixels(v)) * plane(v, lanes) + 16, uses(p.act[v], v ? run_first_[v - 1] : 0);
  uses(p.act[cut], n), uses(p.act[n], n);
  if (training) uses(p.by[n], n);
  for (int64_t i = 0; i < n; i++) {
    const Op& op = ops[i];
    const int64_t now = run_first_[i], back = 2 * n - now;  // a run is one moment
    if (joined(i, mode, lanes)) uses(p.act[i + 2], now);
    uses(p.act[op.a], now), uses(p.by[op.a], back), uses(p.by[i + 1], back);
    if (op.b >= 0) uses(p.act[op.b], now), uses(p.by[op.b], back);
    const auto also = [&](Slot& s, int64_t size) { s.size = size + 16, uses(s, now), uses(s, back); };
    if (op.kind == CONV) {
      const Conv c = p.convs[i] = conv_of(op, lanes);
      if (prepares(op)) also(p.ready[i], op.in * c.x_plane);
      if (!prepares(op) || run_first_[i] < run_last_[i]) uses(p.act[op.a], back);  // a run prepares again on its way back
      const int64_t wide = depthwise(op) && op.stride_h == 1 && op.stride_w == 1 ? turned_round(c, lanes).x_plane : c.margin ? c.by_plane : 0;
      if (wide) p.wide[i].size = op.out * wide + 16, uses(p.wide[i], back);
    } else if (op.kind == STAGE) {
      uses(p.act[op.a], back);
      if (op.pool_h * op.pool_w > 1) also(p.raw[i], op.out * plane(i + 1, lanes));
    } else if (op.kind == LINEAR) {
      uses(p.act[op.a], back);
    } else if (op.kind == MAX || op.kind == DROPOUT) {
      also(p.raw[i], op.out * plane(i + 1, lanes));
    } else if (op.kind == GROUP) {
      uses(p.act[op.a], back), also(p.raw[i], 2 * op.groups * lanes);
    }
  }
  open_windows(p);
  place(p);
  return p;
}

static bool channelwise(const Op& op) { return (op.kind == CONV && depthwise(op)) || (op.kind == STAGE && op.pool_h * op.pool_w == 1); }

void Net::find_runs() {
  const int64_t n = ops.size();
  run_first_ = Array<int64_t>(n), run_last_ = Array<int64_t>(n);
  for (int64_t i = 0; i < n; i++) {
    const bool follows = i > 0 && i != head && channelwise(ops[i - 1]) && channelwise(ops[i]) && ops[i].a == i && sole_reader_[i] == i
        && i != cut && !dense_[i];
    run_first_[i] = follows ? run_first_[i - 1] : i;
    for (int64_t k = run_first_[i]; k <= i; k++) run_last_[k] = i;
  }
}

// Channels of a run that go through it together: about 64 KB of each value.
int64_t Net::block(int64_t i, int64_t lanes) const {
  const int64_t floats = std::max(ops[i].height * ops[i].width, ops[i].out_height * ops[i].out_width) * lanes;
  return std::min(ops[i].in, std::max<int64_t>(1, 16384 / floats));
}

// Inside a run: what passes between its operations, but for what a depthwise convolution makes in train mode.
void Net::open_windows(Plan& p) const {
  for (int64_t i = 0; i < ops.size() && p.mode != APART; i++) {
    if (run_first_[i] == run_last_[i]) continue;
    const int64_t channels = block(run_first_[i], p.lanes);
    const auto open = [&](Slot& s, int64_t step) {
      if (s.size) s.step = step, s.size = channels * step + 16;
    };
    if (ops[i].kind == CONV) {
      open(p.ready[i], p.convs[i].x_plane);
      open(p.wide[i], (p.wide[i].size - 16) / ops[i].out);
    }
    if (i == run_last_[i]) continue;
    const bool first = i == run_first_[i];  // in eval mode the convolution before may have done it, all channels at once
    if (p.mode == EVAL ? !first : ops[i].kind == STAGE) open(p.act[i + 1], plane(i + 1, p.lanes));
    open(p.by[i + 1], plane(i + 1, p.lanes));
  }
}

// Gradients that take another's place: that of the activation where only a stage reads it, and that of a sum's gradient for one summand
// that nobody else reads. `of` is -1 for a place of its own, -2 for the activation's, else the value whose gradient it shares.
Array<int64_t> Net::shared(Plan& p) const {
  const int64_t n = ops.size();
  Array<int64_t> of(n + 1);
  for (int64_t v = 0; v <= n; v++) {
    const int64_t reader = sole_reader_[v];
    const bool stage = v > 0 && v != cut && reader >= 0 && ops[reader].kind == STAGE && (ops[v - 1].kind == CONV || ops[v - 1].kind == LINEAR);
    of[v] = stage && p.mode == TRAIN && !p.by[v].step ? -2 : -1;
    if (of[v] == -2) p.act[v].last = std::max(p.act[v].last, p.by[v].last);
  }
  for (int64_t i = n - 1; i >= 0 && p.mode == TRAIN; i--) {
    if (ops[i].kind != ADD) continue;
    for (int64_t v : {ops[i].b, ops[i].a})
      if (v > 0 && v != cut && sole_reader_[v] == i && dense_[v] == dense_[i + 1]) {
        of[v] = of[i + 1] == -1 ? i + 1 : of[i + 1];
        p.by[of[v]].last = std::max(p.by[of[v]].last, p.by[v].last);
        break;
      }
  }
  return of;
}

// Largest first, each at the lowest place where it meets nobody of its time.
void Net::place(Plan& p) const {
  const int64_t n = ops.size();
  const Array<int64_t> of = shared(p);
  Array<Slot*> slots(5 * n + 2);
  int64_t count = 0;
  for (Array<Slot>* group : {&p.act, &p.by, &p.raw, &p.ready, &p.wide})
    for (int64_t k = 0; k < group->size(); k++) {
      Slot& s = (*group)[k];
      if (s.last < 0) s.size = 0;
      if (s.size && (group != &p.by || of[k] == -1)) s.size = rounded(s.size, 16), slots[count++] = &s;
    }
  std::stable_sort(slots.get(), slots.get() + count, [](const Slot* a, const Slot* b) { return a->size > b->size; });
  for (int64_t k = 0; k < count; k++) {
    int64_t at = 0;
    for (bool moved = true; moved;) {
      moved = false;
      for (int64_t j = 0; j < k; j++) {
        const Slot &a = *slots[j], &b = *slots[k];
        if (a.first <= b.last && b.first <= a.last && at < a.at + a.size && a.at < at + b.size) at = a.at + a.size, moved = true;
      }
    }
    slots[k]->at = at;
    p.size = std::max(p.size, at + slots[k]->size);
  }
  for (int64_t v = 0; v <= n; v++)
    if (of[v] != -1) p.by[v].at = of[v] == -2 ? p.act[v].at : p.by[of[v]].at;
}

void Net::reserve(int64_t lanes) {
  if (lanes <= capacity_) return;
  const int64_t w = kernels.width;
  int64_t packed = 1, sums = 1, temp = 1, taps_most = lanes;
  for (int64_t i = 0; i < ops.size(); i++) {
    const Op& op = ops[i];
    if (op.kind == LINEAR) temp = std::max(temp, rounded(op.in, w) * lanes), taps_most = std::max(taps_most, op.in);
    if (op.kind == STAGE) temp = std::max(temp, op.pool_h * (op.width * lanes + w));
    if (op.kind != CONV) continue;
    const int64_t taps = op.in / op.groups * op.kernel_h * op.kernel_w, outs = op.out / op.groups;
    packed = std::max(packed, outs * taps), taps_most = std::max(taps_most, taps);
    sums = std::max(sums, std::min(outs, std::max<int64_t>(8, SUMS / (taps * w))) * taps * w);
    const int64_t turned = std::min<int64_t>(TURNED, op.out_height * op.out_width * lanes);
    temp = std::max(temp, std::max(op.in / op.groups * rounded(op.width * lanes, w), turned * rounded(taps, w)));
    temp = std::max(temp, (turned + taps) * rounded(outs, w));
  }
  packed_ = Buffer(packed + 16), sums_ = Buffer(sums + 16), temp_ = Buffer(temp + 16);
  rows_ = Array<const float*>(taps_most), offsets_ = Array<int64_t>(taps_most);
  work_ = {packed_.get(), sums_.get(), temp_.get(), offsets_.get(), rows_.get()};
  capacity_ = lanes, work_size_ = packed + sums + temp;
}

void Net::set_batch(int64_t count, Mode mode) {
  reserve(count);
  count_ = count, plan_ = nullptr;
  for (const Plan& p : plans_)
    if (p.lanes == count && p.mode == mode) plan_ = &p;
  if (!plan_) {
    Plan& fresh = plans_[next_plan_];
    next_plan_ = (next_plan_ + 1) % 4;
    fresh = planned(count, mode);
    plan_ = &fresh;
  }
  if (plan_->size > arena_size_) arena_ = Buffer(), arena_ = Buffer(plan_->size + 64), arena_size_ = plan_->size;
}

int64_t Net::space(int64_t count, bool training) {
  reserve(count);
  return (planned(count, training ? TRAIN : EVAL).size + work_size_) * (int64_t)sizeof(float);
}

}  // namespace pfedsim
