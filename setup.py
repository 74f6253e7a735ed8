"""The native library: built where a C++17 compiler is at hand, left out where none is."""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "pfedsim.backends._native",  # a plain C ABI, loaded by ctypes
            sources=[
                f"src/pfedsim/backends/csrc/{name}.cpp"
                for name in ("abi", "kernels", "net", "plan", "forward", "backward")
            ],
            depends=[
                f"src/pfedsim/backends/csrc/{name}"
                for name in (
                    *("kernels.h", "net.h", "kernels.inc", "tiles.inc", "conv.inc"),
                    *("depthwise.inc", "stages.inc", "pools.inc", "draws.inc", "means.inc"),
                )
            ],
            # -ffp-contract=off: the same bits from every compiler's idea of what may be fused; never -ffast-math
            extra_compile_args=[
                "-O3",
                "-std=c++17",
                "-fvisibility=hidden",
                "-ffp-contract=off",
                "-Wno-psabi",
                "-pthread",
            ],
            extra_link_args=["-pthread"],
            language="c++",
            optional=True,
        )
    ]
)
