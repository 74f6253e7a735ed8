// A network as a graph of operations on one flat vector, with its work space. The layout of activations is told in kernels.h.
#pragma once
#include <cstdint>
#include <cstdlib>

#include "kernels.h"

namespace pfedsim {

enum Kind : int64_t { CONV, LINEAR, STAGE, ADD, MAX, MEAN, DROPOUT, GROUP };

struct Op {  // mirrored field by field by native.py; operation i makes value i + 1, value 0 is the network's input
  int64_t kind, a, b;                                     // values that it reads; b: -1 where there is one
  int64_t in, height, width, out, out_height, out_width;  // channels and image sides before and after
  int64_t kernel_h, kernel_w, stride_h, stride_w, pad_h, pad_w, groups;  // convolution, MAX, MEAN
  int64_t pool_h, pool_w, norm, act;                      // stage
  int64_t count_pad, by_element;                          // MEAN: divide by padding too; GROUP: weights for every element
  int64_t weight, bias, mean, variance;                   // where they start in theta; -1: none
  int64_t weight_trains, bias_trains;
  double momentum, epsilon, keep;                         // keep: the share that DROPOUT keeps
};

struct Targets {  // one of the two
  const int64_t* hard;
  const float* soft;  // (samples, classes); rows need not sum to 1
};

// Our own, since instances of the standard library's containers are exported whatever the visibility.
template <class T>
class Array {
 public:
  Array() = default;
  explicit Array(int64_t count) : data_(new T[(size_t)count]()), size_(count) {}
  Array(Array&& other) noexcept { *this = static_cast<Array&&>(other); }
  Array& operator=(Array&& other) noexcept {
    T* const data = other.data_;
    const int64_t size = other.size_;
    other.data_ = data_, other.size_ = size_, data_ = data, size_ = size;
    return *this;
  }
  ~Array() { delete[] data_; }
  T& operator[](int64_t i) { return data_[i]; }
  const T& operator[](int64_t i) const { return data_[i]; }
  T* get() { return data_; }
  const T* get() const { return data_; }
  int64_t size() const { return size_; }

 private:
  T* data_ = nullptr;
  int64_t size_ = 0;
};

class Buffer {  // floats aligned to a cache line, zeroed
 public:
  Buffer() = default;
  explicit Buffer(int64_t count);
  Buffer(Buffer&& other) noexcept : data_(other.data_) { other.data_ = nullptr; }
  Buffer& operator=(Buffer&& other) noexcept {
    float* const data = other.data_;
    other.data_ = data_, data_ = data;
    return *this;
  }
  ~Buffer() { std::free(data_); }
  float* get() const { return data_; }

 private:
  float* data_ = nullptr;
};

class Net {
 public:
  // `cut`: the value that operations from `head` on read
  Net(const Kernels& kernels, const Op* ops, int64_t count, int64_t head, int64_t cut, int64_t size);

  // Which parameters' gradients are wanted: those that train and, where given, that `moves`.
  void want(const uint8_t* moves);
  // Train mode: moves the norm statistics inside theta. Samples are rows of x, by `order` where given. `kept`: what each dropout keeps, as
  // (samples, volume) ones and zeros, one dropout after the other.
  void forward(float* theta, const float* x, const int64_t* order, const float* kept, int64_t count);
  // The head's input of the last forward, (samples, width).
  void features(float* out) const;
  // From the last forward; returns the mean loss. `extra`: a gradient to add at the head's input, (samples, width).
  double backward(const float* theta, const Targets& targets, const int64_t* order, const float* extra, float* gradient);
  // Eval mode, operations first..last (exclusive) on rows of x, in blocks: the last one's output.
  void evaluate(const float* theta, const float* x, int64_t count, bool body, bool tail, float* out);
  double head_gradient(const float* theta, const float* z, int64_t count, const Targets& targets, float* gradient, float* by_z);
  // Means and population variances at each norm's input, in the order of the operations.
  void moments(const float* theta, const float* x, int64_t count, double* means, double* variances);
  // `fresh`: momentum starts at zero; else where the last call left it.
  void descend(float* theta, const float* x, const Targets& targets, const int64_t* order, const float* kept, const int64_t* ends,
               int64_t steps, const uint8_t* moves, bool fresh, float lr, float momentum, float decay, double* losses);
  // Bytes of work space for batches of this size.
  int64_t space(int64_t count, bool training);

  const Kernels& kernels;
  const Array<Op> ops;
  const int64_t head, cut;

 private:
  struct Norm {
    Array<float> mean, inverse, by_gamma, by_beta;
  };
  struct Slot {  // a stretch of the arena, from its first to its last step
    int64_t size = 0, first = 0, last = -1, at = -1, step = 0;  // step: floats to the next channel of a window, 0 where all channels are there
  };
  enum Mode { EVAL, TRAIN, APART };  // APART: eval mode, operation by operation
  struct Plan {  // of one batch size and mode; see plan.cpp
    int64_t lanes = 0, size = 0;
    Mode mode = EVAL;
    Array<Slot> act, by, raw, ready, wide;
    Array<Conv> convs;
  };
  Plan planned(int64_t lanes, Mode mode) const;
  void open_windows(Plan& plan) const;
  void find_runs();
  Array<int64_t> shared(Plan& plan) const;
  void place(Plan& plan) const;
  Conv conv_of(const Op& op, int64_t lanes) const;
  void set_batch(int64_t count, Mode mode);
  void reserve(int64_t lanes);

  int64_t volume(int64_t value) const;
  int64_t pixels(int64_t value) const;
  int64_t plane(int64_t value, int64_t lanes) const;  // floats from one channel to the next
  int64_t seen(const Op& op, int64_t value, int64_t lanes) const;  // the same, as this operation sees it
  // where channel 0 is, or would be where only a window from channel `first` on is there
  float* at(const Slot& slot, int64_t first = 0) const { return slot.size ? arena_.get() + slot.at - first * slot.step : nullptr; }
  float* act(int64_t value, int64_t first = 0) const { return at(plan_->act[value], first); }
  float* by(int64_t value, int64_t first = 0) const { return at(plan_->by[value], first); }

  void gather(int64_t value, const float* x, const int64_t* order);
  void scatter(const float* from, int64_t width, float* out) const;

  struct Channels {
    int64_t first, last;
  };
  struct Step {  // of SGD; theta null: none
    float *theta, *velocity;
    float lr, momentum, decay;
  };
  void run_all(const float* theta, int64_t first, int64_t last, float* statistics, const float* kept);
  void run(const float* theta, int64_t i, float* statistics);
  bool joined(int64_t i, Mode mode, int64_t lanes) const;
  void run_conv(const float* theta, int64_t i, Channels part);
  void run_stage(const float* theta, int64_t i, float* statistics, Channels part);
  void run_channels(const float* theta, int64_t first, float* statistics);
  void back_channels(const float* theta, int64_t last, bool frozen, float* gradient);
  int64_t block(int64_t i, int64_t lanes) const;  // channels of a run that go through it together
  void find_norm(const float* theta, int64_t i, float* statistics, Channels part);
  const float* prepared(int64_t i, Channels part);
  void run_dropout(int64_t i, const float* kept);
  double loss(const Targets& targets, const int64_t* order);
  void back(const float* theta, int64_t first, int64_t last, bool frozen, float* gradient);
  void back_one(const float* theta, int64_t i, bool frozen, float* gradient);
  void back_bias(int64_t i, bool frozen, Channels part, float* gradient);
  void back_conv(const float* theta, int64_t i, Channels part, float* gradient);
  void back_linear(const float* theta, int64_t i, float* gradient);
  void linear_by_input(const float* theta, int64_t i);
  void linear_by_weight(int64_t i, float* gradient);
  void back_stage(const float* theta, int64_t i, bool frozen, Channels part, float* gradient);
  void back_add(int64_t i);
  void back_window(int64_t i);
  void back_group(const float* theta, int64_t i, float* gradient);
  bool writes(int64_t value, int64_t first = 0);  // whether the gradient by this value is there already, so that more is added
  bool normalised(int64_t i) const;
  NormState norm_state(const float* theta, int64_t i);
  Stage stage_of(const Op& op) const;
  Window window_of(const Op& op) const;
  Group group_of(const Op& op) const;

  const int64_t size_;
  int64_t count_ = 0, capacity_ = 0, arena_size_ = 0, work_size_ = 0;
  bool still_ = false;  // still: the head alone, in eval mode
  Step step_of_ = {};
  Array<char> at_once_;  // linear layers whose weights all move: they take their step on the way back, so that their gradient need not be kept
  Array<char> want_weight_, want_bias_, needed_, written_, more_;  // needed_.. of the gradient by a value
  Array<int64_t> sole_reader_;  // the operation that alone reads a value; -1: several or none
  // Runs: operations in a row that take each channel for itself (stages, depthwise convolutions) go channel by channel, so that what
  // passes between them stays in the second cache. Of what passes, only windows are kept, and made again on the way back.
  Array<int64_t> run_first_, run_last_;
  Array<char> dense_;  // values that a linear layer or a caller reads: no gap between channels
  Plan plans_[4];
  int64_t next_plan_ = 0;
  const Plan* plan_ = nullptr;
  Array<Norm> norms_;
  Buffer arena_, packed_, sums_, temp_, step_, velocity_;
  Array<const float*> rows_;
  Array<int64_t> offsets_;
  Work work_{};
};

bool depthwise(const Op& op);
Conv turned_round(const Conv& c, int64_t lanes);

}  // namespace pfedsim
