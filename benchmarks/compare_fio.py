"""The slices and the statistics of compare_fio.sh, which calls this."""
import argparse
import json
import math
import os
import platform
import random
import signal
import subprocess
import sys
import tempfile
import time

DEPTHS = (16, 32, 64)
BLOCKS = ("256k", "1m", "4m")
OURS_DEFAULT = ("1m", 32)
SEARCH_SECONDS = 0.6
FINALISTS = 3
SPEED_GOAL = 0.97  # of the control's median
CPU_GOAL = 1.1
# Before each slice, of either: drives that are shared give credit for a time of rest, and spend it first.
REST_SECONDS = 0.5
running = None  # the process of the slice


def fail(message):
    print(f"error: {message}", file=sys.stderr)
    sys.exit(2)


# glibc then asks for huge pages behind large allocations, which fio has no option of its own for.
HUGE_PAGES = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}


def run(command, environment=None):
    """Its output, and the processor seconds of it and all of its children, the kernel's workers included."""
    global running
    time.sleep(REST_SECONDS)
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        running = subprocess.Popen(command, stdout=out, stderr=err, start_new_session=True,
                                   env={**os.environ, **(environment or {})})
        _, status, usage = os.wait4(running.pid, 0)
        running = None
        out.seek(0)
        err.seek(0)
        text = out.read().decode(errors="replace")
        if os.waitstatus_to_exitcode(status) != 0:
            complaint = err.read().decode(errors="replace").strip() or text.strip()[-500:]
            fail(f"{' '.join(command)}\n{complaint}")
        return text, usage.ru_utime + usage.ru_stime


def end(signal_number, _frame):
    if running is not None:
        os.killpg(running.pid, signal.SIGKILL)
    sys.exit(128 + signal_number)


class Fio:
    """A way to run fio: block size, depth, and what its buffers are.

    Mixed is one job that does both. Two jobs, one for each direction, do not begin at the same moment on a busy machine:
    their speeds add up although they were moved one after the other.
    """

    def __init__(self, file, mode, block, depth, registered=True, huge=True):
        self.file, self.mode, self.block, self.depth = file, mode, block, depth
        self.registered, self.environment = registered, HUGE_PAGES if huge else None

    def with_buffers(self, registered, huge):
        return Fio(self.file, self.mode, self.block, self.depth, registered, huge)

    def settings(self):
        return {"block_size": self.block, "iodepth": self.depth, "fixedbufs": self.registered,
                "registerfiles": self.registered, "huge_pages": self.environment is not None}

    def command(self, seconds):
        size = os.path.getsize(self.file)
        common = ["fio", "--output-format=json", "--ioengine=io_uring", "--direct=1", "--time_based", "--overwrite=1",
                  f"--runtime={max(1, round(seconds * 1000))}ms", f"--filename={self.file}", f"--bs={self.block}",
                  "--invalidate=0", "--group_reporting"]
        if self.registered:
            common += ["--fixedbufs=1", "--registerfiles=1"]
        half = size // 2
        # What ours reads in mixed is left as it is: fio's mixture stays in the half that ours writes.
        extent = [f"--offset={half}", f"--size={half}"] if self.mode == "mixed" else [f"--size={size}"]
        rw = "rw" if self.mode == "mixed" else self.mode
        return common + [f"--iodepth={self.depth}", f"--rw={rw}", *extent, "--name=slice"]

    def measure(self, seconds):
        text, cpu = run(self.command(seconds), self.environment)
        jobs = json.loads(text[text.index("{"):])["jobs"]
        parts = [job[d] for job in jobs for d in ("read", "write") if job[d]["io_bytes"] > 0]
        moved = sum(part["io_bytes"] for part in parts)
        own = sum((job["usr_cpu"] + job["sys_cpu"]) / 100 * job["job_runtime"] / 1000 for job in jobs)
        return {"gb_per_s": 1e-6 * moved / max(part["runtime"] for part in parts), "gb": 1e-9 * moved, "cpu_s": cpu,
                "own_cpu_s_per_gb": own / (1e-9 * moved)}


class Ours:
    def __init__(self, program, file, mode, block, depth):
        self.program, self.file, self.mode, self.block, self.depth = program, file, mode, block, depth
        self.row = None

    def settings(self):
        return {"block_size": self.block, "queue_depth": self.depth}

    def command(self, seconds):
        return [self.program, "bench", "io", "--path", self.file, "--overwrite", "--direct", "on", "--engine", "io_uring",
                "--mode", self.mode, "--block-size", self.block.upper(), "--queue-depth", str(self.depth), "--seconds",
                f"{seconds:g}"]

    def measure(self, seconds):
        with tempfile.NamedTemporaryFile() as rows:
            run(self.command(seconds) + ["--json", rows.name])
            with open(rows.name, encoding="utf-8") as replaced:
                self.row = json.load(replaced)[0]
        if self.row["verified"] is not True:
            fail("a slice was not verified")
        return {"gb_per_s": self.row["gb_per_s"], "cpu_s_per_gb": self.row["cpu_s_per_gb"]}


def median(values):
    values = sorted(values)
    middle = len(values) // 2
    return values[middle] if len(values) % 2 else (values[middle - 1] + values[middle]) / 2


def interval(values, draws=10000):
    """The 95% interval of the median, by drawing the pairs again."""
    rng = random.Random(1)
    medians = sorted(median(rng.choices(values, k=len(values))) for _ in range(draws))
    return medians[int(0.025 * draws)], medians[int(0.975 * draws) - 1]


def best_of(candidates, show):
    """The fastest: all once, the finalists twice more, by their mean."""
    speeds = {i: [] for i in range(len(candidates))}
    for i, candidate in enumerate(candidates):
        show(f"search {i + 1}/{len(candidates)}")
        speeds[i].append(candidate.measure(SEARCH_SECONDS)["gb_per_s"])
    finalists = sorted(speeds, key=lambda i: -speeds[i][0])[:FINALISTS]
    for again in range(2):
        for i in finalists if again == 0 else reversed(finalists):
            show("search, again")
            speeds[i].append(candidates[i].measure(SEARCH_SECONDS)["gb_per_s"])
    return candidates[max(finalists, key=lambda i: sum(speeds[i]))]


def fio_candidates(file, mode):
    return [Fio(file, mode, block, depth) for block in BLOCKS for depth in DEPTHS]


def best_fio(file, mode, show):
    fio = best_of(fio_candidates(file, mode), show)
    return best_of([fio, fio.with_buffers(False, True), fio.with_buffers(True, False)], show)


def compare(args, mode, show):
    """A round is ours, fio, fio again; the next one backwards: A B B B B A. Ratios are those of neighbours."""
    fio = best_fio(args.file, mode, show)
    ours = best_of([Ours(args.program, args.file, mode, block, depth) for block in BLOCKS for depth in DEPTHS], show)
    rounds = []
    for number in range(args.slices):
        show(f"slices {number + 1}/{args.slices}")
        order = [("ours", ours), ("fio", fio), ("fio_again", fio)]
        rounds.append({name: who.measure(args.seconds) for name, who in (order if number % 2 == 0 else order[::-1])})
    ratios = [r["ours"]["gb_per_s"] / r["fio"]["gb_per_s"] for r in rounds]
    controls = [r["fio_again"]["gb_per_s"] / r["fio"]["gb_per_s"] for r in rounds]
    low, high = interval(ratios)
    control_low, control_high = interval(controls)
    goal = SPEED_GOAL * median(controls)
    return {"what": "speed", "mode": mode, "ratio": median(ratios), "low": low, "high": high, "control": median(controls),
            "control_low": control_low, "control_high": control_high, "goal": goal, "pass": high >= goal,
            "ours_gb_per_s": median([r["ours"]["gb_per_s"] for r in rounds]),
            "fio_gb_per_s": median([r["fio"]["gb_per_s"] for r in rounds]),
            "ours": ours.settings(), "fio": fio.settings(), "fio_command": " ".join(fio.command(args.seconds)),
            "ours_command": " ".join(ours.command(args.seconds)), "row": ours.row, "rounds": rounds}


def compare_cpu(args, mode, show):
    fio = best_fio(args.memory_file, mode, show)
    ours = Ours(args.program, args.memory_file, mode, fio.block, fio.depth)
    ours.measure(SEARCH_SECONDS)  # what fio wrote here is written over before it is read
    # What fio spends before and after its slice (its buffers, its processes) is no cost of a byte.
    idle = median([run(fio.command(0.001) + ["--number_ios=1"], fio.environment)[1] for _ in range(5)])
    rounds = []
    for number in range(args.slices):
        show(f"slices {number + 1}/{args.slices}")
        order = [("ours", ours), ("fio", fio), ("fio_again", fio)]
        measured = {name: who.measure(args.seconds) for name, who in (order if number % 2 == 0 else order[::-1])}
        for name in ("fio", "fio_again"):
            measured[name]["cpu_s_per_gb"] = (measured[name]["cpu_s"] - idle) / measured[name]["gb"]
        rounds.append(measured)
    ratios = [r["ours"]["cpu_s_per_gb"] / r["fio"]["cpu_s_per_gb"] for r in rounds]
    controls = [r["fio_again"]["cpu_s_per_gb"] / r["fio"]["cpu_s_per_gb"] for r in rounds]
    low, high = interval(ratios)
    control_low, control_high = interval(controls)
    return {"what": "cpu", "mode": mode, "ratio": median(ratios), "low": low, "high": high, "control": median(controls),
            "control_low": control_low, "control_high": control_high, "goal": CPU_GOAL, "pass": low <= CPU_GOAL,
            "ours_cpu_s_per_gb": median([r["ours"]["cpu_s_per_gb"] for r in rounds]),
            "fio_cpu_s_per_gb": median([r["fio"]["cpu_s_per_gb"] for r in rounds]),
            "fio_own_cpu_s_per_gb": median([r["fio"]["own_cpu_s_per_gb"] for r in rounds]), "fio_idle_cpu_s": idle,
            "ours_gb_per_s": median([r["ours"]["gb_per_s"] for r in rounds]),
            "fio_gb_per_s": median([r["fio"]["gb_per_s"] for r in rounds]),
            "ours": ours.settings(), "fio": fio.settings(), "fio_command": " ".join(fio.command(args.seconds)),
            "ours_command": " ".join(ours.command(args.seconds)), "row": ours.row, "rounds": rounds}


def described(result):
    goal = f">= {result['goal']:.3f}" if result["what"] == "speed" else f"<= {result['goal']:.1f}"
    return (f"{result['what']:<6} {result['mode']:<6} {result['ratio']:>7.3f}  [{result['low']:.3f}, {result['high']:.3f}]"
            f"  {result['control']:>7.3f}  [{result['control_low']:.3f}, {result['control_high']:.3f}]  {goal:>8}  "
            f"{'PASS' if result['pass'] else 'FAIL'}   ours {result['ours_gb_per_s']:.2f} GB/s, fio "
            f"{result['fio_gb_per_s']:.2f} GB/s"
            + ("" if result["what"] == "speed" else
               f"; CPU s/GB ours {result['ours_cpu_s_per_gb']:.4f}, fio {result['fio_cpu_s_per_gb']:.4f}"))


def main():
    parser = argparse.ArgumentParser()
    for flag in ("--program", "--file", "--memory-file", "--modes", "--json"):
        parser.add_argument(flag, default="")
    parser.add_argument("--slices", type=int)
    parser.add_argument("--seconds", type=float)
    args = parser.parse_args()
    modes = args.modes.split(",")
    for mode in modes:
        if mode not in ("read", "mixed", "write"):
            fail(f"--mode: '{mode}' is not known\nhint: read, mixed or write, several with commas")
    if not (args.seconds >= 0.5 and math.isfinite(args.seconds)):
        fail("--seconds: a slice of less than half a second is mostly its beginning and its end")
    # What fio writes is not what ours reads: modes that only read come first, and write comes last.
    modes.sort(key=["read", "mixed", "write"].index)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, end)

    def show(text):
        if sys.stdout.isatty():
            print(f"\r\x1b[K{current}: {text}", end="", flush=True)

    current = "writing the file once"
    show("")
    first = Ours(args.program, args.file, "read", *OURS_DEFAULT)
    first.measure(0.1)
    fio_version = run(["fio", "--version"])[0].strip()
    row = first.row
    print(f"machine   {row['machine']['processor']}, {row['machine']['processors']} processors, {row['machine']['system']}")
    print(f"drive     {row['drive']}, file of {os.path.getsize(args.file) >> 20} MiB, written once before")
    print(f"versions  spillway {row['version']}, {fio_version}, kernel {row['kernel']}, python {platform.python_version()}")
    print(f"slices    {args.slices} of {args.seconds:g} s of ours in each mode, each between fio's\n")
    print("what   mode     ratio  95% interval    control  95% interval      goal")
    results = []
    parts = [("speed", mode, compare) for mode in modes]
    if args.memory_file:
        parts += [("cpu on tmpfs", mode, compare_cpu) for mode in modes]
    for name, mode, part in parts:
        current = f"{name}, {mode}"
        result = part(args, mode, show)
        if sys.stdout.isatty():
            print("\r\x1b[K", end="")
        print(described(result), flush=True)
        print(f"         fio {json.dumps(result['fio'])}, ours {json.dumps(result['ours'])}", flush=True)
        results.append(result)
    if args.json:
        with open(args.json, "w", encoding="utf-8") as out:
            json.dump({"format_version": 1, "machine": row["machine"], "drive": row["drive"], "filesystem": row["filesystem"],
                       "kernel": row["kernel"], "spillway": row["version"], "fio": fio_version, "slices": args.slices,
                       "seconds": args.seconds, "results": results}, out, indent=1)
            out.write("\n")
    print("\nratio: ours / fio, the median over neighbouring slices; control: fio / fio likewise. Speed passes where the\n"
          "interval reaches 0.97 of the control's median, processor time where it reaches 1.1 from above.")
    sys.exit(0 if all(result["pass"] for result in results) else 1)


if __name__ == "__main__":
    main()
