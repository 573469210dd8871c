"""Conan 2 package of the library, from this checkout:

    LIBTORCH_DIR=/path/to/libtorch conan create packaging/conan

LibTorch, nlohmann_json and nettle are those of the machine (scripts/setup.sh installs them); a consumer finds the
library with find_package(fsdp) and links fsdp::fsdp, or fsdp::fsdp_c from C.
"""

import os
import pathlib
import re

from conan import ConanFile
from conan.errors import ConanInvalidConfiguration
from conan.tools.cmake import CMake, CMakeToolchain, cmake_layout
from conan.tools.files import copy

PARTS = ("cmake", "fsdp", "io", "kernels", "models", "plan", "text", "CMakeLists.txt")


class FsdpConan(ConanFile):
    name = "libfsdp"
    description = "Fully Sharded Data Parallel for LibTorch"
    topics = ("fsdp", "libtorch", "distributed-training")
    package_type = "shared-library"
    settings = "os", "arch", "compiler", "build_type"

    @property
    def _checkout(self):
        return pathlib.Path(self.recipe_folder).parents[1]

    def set_version(self):
        text = (self._checkout / "CMakeLists.txt").read_text(encoding="utf-8")
        self.version = re.search(r"project\(fsdp VERSION ([0-9.]+)", text).group(1)

    def export_sources(self):
        for part in PARTS:
            pattern = part if "." in part else f"{part}/*"
            copy(self, pattern, self._checkout, self.export_sources_folder)

    def layout(self):
        cmake_layout(self)

    def validate(self):
        if self.settings.os != "Linux":
            raise ConanInvalidConfiguration(f"libfsdp: got {self.settings.os}, expected Linux.")

    def generate(self):
        toolchain = CMakeToolchain(self)
        toolchain.user_presets_path = False
        libtorch = os.environ.get("LIBTORCH_DIR")
        if libtorch:
            toolchain.cache_variables["LIBTORCH_DIR"] = libtorch
        for what in ("APP", "TESTS", "BENCHMARKS"):
            toolchain.cache_variables[f"FSDP_BUILD_{what}"] = False
        toolchain.cache_variables["CMAKE_INSTALL_LIBDIR"] = "lib"
        toolchain.generate()

    def build(self):
        cmake = CMake(self)
        cmake.configure()
        cmake.build()

    def package(self):
        CMake(self).install()

    def package_info(self):
        self.cpp_info.set_property("cmake_find_mode", "none")  # the package has a fsdpConfig.cmake of its own
        self.cpp_info.builddirs = ["lib/cmake/fsdp"]
        self.cpp_info.libs = ["fsdp_c", "fsdp", "fsdp_kernels"]
