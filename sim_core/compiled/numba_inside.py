"""What this room relies on inside numba and numba does not promise: each place, and how it is called.

RANGE is what pyproject.toml allows, tested at both ends. A new numba that changes a place fails the test of that name
(tests/sim_core/test_numba_inside.py); a process refuses a numba that nobody tested.
"""

from typing import Final, NamedTuple

from sim_core.errors import SpecError

RANGE: Final = ((0, 61), (0, 69))
"""The first version, and the first that is not tested."""


def check_version(version: str) -> None:
    """Raise SpecError for a numba that is not in RANGE."""
    least, most = (".".join(map(str, end)) for end in RANGE)
    if not RANGE[0] <= tuple(map(int, version.split(".")[:2])) < RANGE[1]:
        raise SpecError(
            f"numba: found {version}, expected {least} or newer, below {most}; pip install 'numba>={least},<{most}'"
        )


class Place(NamedTuple):
    """A function, method or attribute, and the file of this room that uses it."""

    name: str
    used: str
    takes: str | None = None  # the first parameters, without `self`; the others have defaults. None: no function


PLACES: Final = (
    # sealed_code.py: files of our own in place of numba's
    Place("numba.core.caching.Cache.__init__", "sealed_code", "py_func"),
    Place("numba.core.caching.FunctionCache._impl_class", "sealed_code"),
    Place("numba.core.caching.CompileResultCacheImpl.__init__", "sealed_code", "py_func"),
    Place("numba.core.caching.CompileResultCacheImpl.get_filename_base", "sealed_code", "fullname abiflags"),
    Place("numba.core.caching.CompileResultCacheImpl.locator", "sealed_code"),
    Place("numba.core.caching.CompileResultCacheImpl.filename_base", "sealed_code"),
    Place("numba.core.caching.IndexDataCacheFile.__init__", "sealed_code", "cache_path filename_base source_stamp"),
    Place("numba.core.caching.IndexDataCacheFile.save", "sealed_code", "key data"),
    Place("numba.core.caching.IndexDataCacheFile.load", "sealed_code", "key"),
    Place("numba.core.caching.IndexDataCacheFile._load_index", "sealed_code", ""),
    Place("numba.core.caching.IndexDataCacheFile._load_data", "sealed_code", "name"),
    Place("numba.core.caching.IndexDataCacheFile._data_path", "sealed_code", "name"),
    Place("numba.core.caching.IndexDataCacheFile._open_for_write", "sealed_code", "filepath"),
    # kept.py: what a cache asks of the folder of a function
    Place("numba.core.caching._CacheLocator.ensure_cache_path", "kept", ""),
    Place("numba.core.caching._CacheLocator.get_cache_path", "kept", ""),
    Place("numba.core.caching._CacheLocator.get_source_stamp", "kept", ""),
    Place("numba.core.caching._CacheLocator.get_disambiguator", "kept", ""),
    # jit.py: a function in numba, for Python, for kernels, by its address
    Place("numba.core.dispatcher.Dispatcher._numba_type_", "jit"),
    Place("numba.core.dispatcher.Dispatcher.get_call_template", "jit", "args kws"),
    Place("numba.core.ccallback.CFunc.__init__", "jit", "pyfunc sig locals options"),
    Place("numba.core.ccallback.CFunc.compile", "jit", ""),
    Place("numba.core.ccallback.CFunc.address", "jit"),
    # inner_code.py: less work for each kernel
    Place("numba.core.codegen.JITCodeLibrary._optimize_final_module", "inner_code", ""),
    Place("numba.core.codegen.JITCodeLibrary._finalize_final_module", "inner_code", ""),
    Place("numba.core.codegen.JITCodeLibrary._get_module_for_linking", "inner_code", ""),
    Place("numba.core.codegen.JITCodeLibrary.enable_object_caching", "inner_code", ""),
    Place("numba.core.codegen.JITCPUCodegen._module_pass_manager", "inner_code", ""),
    Place("numba.core.compiler.Compiler.define_pipelines", "inner_code", ""),
    Place("numba.core.compiler_machinery.PassManager.finalize", "inner_code", ""),
    *(
        Place(f"numba.core.untyped_passes.{name}", "inner_code")
        for name in (
            *("DeadBranchPrune", "FindLiterallyCalls", "InlineClosureLikes", "InlineInlinables", "LiteralUnroll"),
            *("LiteralPropagationSubPipelinePass", "MakeFunctionToJitFunction", "RewriteSemanticConstants", "WithLifting"),
        )
    ),
    *(
        Place(f"numba.core.typed_passes.{name}", "inner_code")
        for name in ("DumpParforDiagnostics", "InlineOverloads", "NopythonRewrites")
    ),
    Place("numba.core.types.functions.BaseFunction.get_call_type", "inner_code", "context args kws"),
    # reference_code.py, vector_code.py: types of our own
    Place("numba.core.imputils.lower_builtin", "reference_code", "func"),
    Place("numba.core.imputils.lower_getattr_generic", "reference_code", "ty"),
    Place("numba.core.imputils.impl_ret_borrowed", "reference_code", "ctx builder retty ret"),
    Place("numba.core.cgutils.alloca_once_value", "reference_code", "builder value"),
    Place("numba.core.cgutils.gep_inbounds", "reference_code", "builder ptr"),
    Place("numba.core.typing.templates.AbstractTemplate", "reference_code"),
    Place("numba.core.typing.templates.AttributeTemplate.resolve", "reference_code", "value attr"),
    Place("numba.core.typing.templates.ConcreteTemplate", "vector_code"),
    Place("numba.core.typing.templates.infer_getattr", "reference_code", "item"),
    Place("numba.core.typing.templates.infer_global", "vector_code", "val"),
)
