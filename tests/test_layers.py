"""The picture of the house, checked: imports point down, and the light rooms stay light."""

import ast
import subprocess
import sys

# A module imports from lower rows, or from its own row inside its own folder (or itself).
ROWS = [
    {"kernels", "errors"},
    {"rows", "config", "config_file", "sandbox", "metrics", "assets"},
    {"dispatch", "sharding", "state", "digest"},
    {"models", "losses", "advantages", "optim", "data", "rewards"},
    {"sampler", "environments", "formats"},
    {"train", "rollout"},
    {"stages", "evaluate"},
    {"cascade", "test_time", "report", "serve", "plan"},
]
FREE_OF_JAX = ("rows", "config", "config_file", "sandbox", "metrics", "rewards", "errors")
NO_SUCH_NAMES = ("utils", "common", "misc", "helpers", "base")


def row_of(name):
    return next((index for index, names in enumerate(ROWS) if name in names), None)


def imports_of(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield node.module
            if node.module == "nemocascade_jax":
                yield from (f"nemocascade_jax.{alias.name}" for alias in node.names)


def package_files(root):
    for path in sorted((root / "nemocascade_jax").rglob("*.py")):
        relative = path.relative_to(root / "nemocascade_jax")
        if relative.parts[0] not in ("kernels", "configs", "__init__.py"):
            yield path, relative.parts[0].removesuffix(".py")


def test_imports_point_down(root):
    faults = []
    for path, room in package_files(root):
        here = row_of(room)
        assert here is not None, f"{path}: {room} has no place in the picture of the house"
        for name in imports_of(path):
            parts = name.split(".")
            if parts[0] != "nemocascade_jax" or len(parts) == 1:
                continue
            there = row_of(parts[1])
            assert there is not None, f"{path}: imports unknown {name}"
            if there > here or (there == here and parts[1] != room and room not in ROWS[1]):
                faults.append(f"{path.name}: row {here} imports {name} of row {there}")
    assert not faults, faults


def test_configs_import_nothing_else(root):
    for path in sorted((root / "configs").glob("*.py")):
        for name in imports_of(path):
            assert name == "ml_collections" or name.startswith("nemocascade_jax.configs"), (
                path,
                name,
            )


def test_light_rooms_never_import_jax(root):
    rooms = ", ".join(
        f"nemocascade_jax.{room}"
        for room in FREE_OF_JAX
        if row_of(room) is not None
        and (
            (root / "nemocascade_jax" / room).is_dir()
            or (root / "nemocascade_jax" / f"{room}.py").is_file()
        )
    )
    program = f"import sys, {rooms}, nemocascade_jax.rewards.worker; print('jax' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "False"


def test_globals_are_touched_in_launch_only(root):
    for path, _ in package_files(root):
        text = path.read_text()
        for word in ("os.environ", "import absl", "from absl", "jax.config."):
            assert word not in text, f"{path}: {word} belongs to launch/ and tests/conftest.py"


def test_no_grab_bag_modules(root):
    for path, _ in package_files(root):
        assert path.stem not in NO_SUCH_NAMES, path


def test_launch_imports_jax_inside_main_only(root):
    for path in sorted((root / "launch").glob("*.py")):
        tree = ast.parse(path.read_text())
        for node in tree.body:
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not any(name.split(".")[0] == "jax" for name in names), path
