// One kernel source, compiled for several instruction sets by function attributes: the whole library has one command line.
#include "kernels.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#if defined(__x86_64__) && defined(__GNUC__)
#define PFEDSIM_X86 1
#include <immintrin.h>
#endif

namespace pfedsim {

namespace portable {
#define LANES 4
#define TARGET
#include "kernels.inc"
#undef LANES
#undef TARGET
}  // namespace portable

#ifdef PFEDSIM_X86
namespace avx2 {
#define LANES 8
#define TARGET __attribute__((target("avx2,fma")))
#include "kernels.inc"
#undef LANES
#undef TARGET
}  // namespace avx2

namespace avx512 {
#define LANES 16
#define TARGET __attribute__((target("avx512f,avx512dq,avx512bw,avx512vl,avx2,fma,prefer-vector-width=512")))
#include "kernels.inc"
#undef LANES
#undef TARGET
}  // namespace avx512
#endif

const Kernels* kernels(const char* name) {
  const bool any = !std::strcmp(name, "auto");
#ifdef PFEDSIM_X86
  const bool has512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw")
      && __builtin_cpu_supports("avx512vl");
  const bool has2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  if (has512 && (any || !std::strcmp(name, "avx512"))) return &avx512::table;
  if (has2 && (any || !std::strcmp(name, "avx2"))) return &avx2::table;
#endif
  return any || !std::strcmp(name, "portable") ? &portable::table : nullptr;
}

}  // namespace pfedsim
