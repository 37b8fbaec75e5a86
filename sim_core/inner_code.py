"""How numba compiles a kernel that only kernels call: its code is optimised and turned to machine code in its callers alone.

numba would do both for every kernel by itself, and again for each caller that it is linked into: half of the compilation.
"""

from typing import Any

import llvmlite.binding as llvm
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler


class InnerLibrary(JITCodeLibrary):
    """The code of an inner kernel, which callers link. The process itself loads the kernel's environment and no more."""

    def _optimize_final_module(self) -> None:
        pass

    def _finalize_final_module(self) -> None:
        self._finalized = True
        self._get_module_for_linking()  # type: ignore[no-untyped-call]
        whole = self._final_module
        environments = [str(one) for one in whole.global_variables if one.name.startswith("_ZN08NumbaEnv")]
        self._final_module = llvm.parse_assembly(f'target triple = "{whole.triple}"\n' + "\n".join(environments))
        self._final_module.name = whole.name
        self._final_module.data_layout = whole.data_layout
        super()._finalize_final_module()  # type: ignore[no-untyped-call]


class InnerCompiler(Compiler):
    """numba's compiler with that library."""

    def define_pipelines(self) -> Any:
        """As the documentation of numba says: called once for each function, before its first pass."""
        if self.state.library is None:
            self.state.library = InnerLibrary(self.state.targetctx.codegen(), self.state.func_id.func_qualname)  # type: ignore[no-untyped-call]
            self.state.library.enable_object_caching()
        return super().define_pipelines()  # type: ignore[no-untyped-call]
