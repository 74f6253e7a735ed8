// What every instruction set offers. Activations lie as (channel, row, column, image): the batch is in the SIMD lanes, so that six
// channels waste no lane. `lanes` is the number of images rounded up to whole vectors; the mask tells the real ones.
#pragma once
#include <cstdint>

namespace pfedsim {

struct Conv {  // stride 1; `height` and `width` are those of the input with its zero border
  int64_t in, height, width, out, out_height, out_width, kernel_h, kernel_w, pad_h, pad_w;
};

struct Stage {  // norm, ReLU, max pool in this order, each optional (pool 1 x 1: none)
  int64_t channels, height, width, out_height, out_width, pool_h, pool_w;
  bool norm, relu;
};

struct Batch {
  int64_t count, lanes;  // images, and images rounded up to whole vectors
  const int32_t* mask;   // per lane: all ones for an image, zero for padding
};

struct NormState {  // of one channel each: what forward used and backward found
  const float *mean, *deviation_inverse, *gamma, *beta;
  float *by_gamma, *by_beta;
};

struct Kernels {
  const char* name;
  int64_t width;  // floats in a vector
  // out[c * stride + r] = rows[r][c]
  void (*transpose)(const float* const* rows, int64_t count, int64_t columns, float* out, int64_t stride);
  // out[r, l] = bias[r] + sum_k w[r * by_row + k * by_term] * x[k * x_stride + l]; columns of x rounded up to whole vectors are readable
  void (*product)(int64_t rows, int64_t columns, int64_t terms, const float* w, int64_t by_row, int64_t by_term, const float* x,
      int64_t x_stride, const float* bias, float* out, int64_t out_stride);
  void (*conv_forward)(const Conv&, const Batch&, const float* in, const float* weight, const float* bias, float* packed, float* out);
  void (*conv_by_weight)(const Conv&, const Batch&, const float* in, const float* by_out, float* sums, float* by_weight);
  void (*conv_by_input)(const Conv&, const Batch&, const float* by_out, const float* weight, float* packed, float* by_in);
  // mean and sum of squared deviations of one channel over the real images
  void (*moments)(const float* x, int64_t pixels, const Batch&, double* mean, double* spread);
  double (*sum)(const float* x, int64_t pixels, const Batch&);
  // `raw`, where given, keeps the input that won its pool
  void (*stage_forward)(const Stage&, const Batch&, const float* x, const NormState&, float* raw, float* out);
  // `by_x` may be `x` itself; frozen: the norm's statistics are constants
  void (*stage_backward)(const Stage&, const Batch&, const float* x, const float* raw, const float* out, const float* by_out,
      const NormState&, bool frozen, float* by_x);
  // one SGD step in the order of roundings of pfedsim.client.train; velocity is null without momentum
  void (*update)(float* theta, const float* gradient, float* velocity, int64_t count, float lr, float momentum,
      float decay);
  // out[m] = sum_r weights[m][r] * rows[r] / totals[m] in float64, term by term, fused multiply-adds: the bits of torch's add_(alpha);
  // what weighs nothing is left out
  void (*mix)(const float* const* rows, const double* weights, const double* totals, int64_t count, int64_t means, int64_t size,
      float* const* out);
};

// "auto" (the widest that this CPU has), "portable", "avx2" or "avx512"; null where this CPU or build lacks it
const Kernels* kernels(const char* name);

}  // namespace pfedsim
