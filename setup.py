"""Builds the C kernels with the package.  Without a C compiler the install succeeds and Sonde's torch forms serve.

Each level of CPU gets its own plain shared object, so a build is never illegal on another machine of the same kind:
`sonde/kernels/library.py` loads the best one the CPU can run.  Every source is compiled for float and for double, and one that
reads `stored` numbers also for bfloat16 in memory: once more for processors that multiply pairs of these, if the compiler can.
A library carries a mark of the sources it was made from, which the loader compares with those it finds.
"""

import hashlib
import os
import platform
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import CCompilerError, ExecError, PlatformError

LEVELS = {"base": []}
if platform.machine().lower() in ("x86_64", "amd64"):
    LEVELS["avx2"] = ["-mavx2", "-mfma"]
    LEVELS["avx512"] = [*LEVELS["avx2"], "-mavx512f", "-mavx512vl", "-mavx512bw", "-mavx512dq", "-mprefer-vector-width=512"]
# Apple's compiler has no OpenMP: there the kernels run on one thread.
OPENMP = [] if sys.platform == "darwin" else ["-fopenmp"]
# No -ffast-math: infinite gates must stay exact, and not-a-numbers visible.
FLAGS = ["-std=gnu11", "-O3", "-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math", "-fvisibility=hidden", "-Wall"]
# Name, bits of a number, bits of one in the caller's memory where these are fewer, and flags that only the highest level has.
PASSES = [("32", "32", "", []), ("64", "64", "", []), ("16", "32", "16", []), ("pairs", "32", "16", ["-mavx512bf16"])]
NOTICE = (
    "notice: the C kernels were not built ({why}).  Sonde works without them and gives the same values, slower; "
    "for the fast ones install a C compiler with OpenMP (gcc, or clang with libomp) and install Sonde again.\n"
)


KERNELS = Path("sonde/kernels")
SOURCES, HEADERS = (sorted(map(str, KERNELS.glob(ending))) for ending in ("*.c", "*.h"))
# As `_library.py` computes it.
MARK = hashlib.sha256(b"".join(path.read_bytes() for path in sorted(KERNELS.glob("*.[ch]")))).hexdigest()


class BuildKernels(build_ext):
    """Compiles plain shared objects (no Python inside), and never fails the install.

    A library is put in place by a rename: a process that has the old one open keeps it whole.
    """

    def get_ext_filename(self, fullname):
        return str(Path(*fullname.split("."))) + ".so"

    def build_extensions(self):
        for ext in self.extensions:
            try:
                self.build_extension(ext)
            except (CCompilerError, ExecError, PlatformError) as error:
                # A compiler too old for a higher level serves the lower ones; one that fails at the lowest serves none.
                if ext is self.extensions[0]:
                    sys.stderr.write(NOTICE.format(why=str(error).rpartition("' ")[2] or type(error).__name__))
                return

    def build_extension(self, ext):
        flags = [*FLAGS, *OPENMP, *ext.extra_compile_args]
        objects = []
        for name, bits, stored, more in PASSES:
            if more and ext.name != "sonde.kernels._kernels_avx512":
                continue
            sources = [path for path in ext.sources if not stored or "stored *" in Path(path).read_text(encoding="utf-8")]
            macros = [("MARK", f'"{MARK}"'), ("REAL_BITS", bits), *([("STORED_BITS", stored)] if stored else [])]
            place = str(Path(self.build_temp, ext.name, name))
            try:
                objects += self.compiler.compile(sources, output_dir=place, macros=macros, extra_postargs=[*flags, *more])
            except CCompilerError:
                if not more:
                    raise
        output = self.get_ext_fullpath(ext.name)
        Path(output).parent.mkdir(parents=True, exist_ok=True)
        self.compiler.link_shared_object(objects, f"{output}.new", libraries=["m"], extra_postargs=OPENMP)
        os.replace(f"{output}.new", output)

    def copy_file(self, infile, outfile, *how, **named):
        """How setuptools puts a library into the source folder of an editable install."""
        super().copy_file(infile, f"{outfile}.new", *how, **named)
        os.replace(f"{outfile}.new", outfile)
        return outfile, 1


setup(
    ext_modules=[
        Extension(f"sonde.kernels._kernels_{level}", SOURCES, depends=HEADERS, extra_compile_args=flags, optional=True)
        for level, flags in LEVELS.items()
    ],
    cmdclass={"build_ext": BuildKernels},
)
