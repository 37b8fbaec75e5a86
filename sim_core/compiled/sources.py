"""The sources of sim_core and their hashes: the version of the model, and that of each kernel."""

import ast
import hashlib
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
WHOLE = "*"
"""All of a module, where code names the module itself."""


class Symbol(NamedTuple):
    """A name that the top level of a module defines."""

    module: str
    name: str


class Module(NamedTuple):
    """What the top level of a module defines."""

    texts: dict[str, str]  # by name
    uses: dict[str, set[str]]  # names that the text of a name has
    imports: dict[str, Symbol]  # by local name
    functions: list[str]


BY_USE = re.compile(r"(hardware/(presets|fabrics)|models/(presets|stacks))/|hardware/kernels/data/.*\.npz")
"""Files that count where they are used, by what is read of them: presets, pages, measured kernels of a device."""


_TRIPLE = r"""\"{3}(?:[^"\\]++|\\[\s\S]|"(?!""))*+\"{3}|'{3}(?:[^'\\]++|\\[\s\S]|'(?!''))*+'{3}"""
_WORD = re.compile(rf"""#.*|{_TRIPLE}|"(?:[^"\\]++|\\[\s\S])*+"|'(?:[^'\\]++|\\[\s\S])*+'""")
"""A comment or string of Python 3.11."""
_ALONE = re.compile(r'\s*(?:[rR]?"[0-9a-f]*")?\s*')


def meaning(text: str) -> str:
    """A source without what changes nothing that it does: comments, docstrings, empty lines. Only compared, never run.

    A string is a docstring where it is a statement: alone in its lines, in no brackets, after no line that goes on.
    """
    lines, depth = [""], 0
    for line in _WORD.sub(lambda found: "" if found[0][0] == "#" else f'"{found[0].encode().hex()}"', text).split("\n"):
        if line.strip() and (depth or lines[-1].endswith("\\") or not _ALONE.fullmatch(line)):
            lines.append(line.rstrip())
        depth += sum(map(line.count, "([{")) - sum(map(line.count, ")]}"))
    return "\n".join(lines)


@cache
def source_hash(root: Path = ROOT, *, computes: bool = False) -> str:
    """Hash (16 hex digits) of every source, preset and table of sim_core: the version of the model.

    `computes`: of what every sweep does, without presets, pages and tables, comments and docstrings.
    """
    digest = hashlib.sha256()
    for name, content in _sources(root):
        if not (computes and BY_USE.match(name)):
            digest.update(name.encode() + b"\0" + (_does(name, content) if computes else content) + b"\0")
    return digest.hexdigest()[:16]


def _does(name: str, content: bytes) -> bytes:
    """What counts of a source, a table or a YAML file."""
    if name.endswith(".py"):
        return meaning(content.decode()).encode()
    if name.endswith(".yaml"):
        import yaml  # late: `sweep --version` needs none

        return "".join(map(repr, yaml.parse(content, getattr(yaml, "CSafeLoader", yaml.SafeLoader)))).encode()
    return content


@cache
def source_hashes() -> dict[str, str]:
    """Hash (16 hex digits) of each source, preset and table of sim_core by its path: shows what a new version changed."""
    return {name: hashlib.sha256(content).hexdigest()[:16] for name, content in _sources(ROOT)}


def _sources(root: Path) -> Iterator[tuple[str, bytes]]:
    for path in files_in(root, ".py", ".yaml", ".npz"):
        yield path.relative_to(root).as_posix(), path.read_bytes()


def files_in(root: Path, *suffixes: str) -> list[Path]:
    """The files below `root` with these suffixes, sorted, without what editors put beside them (links such as `.#lanes.py`)."""
    return sorted(path for path in root.rglob("[!.]*") if path.suffix in suffixes)


def function_hashes(root: Path = ROOT) -> dict[str, str]:
    """Hash (16 hex digits) of what each function of the package in `root` is made of, by `module.function`.

    That is its own text and that of all it names, directly or not: functions, classes, constants. Presets and tables are no
    part of it: compiled code takes them as arguments.
    """
    modules = read_modules(root)
    texts = {Symbol(module, name): text for module, each in modules.items() for name, text in each.texts.items()}
    digests = {one: hashlib.sha256(f"{one.module}\0{one.name}\0{text}".encode()).digest() for one, text in texts.items()}
    named, hashes = names_in(modules), {}
    for module, each in modules.items():
        for name in each.functions:
            of = b"".join(digests[one] for one in sorted(made_of(Symbol(module, name), named)))
            hashes[f"{module}.{name}"] = hashlib.sha256(of).hexdigest()[:16]
    return hashes


def names_in(modules: Mapping[str, Module]) -> dict[Symbol, set[Symbol]]:
    """Of each symbol of the package those that it names."""
    return {
        Symbol(module, name): {one for word in used if (one := _definition(modules, Symbol(module, word)))}
        for module, each in modules.items()
        for name, used in each.uses.items()
    }


def made_of(symbol: Symbol, named: Mapping[Symbol, set[Symbol]]) -> set[Symbol]:
    """A symbol and all that it names, directly or not."""
    found, left = {symbol}, [symbol]
    while left:
        new = named[left.pop()] - found
        found |= new
        left += new
    return found


def read_modules(root: Path = ROOT) -> dict[str, Module]:
    """All modules of the package in `root` by their full names."""
    modules = {}
    for path in files_in(root, ".py"):
        parts = path.relative_to(root.parent).with_suffix("").parts
        modules[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = _module(path.read_text(encoding="utf-8"))
    return modules


def _definition(modules: Mapping[str, Module], symbol: Symbol) -> Symbol | None:
    """Where the package defines a name that a module uses, None if Python or another package does."""
    module = symbol.module
    while module in modules and symbol.name not in modules[module].texts:
        if symbol.name not in modules[module].imports:
            return None
        symbol = modules[module].imports[symbol.name]
        if f"{symbol.module}.{symbol.name}" in modules:
            symbol = Symbol(f"{symbol.module}.{symbol.name}", WHOLE)
        module = symbol.module
    return symbol if module in modules else None


def _module(text: str) -> Module:
    """Statements that define nothing are part of every name of the module: they may change what it is."""
    lines, tree = text.splitlines(), ast.parse(text)
    module = Module(texts={WHOLE: text}, uses={}, imports={}, functions=[])
    others, of_all = [], set[str]()
    for code in tree.body:
        if isinstance(code, ast.Import | ast.ImportFrom):
            module.imports.update(_imported(code))
            continue
        begin = min([code.lineno, *(one.lineno for one in getattr(code, "decorator_list", ()))])
        own = "\n".join(lines[begin - 1 : code.end_lineno])
        names, used = _defined(code), {name.id for name in ast.walk(code) if isinstance(name, ast.Name)}
        if "import " in own:  # modules that a function imports for what they do are part of it
            for inside in ast.walk(code):
                if isinstance(inside, ast.Import | ast.ImportFrom):
                    module.imports.update(_imported(inside))
                    used.update(_imported(inside))
        if isinstance(code, ast.FunctionDef):
            module.functions.append(code.name)
        for name in names:
            module.texts[name] = module.texts.get(name, "") + own
            module.uses.setdefault(name, set()).update(used)
        if not names and not (isinstance(code, ast.Expr) and isinstance(code.value, ast.Constant)):
            others.append(own)
            of_all |= used
    for name in module.uses:
        module.texts[name] += "\0" + "\n".join(others)
        module.uses[name] |= of_all
    module.uses[WHOLE] = {*module.imports, *module.texts} - {WHOLE}
    return module


def _defined(code: ast.stmt) -> list[str]:
    if isinstance(code, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [code.name]
    targets = code.targets if isinstance(code, ast.Assign) else [code.target] if isinstance(code, ast.AnnAssign) else []
    return [name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)]


def _imported(code: ast.Import | ast.ImportFrom) -> dict[str, Symbol]:
    if isinstance(code, ast.Import):
        return {one.asname or one.name: Symbol(one.name, WHOLE) for one in code.names}
    return {one.asname or one.name: Symbol(code.module or "", one.name) for one in code.names}
