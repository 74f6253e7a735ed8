#!/bin/sh
# The native tests under the address and undefined-behaviour sanitizers: sh asan.sh [pytest arguments], from anywhere.
# Runs on a copy, so that no sanitized library is ever left where pfedsim would load it.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../../../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp -r "$root/src" "$root/tests" "$work"
rm -f "$work"/src/pfedsim/backends/_native*.so
g++ -O1 -g1 -std=c++17 -fPIC -shared -fvisibility=hidden -ffp-contract=off -Wno-psabi -pthread -fno-omit-frame-pointer \
  -fsanitize=address,undefined -fno-sanitize-recover=undefined "$here"/*.cpp -o "$work/src/pfedsim/backends/_native.so"
cd "$work"
# Leaks are Python's and torch's own; the preload lets the library's allocations be watched inside an uninstrumented python.
LD_PRELOAD="$(g++ -print-file-name=libasan.so) $(g++ -print-file-name=libubsan.so)" \
  ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 PYTHONPATH="$work/src" OMP_NUM_THREADS=1 "${PYTHON:-python}" -m pytest -q -s -p no:cacheprovider tests/backends/test_native.py tests/backends/test_graphs.py "$@"
