"""How numba compiles a kernel that only kernels call: its code is optimised and turned to machine code in its callers alone.

numba would do both for every kernel by itself, and again for each caller that it is linked into: half of the compilation.
"""

from typing import Any

import llvmlite.binding as llvm
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler


class LeanLibrary(JITCodeLibrary):
    """The code of a kernel that does not allocate: it needs no pass that brings counts of references together."""

    def _optimize_final_module(self) -> None:
        made = self._codegen._module_pass_manager()
        if isinstance(made, tuple):  # from numba 0.62 on
            manager, builder = made
            manager.run(self._final_module, builder)
        else:
            made.run(self._final_module)


class InnerLibrary(LeanLibrary):
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


class LeanCompiler(Compiler):
    """numba's compiler, with another library for a kernel that must not allocate."""

    def define_pipelines(self) -> Any:
        """As the documentation of numba says: called once for each function, before its first pass."""
        managers = super().define_pipelines()  # type: ignore[no-untyped-call]
        if not self.state.flags.nrt:
            self._use(LeanLibrary)
        return managers

    def _use(self, library: type[LeanLibrary]) -> None:
        if self.state.library is None:  # a kernel called by its address has one already
            self.state.library = library(self.state.targetctx.codegen(), self.state.func_id.func_qualname)
            self.state.library.enable_object_caching()


class InnerCompiler(LeanCompiler):
    """The same with code that callers link."""

    def define_pipelines(self) -> Any:
        """Likewise."""
        self._use(InnerLibrary)
        return super().define_pipelines()
