"""Times the verifiers, beside the math-verify package on the same answers, and prints a table.

python tools/grading_speed.py --checks 4000
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable, Sequence

from nemocascade_jax.rewards import pool, symbols, warm
from nemocascade_jax.rows.generators import instruction, math
from nemocascade_jax.rows.records import Completion, Row, Score

Job = tuple[Row, Completion]
WORDS = 200  # of a long answer
TARGETS = {"exact": 2000, "symbolic": 500, "instruction": 3000}  # checks a second on two cores
THOUGHT = "<think>\nFirst I work it out step by step, then I write it down.\n</think>\n\n"
# Reference and answer, equal or not: sums of powers and roots, and what only the package compares.
EXPRESSIONS = (
    (r"\sqrt{{{n}}}", r"\frac{{{n}}}{{\sqrt{{{n}}}}}"),
    (r"{n}\pi", r"\pi \cdot {n}"),
    (r"(x-{n})^2", r"x^2-2 \cdot {n}x+{n}^2"),
    (r"\frac{{\pi}}{{{n}}}", r"\frac{{2\pi}}{{{n}}}"),
    (r"{n}\sqrt{{2}}", r"{n}\sqrt{{3}}"),
)
FUNCTIONS = (
    (r"\sin({n}x)", r"\sin(x \cdot {n})"),
    (r"\log({n})", r"\ln({n})"),
    (r"\frac{{1}}{{x+{n}}}", r"\frac{{2}}{{2x+2 \cdot {n}}}"),
)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--checks", type=int, default=4000, help="answers a line of the table")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3, help="the median is printed")
    args = parser.parse_args()
    warm()
    exact = numbers(args.checks)
    symbolic = expressions(args.checks // 4, EXPRESSIONS)
    functions = expressions(args.checks // 8, FUNCTIONS)
    short, long = instructions(args.checks, 0), instructions(args.checks, WORDS)
    running = pool.start_pool(args.workers, cpu_s=2.0, memory_mb=1024)
    running.score([*exact[:64], *short[:64]])  # no line pays for the workers' start

    def there(jobs: Sequence[Job]) -> Callable[[], object]:
        return lambda: running.score(jobs)

    few = exact[: args.checks // 8]
    lines = [
        ("math-verify alone, numbers", few, lambda: bare(few), None),
        ("math, exact path", exact, lambda: here(exact), "exact"),
        ("math, exact path, workers", exact, there(exact), "exact"),
        ("math-verify alone, expressions", symbolic, lambda: bare(symbolic), None),
        ("math, expressions, workers", symbolic, there(symbolic), "symbolic"),
        ("math-verify alone, functions", functions, lambda: bare(functions), None),
        ("math, functions, workers", functions, there(functions), None),
        ("instructions, short, workers", short, there(short), "instruction"),
        (f"instructions, {WORDS} words, workers", long, there(long), "instruction"),
    ]
    print(f"{'what':36}{'checks':>8}{'seconds':>9}{'a second':>10}{'wanted':>8}")
    try:
        for name, jobs, work, target in lines:
            seconds = timed(work, args.repeats)
            wanted = TARGETS.get(target or "", "")
            print(f"{name:36}{len(jobs):>8}{seconds:>9.2f}{len(jobs) / seconds:>10.0f}{wanted:>8}")
    finally:
        running.close()
    print(f"{args.workers} workers; the package works in this process, one answer at a time")


def timed(work: Callable[[], object], repeats: int) -> float:
    """Returns the median seconds of a few runs."""
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def here(jobs: Sequence[Job]) -> list[Score]:
    return [pool.grade_here(row, completion) for row, completion in jobs]


def bare(jobs: Sequence[Job]) -> list[bool]:
    """Returns what the package alone says, reading both sides as it would by default."""
    package = symbols.library()
    if package is None:
        raise SystemExit("grading_speed: math-verify is not installed; install the extra [math]")
    return [
        package.verify(
            package.parse(f"${row.fields['expected_answer']}$", parsing_timeout=None),
            package.parse(completion.text, parsing_timeout=None),
            timeout_seconds=None,
        )
        for row, completion in jobs
    ]


def numbers(count: int) -> list[Job]:
    """Returns references and boxed answers that are whole numbers, fractions and decimals."""
    rng = random.Random(0)
    jobs = []
    for index in range(count):
        a, b = rng.randint(-999, 9999), rng.randint(2, 99)
        gold, form = rng.choice(
            [(f"{a}", f"{a}"), (f"{a}/{b}", f"\\frac{{{a}}}{{{b}}}"), (f"{a}.5", f"{2 * a + 1}/2")]
        )
        form = form if rng.random() < 0.7 else f"{a + 1}"
        jobs.append(_math(index, gold, form))
    return jobs


def expressions(count: int, kinds: tuple[tuple[str, str], ...]) -> list[Job]:
    pairs = [kinds[index % len(kinds)] for index in range(count)]
    return [
        _math(index, gold.format(n=index % 89 + 3), answer.format(n=index % 89 + 3))
        for index, (gold, answer) in enumerate(pairs)
    ]


def _math(index: int, gold: str, answer: str) -> Job:
    row = Row(f"{index}", math.AGENT, (), {"expected_answer": gold}, f"speed:{index}")
    return row, Completion(f"{THOUGHT}So the answer is $\\boxed{{{answer}}}$.")


def instructions(count: int, words: int) -> list[Job]:
    """Returns generated prompts with answers of a forgetful writer, made at least `words` long."""
    rows = instruction.generate("train", count, 0)
    talks = instruction.demonstrations("train", count, 0, 0.3)
    texts = [talk.messages[-1].content for talk in talks]
    jobs = []
    for index, (row, text) in enumerate(zip(rows, texts, strict=True)):
        while len(text.split()) < words:
            index += 1
            text = f"{text} {texts[index % count]}"
        jobs.append((row, Completion(THOUGHT + text)))
    return jobs


if __name__ == "__main__":
    main()
