"""Measures how the code is arranged: files, packages, interfaces, names. `python -m scripts.house [--list]`.

Product files are those below src, services/*, kernels, gateway and tools that lie in a `pagemesh` folder, without
generated stubs. "Core" leaves out what no process of a mesh runs: simulator, planner, benchmark, doctor. The
budgets are in tests/hygiene/structure.toml.
"""

from __future__ import annotations

import argparse
import ast
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Final

import networkx

ROOT: Final = Path(__file__).resolve().parent.parent
TOOLS: Final = ("sim", "plan", "bench", "doctor", "workload", "cli/doctor", "cli/plan")
SHORT: Final = 60
LONG_FILE: Final = 400
LONG_FUNCTION: Final = 50

Function = ast.FunctionDef | ast.AsyncFunctionDef
Members = Mapping[str, object]
"""Public members of a class: of a method the names of its arguments, of anything else None."""


@dataclass
class Structure:
    """What was measured."""

    sizes: dict[str, float]
    """How large it is; grows with what is added."""
    figures: dict[str, int] = field(default_factory=dict)
    """What makes it hard to read; each has a budget."""
    lists: dict[str, list[str]] = field(default_factory=dict)
    """The names behind those figures that are counts of names."""

    def count(self, what: str, names: Iterable[str]) -> None:
        """Add a figure with its names."""
        self.lists[what] = sorted(names)
        self.figures[what] = len(self.lists[what])


def product_files(root: Path) -> dict[str, Path]:
    """By module name, without the leading `pagemesh.`."""
    portions = [root / top / "pagemesh" for top in ("src", "kernels", "gateway", "tools")]
    found = {}
    for portion in [*portions, *sorted(root.glob("services/*/pagemesh"))]:
        for path in sorted(portion.rglob("*.py")):
            parts = path.relative_to(portion).with_suffix("").parts
            if parts[0] != "v1":
                found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def measure(root: Path) -> Structure:
    """Read all of the product, and the tests for their fakes."""
    paths = product_files(root)
    texts = {module: path.read_text(encoding="utf-8") for module, path in paths.items()}
    trees = {module: ast.parse(text) for module, text in texts.items()}
    lines = {module: text.count("\n") for module, text in texts.items()}
    core = [module for module, path in paths.items() if not _is_tool(path)]
    structure = Structure(
        {
            "product lines": sum(lines.values()),
            "core files": len(core),
            "core lines": sum(lines[module] for module in core),
            "median lines of a file": median(lines.values()),
        }
    )
    structure.figures["product files"] = len(paths)
    _measure_sizes(structure, trees, lines)
    _measure_imports(structure, trees, lines, paths)
    fakes = [_read(path) for path in (root / "tests").rglob("*.py")]
    _measure_classes(structure, trees, fakes)
    structure.figures["context variables"] = sum(t.count("ContextVar(") for t in texts.values())
    return structure


def _is_tool(path: Path) -> bool:
    return path.as_posix().split("/pagemesh/")[-1].startswith(TOOLS)


def _read(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def _measure_sizes(
    structure: Structure, trees: Mapping[str, ast.Module], lines: Mapping[str, int]
) -> None:
    structure.count(
        f"functions of more than {LONG_FUNCTION} lines",
        (
            f"{module}:{node.name}"
            for module, tree in trees.items()
            for node in ast.walk(tree)
            if isinstance(node, Function)
            and (node.end_lineno or 0) - node.lineno + 1 > LONG_FUNCTION
        ),
    )
    structure.count(
        f"files of more than {LONG_FILE} lines",
        (module for module, number in lines.items() if number > LONG_FILE),
    )


def _measure_imports(
    structure: Structure,
    trees: Mapping[str, ast.Module],
    lines: Mapping[str, int],
    paths: Mapping[str, Path],
) -> None:
    used = {module: _imports(tree, trees) for module, tree in trees.items()}
    num_importers = Counter(module for found in used.values() for module in found)
    structure.count(
        f"files of less than {SHORT} lines with one importer",
        (
            module
            for module, path in paths.items()
            if lines[module] < SHORT and num_importers[module] == 1 and path.stem != "__init__"
        ),
    )
    packages: dict[str, set[str]] = defaultdict(set)
    for module, found in used.items():
        package = module.partition(".")[0]
        packages[package] |= {other.partition(".")[0] for other in found} - {package}
    structure.count("packages in cycles", (each for group in cycles(packages) for each in group))
    structure.count("file cycles", (" ↔ ".join(group) for group in cycles(used)))


def _imports(tree: ast.AST, modules: Mapping[str, object]) -> set[str]:
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                names.add(whole if whole.removeprefix("pagemesh.") in modules else node.module)
    own = {name.removeprefix("pagemesh.") for name in names if name.startswith("pagemesh.")}
    return own & modules.keys()


def cycles(edges: Mapping[str, set[str]]) -> list[list[str]]:
    """Groups of nodes that reach each other."""
    graph = networkx.DiGraph({node: sorted(others) for node, others in edges.items()})
    groups = networkx.strongly_connected_components(graph)
    return sorted(sorted(group) for group in groups if len(group) > 1)


def _measure_classes(
    structure: Structure, trees: Mapping[str, ast.Module], tests: Sequence[ast.Module]
) -> None:
    classes = [
        (f"{module}:{node.name}", node) for module, tree in trees.items() for node in _classes(tree)
    ]
    structure.count(
        "wrappers (constructors that take `inner`)", (n for n, c in classes if _wraps(c))
    )
    _measure_protocols(structure, classes, [node for t in tests for node in _classes(t)])
    times = Counter(node.name for _, node in classes if not node.name.startswith("_"))
    structure.count(
        "class names that are used twice", (name for name, number in times.items() if number > 1)
    )


def _classes(tree: ast.Module) -> list[ast.ClassDef]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]


def _wraps(node: ast.ClassDef) -> bool:
    return any(
        isinstance(each, Function)
        and each.name == "__init__"
        and any(argument.arg == "inner" for argument in each.args.args)
        for each in node.body
    )


def _is_protocol(node: ast.ClassDef) -> bool:
    return any(ast.unparse(base).startswith("Protocol") for base in node.bases)


def _measure_protocols(
    structure: Structure, classes: Sequence[tuple[str, ast.ClassDef]], tests: Sequence[ast.ClassDef]
) -> None:
    bases = {node.name: node for node in (*(node for _, node in classes), *tests)}
    fakes = [_members(node, bases) for node in tests]
    real = [
        _members(node, bases) for _, node in classes if not _is_protocol(node) and not _wraps(node)
    ]
    lone: list[str] = []
    faked: list[str] = []
    for name, node in classes:
        wanted = _members(node, bases)
        if _is_protocol(node) and sum(_fits(has, wanted) for has in real) <= 1:
            has_fake = any(_fits(has, wanted) for has in fakes)
            (faked if has_fake else lone).append(name)
    structure.count("Protocols with one implementor and no fake", lone)
    structure.count("Protocols with one implementor and a fake", faked)


def _members(node: ast.ClassDef, bases: Mapping[str, ast.ClassDef]) -> Members:
    """Its own, and those of the bases that are classes of the repository."""
    inherited: dict[str, object] = {}
    for base in node.bases:
        if isinstance(base, ast.Name) and (other := bases.get(base.id, node)) is not node:
            inherited |= _members(other, bases)
    stored = (
        each
        for each in ast.walk(node)
        if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store)
    )
    found = inherited | {each.attr: None for each in stored}
    for each in node.body:
        if isinstance(each, Function):
            is_property = any(ast.unparse(d).endswith("property") for d in each.decorator_list)
            names = [a.arg for a in (*each.args.args, *each.args.kwonlyargs)][1:]
            found[each.name] = None if is_property else names
        elif isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
            found[each.target.id] = None
    return {k: v for k, v in found.items() if not k.startswith("_") or k == "__call__"}


def _fits(has: Members, wanted: Members) -> bool:
    """Whether a class with these members implements the ones of an interface; it may take more arguments."""
    return bool(wanted) and all(
        name in has and (names is None or has[name] is None or _starts(has[name], names))
        for name, names in wanted.items()
    )


def _starts(has: object, wanted: object) -> bool:
    assert isinstance(has, list) and isinstance(wanted, list)
    return has[: len(wanted)] == wanted


def main() -> None:
    """Print the figures, with --list the names behind them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition(":")[0])
    parser.add_argument("--list", action="store_true", help="the names behind the figures as well")
    options = parser.parse_args()
    structure = measure(ROOT)
    for what, number in {**structure.sizes, **structure.figures}.items():
        print(f"{number:8g}  {what}")
    for what, names in structure.lists.items() if options.list else ():
        print(f"\n{what}:", *names, sep="\n  ")


if __name__ == "__main__":
    main()
