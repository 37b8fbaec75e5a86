"""What sim_core/compiled relies on inside numba and numba does not promise: each place, and how it is called."""

from __future__ import annotations

from typing import Final, NamedTuple


class Place(NamedTuple):
    """A function, method or attribute, and the file of sim_core/compiled that uses it."""

    name: str
    used: str
    takes: str | None = None  # the first parameters, without `self`; the others have defaults. None: no function


_USED: Final[dict[str, dict[str, dict[str, str | None]]]] = {
    "sealed_code": {  # files of our own in place of numba's
        "caching": {"Cache.__init__": "py_func", "FunctionCache._impl_class": None,
            "CompileResultCacheImpl.__init__": "py_func",
            "CompileResultCacheImpl.get_filename_base": "fullname abiflags", "CompileResultCacheImpl.locator": None,
            "CompileResultCacheImpl.filename_base": None,
            "IndexDataCacheFile.__init__": "cache_path filename_base source_stamp",
            "IndexDataCacheFile.save": "key data", "IndexDataCacheFile.load": "key",
            "IndexDataCacheFile._load_index": "", "IndexDataCacheFile._load_data": "name",
            "IndexDataCacheFile._data_path": "name", "IndexDataCacheFile._open_for_write": "filepath"},
    },
    "kept": {  # what a cache asks of the folder of a function
        "caching": {"_CacheLocator.ensure_cache_path": "", "_CacheLocator.get_cache_path": "",
            "_CacheLocator.get_source_stamp": "", "_CacheLocator.get_disambiguator": ""},
    },
    "jit": {  # a function in numba, for Python, for kernels, by its address
        "dispatcher": {"Dispatcher._numba_type_": None, "Dispatcher.get_call_template": "args kws"},
        "ccallback": {"CFunc.__init__": "pyfunc sig locals options", "CFunc.compile": "", "CFunc.address": None},
    },
    "inner_code": {  # less work for each kernel
        "codegen": {"JITCodeLibrary._optimize_final_module": "", "JITCodeLibrary._finalize_final_module": "",
            "JITCodeLibrary._get_module_for_linking": "", "JITCodeLibrary.enable_object_caching": "",
            "JITCPUCodegen._module_pass_manager": ""},
        "compiler": {"Compiler.define_pipelines": ""},
    },
    "reference_code": {  # types of our own
        "imputils": {"lower_builtin": "func", "lower_getattr_generic": "ty",
            "impl_ret_borrowed": "ctx builder retty ret"},
        "cgutils": {"alloca_once": "builder ty size", "alloca_once_value": "builder value", "gep_inbounds": "builder ptr"},
        "typing.templates": {"AbstractTemplate": None, "AttributeTemplate.resolve": "value attr",
            "infer_getattr": "item"},
    },
    "vector_code": {  # likewise
        "typing.templates": {"ConcreteTemplate": None, "infer_global": "val"},
    },
}  # fmt: skip
"""By the file of sim_core/compiled, then the module below numba.core: the first parameters of each name, without `self`.

The others have defaults. None: no function.
"""

PLACES: Final = tuple(
    Place(f"numba.core.{module}.{name}", used, takes)
    for used, modules in _USED.items()
    for module, names in modules.items()
    for name, takes in names.items()
)
