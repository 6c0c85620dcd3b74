"""Flags, errors, exit codes, signals and progress for every command; imports no jax.

A command defines its absl flags at module level, imports jax inside `main`, and ends with
`command.run(main)`. Exit codes: 0 done, 2 bad input or environment (one line on standard error),
1 our own bug (traceback), 143 / 130 stopped by SIGTERM / SIGINT with state saved.
"""

from __future__ import annotations

import contextlib
import difflib
import errno
import logging
import os
import pathlib
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from absl import flags

from nemocascade_jax import config_file
from nemocascade_jax.errors import InputError, Stopped

FLAGS = flags.FLAGS
ENVIRONMENT_FAULTS = (
    errno.ENOSPC,
    errno.EFBIG,
    errno.EDQUOT,
    errno.EROFS,
    errno.EACCES,
    errno.EPERM,
)
_overrides: list[tuple[str, str]] = []


def define_config() -> None:
    """Adds `--config FILE[:arg]`; dotted overrides `--config.a.b=v` need no definition."""
    flags.DEFINE_string("config", None, "config file, FILE[:arg]; override keys by --config.a.b=v")


def load_config() -> config_file.LoadedConfig:
    """Returns the run that --config and its overrides describe."""
    if FLAGS.config is None:
        raise InputError("--config: missing; name a file such as configs/cascade.py:micro")
    return config_file.load_config(FLAGS.config, _overrides)


def required(name: str) -> str:
    """Returns a flag that has no default."""
    value = FLAGS[name].value
    if value is None:
        raise InputError(f"--{name}: missing; {FLAGS[name].help}")
    return value


def use_huge_pages() -> None:
    """Starts this process anew with malloc on huge pages, once: the update takes 0.7 of the time.

    Large arrays come and go every step, and glibc reads this setting only when a process starts.
    """
    if sys.platform == "linux" and "GLIBC_TUNABLES" not in os.environ:
        environment = os.environ | {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
        os.execve(sys.executable, sys.orig_argv, environment)


# --- what a long-running command needs -----------------------------------------------------------

_stop: list[int] = []


def _on_signal(signum: int, frame: Any) -> None:
    if _stop:  # asked a second time: do not wait for the step to end
        raise KeyboardInterrupt
    _stop.append(signum)


def start_jax(mesh: Any = None) -> None:
    """Prepares jax before its first use: enough CPU devices for the mesh, and the compilation cache."""
    import jax

    if mesh is not None and (devices := _product(mesh.shape.values())) > 1:
        jax.config.update("jax_num_cpu_devices", devices)
    _quiet_libraries()
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache"))
    jax.config.update("jax_compilation_cache_dir", str(cache / "nemocascade_jax" / "compiled"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)


def _quiet_libraries() -> None:
    """Keeps libraries from printing what reaches us as an exception or does not matter."""
    for name in ("absl", "asyncio"):  # orbax raises the first fault of a save and prints them all
        logging.getLogger(name).setLevel(logging.CRITICAL)
    warnings.filterwarnings("ignore", message=r"Error \w+ persistent compilation cache entry")
    show = sys.unraisablehook

    def hook(found: Any) -> None:
        # A write that fails after its event loop has ended: the fault itself is raised by orbax.
        if str(found.exc_value) != "Event loop is closed":
            show(found)

    sys.unraisablehook = hook


def _product(sizes: Any) -> int:
    total = 1
    for size in sizes:
        total *= size
    return total


@contextlib.contextmanager
def reward_pool(settings: Sequence[Any]) -> Iterator[Any]:
    """Starts the grading processes, before jax, sized for the most demanding stage; yields `score`."""
    from nemocascade_jax.rewards import pool

    workers = max((one.workers for one in settings), default=1)
    cpu_s = max((one.cpu_s for one in settings), default=2.0)
    memory_mb = max((one.memory_mb for one in settings), default=1024)
    running = pool.start_pool(workers, cpu_s=cpu_s, memory_mb=memory_mb)
    try:
        yield running.score
    finally:
        running.close()


class _Console:
    """Says lines on standard error; shows a bar on a terminal and a line every few seconds elsewhere."""

    def __init__(self, every_s: float = 5.0):
        self.every_s, self.last, self.bar, self.stage = every_s, 0.0, None, ""
        self.began: dict[str, tuple[float, int]] = {}

    def say(self, line: str) -> None:
        self._close_bar()
        print(line, file=sys.stderr, flush=True)

    def stop_signal(self) -> int | None:
        return _stop[0] if _stop else None

    def progress(self, stage: str, step: int, steps: int, metrics: dict[str, float]) -> None:
        now = time.monotonic()
        since, first = self.began.setdefault(stage, (now, step))
        rate = (now - since) / (step - first) if step > first else 0.0
        shown = [f"loss {metrics['loss']:.3f}"] if "loss" in metrics else []
        shown += [f"reward {metrics['reward/mean']:.3f}"] if "reward/mean" in metrics else []
        if sys.stderr.isatty():
            self._draw(stage, step, steps, "  ".join(shown))
            return
        if now - self.last < self.every_s and step < steps:
            return
        self.last = now
        left = rate * (steps - step)
        print(
            f"{stage}: step {step}/{steps}  {'  '.join(shown)}  {rate:.2f} s/step  {left:.0f} s left",
            file=sys.stderr,
            flush=True,
        )

    def _draw(self, stage: str, step: int, steps: int, shown: str) -> None:
        from rich.console import Console
        from rich.progress import Progress, TimeRemainingColumn

        if self.stage != stage:
            self._close_bar()
            columns = (
                *Progress.get_default_columns()[:-1],
                TimeRemainingColumn(),
                "{task.fields[shown]}",
            )
            self.bar = Progress(*columns, console=Console(stderr=True))
            self.bar.start()
            self.task = self.bar.add_task(stage, total=steps, shown=shown)
            self.stage = stage
        assert self.bar is not None
        self.bar.update(self.task, completed=step, shown=shown)
        if step == steps:
            self._close_bar()

    def _close_bar(self) -> None:
        if self.bar is not None:
            self.bar.stop()
        self.bar, self.stage = None, ""


def make_console() -> Any:
    """Returns the console of a long run and starts listening to SIGTERM and SIGINT."""
    signal.signal(signal.SIGTERM, _on_signal)
    signal.signal(signal.SIGINT, _on_signal)
    return _Console()


def summary(ledger: dict[str, Any]) -> str:
    """Returns each domain's score after each stage, the fallen marked, and what MOPD won back."""
    ends = {name: entry["step"] for name, entry in ledger["stages"].items() if "step" in entry}
    stages = [name for name in ledger["order"] if name in ends]
    fallen = {(g["stage"], g["domain"]) for g in ledger["gates"] if g["verdict"] == "fallen"}
    cells: dict[tuple[str, str], str] = {}
    for one in ledger["scores"]:
        last = one["step"] == ends.get(one["stage"])
        if last and (one["mode"], one["rows"]) == ("sampled", "selection") and one["n"]:
            mark = "*" if (one["stage"], one["domain"]) in fallen else " "
            error = one["standard_error"] or 0.0
            cells[one["domain"], one["stage"]] = f"{one['score']:.3f} ({error:.3f}){mark}"
    domains = sorted({domain for domain, _ in cells})
    lines = ["score (s.e.)".ljust(24) + "".join(name.rjust(16) for name in stages)]
    for domain in domains:
        row = [cells.get((domain, name), "").rjust(16) for name in stages]
        lines.append(domain.ljust(24) + "".join(row))
    if fallen:
        errors = ledger["gates"][0]["errors"]
        lines.append(f"* below its best by more than {errors:g} paired standard errors")
    for found in ledger["recoveries"]:
        lines.append(
            f"{found['stage']}: {found['domain']} {found['before_score']:.3f} -> {found['score']:.3f}, "
            f"its teacher {found['teacher_score']:.3f} (second held-out set): {found['verdict']}"
        )
    for trigger in ledger["triggers"]:
        if not trigger["fallen"]:
            lines.append(f"{trigger['stage']}: no domain had fallen before it")
    return "\n".join(lines)


# --- the command itself --------------------------------------------------------------------------


def run(main: Callable[[], int | None]) -> None:
    """Parses flags, runs `main`, and turns its outcome into an exit code."""
    try:
        _parse(sys.argv)
        code = main() or 0
    except InputError as error:
        code = _say(error)
    except Stopped as error:
        code = _say(error, error.code)
    except OSError as error:
        if error.errno not in ENVIRONMENT_FAULTS:
            raise
        code = _say(
            f"{error.filename or 'writing'}: {error.strerror}; free space or raise the limit"
        )
    except KeyboardInterrupt:
        code = _say("interrupted before there was state to save", 130)
    except BrokenPipeError:  # the reader of a pipe went away, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    sys.stdout.flush()
    sys.stderr.flush()
    sys.exit(code)


def _say(error: object, code: int = 2) -> int:
    print(" ".join(str(error).split()), file=sys.stderr)
    return code


def _parse(argv: list[str]) -> None:
    _overrides.clear()
    rest = [argv[0]]
    for arg in argv[1:]:
        if not arg.startswith(("--config.", "-config.")):
            rest.append(arg)
            continue
        key, sign, text = arg.partition("=")
        if not sign:
            raise InputError(f"{key}: no value; write {key}=VALUE")
        _overrides.append((key.lstrip("-").removeprefix("config."), text))
    if any(arg in ("--help", "-help", "-h") for arg in rest):
        print(_help())
        sys.exit(0)
    try:
        left = FLAGS(rest)
    except flags.UnrecognizedFlagError as error:
        known = [name for name in FLAGS if not _is_absl(name)]
        near = difflib.get_close_matches(error.flagname, known, n=1, cutoff=0.0)
        raise InputError(
            f"--{error.flagname}: unknown flag; did you mean --{near[0]}? (known: {', '.join(known)})"
        ) from None
    except flags.Error as error:
        raise InputError(str(error).removeprefix("flag ")) from None
    if len(left) > 1:
        raise InputError(f"{left[1]!r}: unexpected argument; flags are written --name=value")


def _is_absl(name: str) -> bool:
    return FLAGS[name].name in _absl_names()


def _absl_names() -> set[str]:
    return {
        flag.name
        for module, of in FLAGS.flags_by_module_dict().items()
        if "absl" in module
        for flag in of
    }


def _help() -> str:
    main = sys.modules["__main__"]
    lines = [(main.__doc__ or "").strip(), "", "flags:"]
    for name in FLAGS:
        if not _is_absl(name):
            flag = FLAGS[name]
            lines.append(f"  --{name:18} {flag.help} (default: {flag.default})")
    return "\n".join(lines)
