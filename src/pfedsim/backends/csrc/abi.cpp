// The plain C interface. Every function that can fail returns 0, or -1 when memory ran out.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <exception>
#include <functional>
#include <thread>
#include <vector>

#include "net.h"

using pfedsim::Net;

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {
template <class Work>
int guarded(const Work& work) {
  try {
    work();
    return 0;
  } catch (const std::exception&) {
    return -1;
  }
}

std::vector<pfedsim::Takers> takers_of(const double* weights, int64_t count, int64_t means) {
  std::vector<pfedsim::Takers> found;
  for (int64_t first = 0; first + pfedsim::TOGETHER <= means; first += pfedsim::TOGETHER) {
    found.push_back({first, true, {}});
    for (int64_t r = 0; r < count; r++) {
      int64_t here = 0;
      for (int64_t j = 0; j < pfedsim::TOGETHER; j++) here += weights[(first + j) * count + r] != 0;
      if (here) found.back().rows.push_back((int32_t)r);
      found.back().all &= here == 0 || here == pfedsim::TOGETHER;
    }
  }
  return found;
}

// How many entries of all rows stay in half a second cache; vectors want at least 64.
int64_t stretch_of(int64_t count) {
  return std::clamp<int64_t>((512 << 10) / 4 / std::max<int64_t>(1, count) / 16 * 16, 64, pfedsim::STRETCH);
}
}  // namespace

EXPORT const char* pfedsim_kernel_set(const char* name) {
  const pfedsim::Kernels* k = pfedsim::kernels(name);
  return k ? k->name : nullptr;
}

EXPORT int64_t pfedsim_op_size() { return sizeof(pfedsim::Op); }

EXPORT Net* pfedsim_create(const pfedsim::Op* ops, int64_t count, int64_t head, int64_t cut, int64_t size, const char* name) {
  const pfedsim::Kernels* k = pfedsim::kernels(name);
  Net* net = nullptr;
  if (k) guarded([&] { net = new Net(*k, ops, count, head, cut, size); });
  return net;
}

EXPORT void pfedsim_destroy(Net* net) { delete net; }

EXPORT int pfedsim_forward(Net* net, float* theta, const float* x, const float* kept, int64_t count, float* features) {
  return guarded([&] {
    net->forward(theta, x, nullptr, kept, count);
    if (features) net->features(features);
  });
}

EXPORT int pfedsim_backward(Net* net, const float* theta, const int64_t* hard, const float* soft, const float* extra, float* gradient,
    double* loss) {
  return guarded([&] { *loss = net->backward(theta, {hard, soft}, nullptr, extra, gradient); });
}

EXPORT int pfedsim_evaluate(Net* net, const float* theta, const float* x, int64_t count, int64_t body, int64_t tail, float* out) {
  return guarded([&] { net->evaluate(theta, x, count, body != 0, tail != 0, out); });
}

EXPORT int pfedsim_head_gradient(Net* net, const float* theta, const float* z, int64_t count, const int64_t* hard, const float* soft,
    float* gradient, float* by_z, double* loss) {
  return guarded([&] { *loss = net->head_gradient(theta, z, count, {hard, soft}, gradient, by_z); });
}

EXPORT int pfedsim_moments(Net* net, const float* theta, const float* x, int64_t count, double* means, double* variances) {
  return guarded([&] { net->moments(theta, x, count, means, variances); });
}

EXPORT int pfedsim_descend(Net* net, float* theta, const float* x, const int64_t* hard, const float* soft, const int64_t* order,
    const float* kept, const int64_t* ends, int64_t steps, const uint8_t* moves, int64_t fresh, double lr, double momentum, double decay, double* losses) {
  return guarded([&] { net->descend(theta, x, {hard, soft}, order, kept, ends, steps, moves, fresh != 0, (float)lr, (float)momentum, (float)decay,
      losses); });
}

// bytes of work space for batches of this size; -1 when memory ran out
EXPORT int64_t pfedsim_space(Net* net, int64_t count, int64_t training) {
  int64_t bytes = -1;
  guarded([&] { bytes = net->space(count, training != 0); });
  return bytes;
}

// What tensor.bernoulli_(keep) fills in, `state` being torch's generator (torch.get_rng_state), which moves on.
EXPORT void pfedsim_draw(uint8_t* state, double keep, int64_t count, float* out) {
  struct {  // as torch keeps it
    uint64_t seed;
    int32_t left, seeded;
    uint64_t next, words[624];
  } kept;
  pfedsim::Twister twister;
  std::memcpy(&kept, state, sizeof kept);
  for (int k = 0; k < 624; k++) twister.words[k] = (uint32_t)kept.words[k];
  twister.next = kept.left == 1 ? 624 : (int64_t)kept.next;
  pfedsim::kernels("auto")->draw(twister, (int64_t)std::ceil(keep * 0x1p53), count, out);
  for (int k = 0; k < 624; k++) kept.words[k] = twister.words[k];
  kept.left = (int32_t)(625 - twister.next), kept.next = (uint64_t)twister.next;
  std::memcpy(state, &kept, sizeof kept);
}

// floating-point operations done in registers alone: the yardstick of `pfedsim bench`
EXPORT int64_t pfedsim_peak(const char* name, int64_t turns) {
  float sink;
  return pfedsim::kernels(name)->peak(turns, &sink);
}

// Each thread takes some of the entries, so that their number changes no bit. Not 0: there is no memory for it.
EXPORT int pfedsim_mix(const float* const* rows, const double* weights, const double* totals, int64_t count, int64_t means, int64_t size,
    int64_t threads, float* const* out) {
  return guarded([&] {
    const auto mix = pfedsim::kernels("auto")->mix;
    const pfedsim::Mix what{rows, weights, totals, count, means, stretch_of(count), out, takers_of(weights, count, means)};
    const int64_t room = what.takers.empty() ? 0 : count * what.stretch;
    const int64_t share = ((size + threads - 1) / threads + 1023) / 1024 * 1024;
    std::vector<float> rooms(threads * room);
    std::vector<std::thread> others;
    int64_t at = 0;
    guarded([&] {
      for (float* own = rooms.data() + room; at + share < size; at += share, own += room)
        others.emplace_back(mix, std::cref(what), at, at + share, own);
    });
    mix(what, at, size, rooms.data());  // what is left, or could not have a thread
    for (std::thread& other : others) other.join();
  });
}

EXPORT double pfedsim_squares(const float* row, const float* start, const int64_t* spans, int64_t count) {
  return pfedsim::kernels("auto")->squares(row, start, spans, count);
}

// values -= lr * step in two roundings, in one pass over the memory
EXPORT void pfedsim_move(float* __restrict values, const float* __restrict step, double lr, int64_t n) {
  const float rate = static_cast<float>(lr);
  for (int64_t k = 0; k < n; ++k) {
    const float moved = rate * step[k];
    values[k] -= moved;
  }
}
