"""The structure of the product, and what of it breaks a bound.

    python -m tools.structure

Prints the packages with their lines, the imports between them, the largest cycle and the longest
chain of imports, the options of each verb, and functions and files that are too long. Imports count
wherever they stand: in functions and for type checkers, too. Exit 1, the fault named, where a bound
is broken.
"""

import ast
import inspect
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

import grimp

PACKAGE = "quantkit"
MAX_CYCLE = 1  # modules: nothing imports itself by a detour
MAX_CHAIN = 12  # modules
MAX_SHARE = 0.20  # of the product's lines, for one top-level package
MAX_FUNCTION_LINES = 60  # docstring included, signature not: an option is a parameter
MAX_FILE_LINES = 400

Imports = Mapping[str, frozenset[str]]
"""Each module and the modules that it imports directly."""


def read_imports() -> Imports:
    """The imports of the package that Python finds first."""
    graph = grimp.build_graph(PACKAGE, exclude_type_checking_imports=False, cache_dir=None)
    return {
        module: frozenset(graph.find_modules_directly_imported_by(module))
        for module in sorted(graph.modules)
    }


def file_of(module: str, root: Path) -> Path:
    """The file of a module; that of a package is its `__init__.py`."""
    path = root.joinpath(*module.split("."))
    plain = path.with_suffix(".py")
    return plain if plain.is_file() else path / "__init__.py"


def count_lines(path: Path) -> int:
    """The lines of a file, as `wc -l`."""
    return path.read_bytes().count(b"\n")


def package_of(module: str) -> str:
    """The top-level package of a module; modules beside the packages belong to `quantkit`."""
    parts = module.split(".")
    beside = len(parts) == 1 or parts[1].startswith("__")
    return PACKAGE if beside else parts[1]


def between_packages(imports: Imports) -> Counter[tuple[str, str]]:
    """How many imports lead from one package to another."""
    pairs = ((package_of(a), package_of(b)) for a, found in imports.items() for b in found)
    return Counter((source, target) for source, target in pairs if source != target)


def largest_cycle(imports: Imports) -> list[str]:
    """The largest set of modules each of which imports, by a detour, all others; at least one."""

    @cache
    def reached(module: str) -> frozenset[str]:
        found: set[str] = set()
        left = [module]
        while left:
            new = imports[left.pop()] - found
            found |= new
            left += new
        return frozenset(found)

    cycles = ([m, *(o for o in reached(m) if m != o and m in reached(o))] for m in imports)
    largest: list[str] = max(cycles, key=len)
    return sorted(largest)


def longest_chain(imports: Imports) -> list[str]:
    """The longest chain of modules each of which imports the next; a cycle is cut where it closes.

    Of chains equally long the alphabetically first one.
    """
    under_way: set[str] = set()

    @cache
    def below(module: str) -> tuple[str, ...]:
        under_way.add(module)
        chains = (below(target) for target in sorted(imports[module] - under_way))
        longest = max(chains, key=len, default=())
        under_way.discard(module)
        return (module, *longest)

    longest: tuple[str, ...] = max((below(module) for module in imports), key=len)
    return list(longest)


def long_functions(path: Path) -> Iterator[tuple[str, int, int]]:
    """Name, line and length of functions over the bound."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or 0) - node.body[0].lineno + 1
            if lines > MAX_FUNCTION_LINES:
                yield node.name, node.lineno, lines


def size_faults(paths: Sequence[Path]) -> list[str]:
    """Functions and files over their bounds, one sentence each."""
    faults = []
    for path in paths:
        if (lines := count_lines(path)) > MAX_FILE_LINES:
            faults.append(f"{path} has {lines} lines, at most {MAX_FILE_LINES}")
        faults += [
            f"{path}:{line} {name} has {lines} lines, at most {MAX_FUNCTION_LINES}"
            for name, line, lines in long_functions(path)
        ]
    return faults


def own_options() -> dict[str, int]:
    """How many options of its own each verb has, beside those that all verbs have."""
    from typer.models import OptionInfo

    from quantkit.core import registry

    def count(function: object) -> int:
        parameters = inspect.signature(function, eval_str=True).parameters.values()  # type: ignore[arg-type]  # a command
        stated = (getattr(parameter.annotation, "__metadata__", ()) for parameter in parameters)
        return sum(any(isinstance(info, OptionInfo) for info in infos) for infos in stated)

    found: dict[str, int] = {}
    for verb in registry.names("cli.commands"):
        command = registry.load("cli.commands", verb, "COMMAND")
        parts = command.items() if isinstance(command, dict) else [("", command)]
        found |= {f"{verb} {name}".strip(): count(function) for name, function in parts}
    return found


def shares(imports: Imports, root: Path) -> dict[str, tuple[int, float]]:
    """Lines of each top-level package and their share of all, largest first."""
    lines: Counter[str] = Counter()
    for module in imports:
        lines[package_of(module)] += count_lines(file_of(module, root))
    return {name: (count, count / lines.total()) for name, count in lines.most_common()}


def faults_of(imports: Imports, root: Path) -> list[str]:
    """What breaks a bound, one sentence each."""
    faults = []
    cycle, chain = largest_cycle(imports), longest_chain(imports)
    if len(cycle) > MAX_CYCLE:
        faults.append(f"{len(cycle)} modules import each other: {', '.join(cycle)}")
    if len(chain) > MAX_CHAIN:
        faults.append(f"the longest chain has {len(chain)} modules, at most {MAX_CHAIN}")
    for name, (_, share) in shares(imports, root).items():
        if share > MAX_SHARE:
            faults.append(f"{name} has {share:.1%} of the lines, at most {MAX_SHARE:.0%}")
    return faults + size_faults([file_of(module, root) for module in imports])


def describe(imports: Imports, root: Path) -> Iterator[str]:
    """The report, line by line."""
    sizes, pairs = shares(imports, root), between_packages(imports)
    yield f"{len(imports)} modules, {sum(lines for lines, _ in sizes.values()):,} lines\n"
    for name, (lines, share) in sizes.items():
        yield f"  {name:<12} {lines:>6,} {share:>6.1%}"
    yield "\nimports between packages"
    for name in sizes:
        targets = sorted((target, n) for (source, target), n in pairs.items() if source == name)
        if targets:
            yield f"  {name} -> " + ", ".join(f"{target} {n}" for target, n in targets)
    cycle, chain = largest_cycle(imports), longest_chain(imports)
    yield f"\nlargest cycle: {len(cycle)}"
    yield f"longest chain: {len(chain)}"
    yield from (f"  {module}" for module in chain)
    yield "\nown options of each verb"
    yield "  " + ", ".join(f"{verb} {count}" for verb, count in own_options().items())


def main() -> int:
    """Print the report; 1 where a bound is broken."""
    root = Path()
    imports = read_imports()
    print("\n".join(describe(imports, root)))
    faults = faults_of(imports, root)
    print(f"\nfaults: {len(faults)}", *faults, sep="\n  ")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
