// A network as a chain of operations on one flat vector, with its work space.
#pragma once
#include <cstdint>
#include <cstdlib>

#include "kernels.h"

namespace pfedsim {

enum Kind : int64_t { CONV, LINEAR, STAGE };

struct Op {  // mirrored field by field by native.py
  int64_t kind;
  int64_t in, height, width, out, out_height, out_width;  // channels and image sides before and after
  int64_t kernel_h, kernel_w, pad_h, pad_w;               // convolution
  int64_t pool_h, pool_w, norm, relu;                     // stage
  int64_t weight, bias, mean, variance;                   // where they start in theta; -1: none
  int64_t weight_trains, bias_trains;
  double momentum, epsilon;
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
  Net(const Kernels& kernels, const Op* ops, int64_t count, int64_t head, int64_t size);

  // Which parameters' gradients are wanted: those that train and, where given, that `moves`.
  void want(const uint8_t* moves);
  // Train mode: moves the norm statistics inside theta. Samples are rows of x, by `order` where given.
  void forward(float* theta, const float* x, const int64_t* order, int64_t count);
  // The head's input of the last forward, (samples, width).
  void features(float* out) const;
  // From the last forward; returns the mean loss. `extra`: a gradient to add at the head's input, (samples, width).
  double backward(const float* theta, const Targets& targets, const int64_t* order, const float* extra, float* gradient);
  // Eval mode, operations first..last (exclusive) on rows of x, in blocks.
  void evaluate(const float* theta, const float* x, int64_t count, int64_t first, int64_t last, float* out);
  double head_gradient(const float* theta, const float* z, int64_t count, const Targets& targets, float* gradient, float* by_z);
  // Means and population variances at each norm's input, in the chain's order.
  void moments(const float* theta, const float* x, int64_t count, double* means, double* variances);
  void descend(float* theta, const float* x, const Targets& targets, const int64_t* order, const int64_t* ends, int64_t steps,
               const uint8_t* moves, float lr, float momentum, float decay, double* losses);

  const Kernels& kernels;
  const Array<Op> ops;
  const int64_t head;

 private:
  struct Norm {
    Array<float> mean, inverse, by_gamma, by_beta;
  };
  void reserve(int64_t count);
  void set_batch(int64_t count);
  void gather(int64_t at, const float* x, const int64_t* order);
  void scatter(const float* from, int64_t width, float* out) const;
  void run(const float* theta, int64_t i, float* statistics, bool training);
  double loss(const Targets& targets, const int64_t* order);
  void back(const float* theta, int64_t first, int64_t last, bool frozen, bool by_input, float* gradient);
  void back_affine(const float* theta, int64_t i, bool frozen, bool by_input, float* gradient);
  void back_stage(const float* theta, int64_t i, bool frozen, float* by_x, float* gradient);
  bool normalised(int64_t i) const { return i + 1 < ops.size() && ops[i + 1].kind == STAGE && ops[i + 1].norm; }
  NormState norm_state(const float* theta, int64_t i);
  float* gradient_at(int64_t i) { return by_act_[i].get() ? by_act_[i].get() : act_[i].get(); }

  const int64_t size_;
  int64_t capacity_ = 0, wanted_from_ = 0, widest_input_ = 0;
  Array<char> want_weight_, want_bias_;
  Array<Buffer> act_, by_act_, raw_, padded_;  // a gradient without a buffer of its own takes its activation's
  Array<Norm> norms_;
  Buffer packed_, sums_, turned_, zeros_, step_, velocity_;
  Array<const float*> rows_;
  Array<int32_t> mask_;
  Batch batch_{0, 0, nullptr};
};

}  // namespace pfedsim
