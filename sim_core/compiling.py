"""Whether machine code of a sweep is there, and the sources that it is made of.

Public, with what the modules below it have for others.
"""

from sim_core.compiled.jit import (
    COMPILE_AFTER_S as COMPILE_AFTER_S,
    in_plain_python as in_plain_python,
    use_kernels as use_kernels,
)
from sim_core.compiled.kept import (
    BOUNDS as BOUNDS,
    PLAIN_PYTHON as PLAIN_PYTHON,
    STEP as STEP,
    cache_dir as cache_dir,
    compiling_alone as compiling_alone,
    is_compiled as is_compiled,
    kept_hashes as kept_hashes,
)
from sim_core.compiled.sources import meaning as meaning, source_hash as source_hash, source_hashes as source_hashes
