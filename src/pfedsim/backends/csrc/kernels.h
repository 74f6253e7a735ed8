// What every instruction set offers. Activations lie as (channel, row, column, image): the images of one pixel, then those of the next
// column, with no gap, so that vectors run across columns and no batch size wastes a lane. `lanes` is the number of images. A channel
// starts `plane` floats after the one before, its rows have no gap. Every buffer can be read one vector beyond its end.
#pragma once
#include <cstdint>
#include <vector>

namespace pfedsim {

// A convolution. Its input is prepared: with its zero border, and with the columns of a stride apart (columns 0, s, 2s..., then 1, s + 1...),
// so that one tap reads a stretch of floats for a stretch of output columns.
struct Conv {
  int64_t in, out, groups, height, width, rows, columns;  // channels and sides before and after
  int64_t kernel_h, kernel_w, stride_h, stride_w, pad_h, pad_w;
  int64_t x_plane, x_row, phase;      // prepared input: floats to the next channel and row, columns of one phase
  int64_t y_plane;                    // floats to the next channel of the output and of its gradient
  int64_t by_plane, by_row, margin;   // gradient by output as conv_by_input reads it: zero columns on both sides of a row
  int64_t in_plane;                   // floats to the next channel of the gradient by the input
};

enum { TOGETHER = 8, STRETCH = 256 };  // means side by side; entries of a row, at most

// Which rows have a weight in any of these TOGETHER means; `all`: in each of them.
struct Takers {
  int64_t first;
  bool all;
  std::vector<int32_t> rows;
};

// out[m] = sum_r weights[m][r] * rows[r] / totals[m] in float64, term by term, fused multiply-adds: the bits of torch's add_(alpha); what
// weighs nothing is left out.
struct Mix {
  const float* const* rows;
  const double *weights, *totals;
  int64_t count, means, stretch;  // rows, means, and entries of a row that are looked at together
  float* const* out;
  std::vector<Takers> takers;
};

struct Work {  // room for one call
  float *packed, *sums, *temp;
  int64_t* offsets;
  const float** rows;
};

enum : int64_t { SUMS = 1 << 17, TURNED = 2048, MOST_KERNEL = 11, NEAR = 1 << 16 };  // floats of work.sums, positions that are turned, a filter's side, floats near in the second cache

enum Act : int64_t { NONE, RELU, RELU6, HARDSWISH, SILU, GELU };

struct Stage {  // norm, activation, max pool in this order, each optional (pool 1 x 1: none)
  int64_t channels, height, width, out_height, out_width, pool_h, pool_w, lanes, x_plane, y_plane;
  bool norm;
  int64_t act;
};

struct Window {  // a pool, or a mean
  int64_t channels, height, width, rows, columns, kernel_h, kernel_w, stride_h, stride_w, pad_h, pad_w, lanes, x_plane, y_plane;
  bool count_pad;
};

struct Group {  // group norm, or layer norm (one group, weights for every element)
  int64_t channels, groups, pixels, lanes, x_plane, y_plane;
  bool by_element;
  float epsilon;
};

struct NormState {  // of one channel each: what forward used and backward found
  const float *mean, *deviation_inverse, *gamma, *beta;
  float *by_gamma, *by_beta;
};

struct Twister {  // the state of mt19937; next: the word that comes next, 624 where all are used
  uint32_t words[624];
  int64_t next;
};

struct Kernels {
  const char* name;
  int64_t width;  // floats in a vector
  // out[c * stride + r] = rows[r][c]
  void (*transpose)(const float* const* rows, int64_t count, int64_t columns, float* out, int64_t stride);
  // out[r, l] (+)= bias[r] + sum_k w[r * by_row + k * by_term] * x[k * x_stride + l]
  void (*product)(int64_t rows, int64_t columns, int64_t terms, const float* w, int64_t by_row, int64_t by_term, const float* x,
      int64_t x_stride, const float* bias, float* out, int64_t out_stride, bool add);
  // a prepared input from channels first..last (exclusive) of x
  void (*prepare)(const Conv&, int64_t lanes, const float* x, int64_t plane, int64_t first, int64_t last, float* out);
  // rows with `margin` zero columns on both sides
  void (*widen)(const Conv&, int64_t lanes, const float* by_out, int64_t first, int64_t last, float* out);
  void (*conv_forward)(const Conv&, int64_t lanes, const float* x, const float* weight, const float* bias, const Work&, const Stage* after,
      const NormState& norm, float* out);
  void (*conv_by_weight)(const Conv&, int64_t lanes, const float* x, const float* by_out, const Work&, float* by_weight);
  void (*conv_by_input)(const Conv&, int64_t lanes, const float* by_out, const float* weight, const Work&, bool add, float* by_in);
  // one filter a channel, channels first..last; by_input reads by_out prepared (stride 1) or with margins
  void (*depth_forward)(const Conv&, int64_t lanes, const float* x, const float* weight, const float* bias, int64_t first, int64_t last,
      bool flipped, bool add, float* out);
  void (*depth_by_weight)(const Conv&, int64_t lanes, const float* x, const float* by_out, int64_t first, int64_t last, float* by_weight);
  void (*depth_by_input)(const Conv&, int64_t lanes, const float* by_out, const float* weight, const Work&, int64_t first, int64_t last,
      bool add, float* by_in);
  // mean and sum of squared deviations of one channel
  void (*moments)(const float* x, int64_t pixels, int64_t lanes, double* mean, double* spread);
  double (*sum)(const float* x, int64_t pixels, int64_t lanes);
  // channels first..last; `raw`, where given, keeps the input that won its pool
  void (*stage_forward)(const Stage&, const float* x, const NormState&, int64_t first, int64_t last, float* raw, float* out);
  // `by_x` may be `x` itself; frozen: the norm's statistics are constants; `rows`: room for the rows of a pool's window
  void (*stage_backward)(const Stage&, const float* x, const float* raw, const float* by_out, const NormState&,
      bool frozen, int64_t first, int64_t last, bool add, float* rows, float* by_x);
  void (*add)(const float* a, const float* b, int64_t count, float* out);
  void (*max_forward)(const Window&, const float* x, int32_t* winner, float* out);
  void (*max_backward)(const Window&, const int32_t* winner, const float* by_out, float* by_x);  // adds
  void (*mean_forward)(const Window&, const float* x, float* out);
  void (*mean_backward)(const Window&, const float* by_out, float* by_x);  // adds
  // `state` keeps mean and inverse deviation of each group and image
  void (*group_forward)(const Group&, const float* x, const float* gamma, const float* beta, float* state, float* out);
  void (*group_backward)(const Group&, const float* x, const float* gamma, const float* state, const float* by_out, float* by_gamma,
      float* by_beta, bool add, float* by_x);
  // entries that are 1 where torch's generator in this state would draw below `below` / 2^53, else 0
  void (*draw)(Twister&, int64_t below, int64_t count, float* out);
  // one SGD step in the order of roundings of pfedsim.client.train; velocity is null without momentum
  void (*update)(float* theta, const float* gradient, float* velocity, int64_t count, float lr, float momentum,
      float decay);
  // entries `from` to `to` of the means; `room`: for a stretch of every row, if there are eight means
  void (*mix)(const Mix&, int64_t from, int64_t to, float* room);
  // the sum of squares of row - start, or of row where start is null, over spans of entries (first, last) in float64; every set of
  // kernels has the same bits. No sum of squares of floats overflows, so it is finite exactly if all of these differences are
  double (*squares)(const float* row, const float* start, const int64_t* spans, int64_t count);
  // `turns` rounds of independent multiply-adds in registers: the floating-point operations done, the most that a core can do
  int64_t (*peak)(int64_t turns, float* out);
};

// "auto" (the widest that this CPU has), "portable", "avx2" or "avx512"; null where this CPU or build lacks it
const Kernels* kernels(const char* name);

}  // namespace pfedsim
