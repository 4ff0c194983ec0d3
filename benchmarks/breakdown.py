"""Where a step's time goes: GPU time of each kernel by timestamp queries, gaps between them, and CPU time.

    python benchmarks/breakdown.py MODEL.gguf --streams 1,32 --context 128 --prompt 512

Under the clock a step runs twice: whole, as when serving, and with each dispatch in a pass of its own, so that
what the passes add shows. (The second run follows from the first one's token; only the time means something.)
CPU and wall times come from a run without any of this.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import common
from common import Spread
from emberd.engine import Engine
from emberd.errors import EmberdError
from emberd.gguf.spec import open_model
from emberd.protocol import GenerateRequest, SamplingParams, WorkerOptions
from emberd.runtime.device import Device, Tensor
from emberd.runtime.kernel import Dispatch
from emberd.runtime.replay import Recording, Words
from emberd.runtime.runner import GpuRunner
from gpu_clock import GpuClock, read_bandwidth

WEIGHT_BINDINGS = {"quants", "scales", "quants_second", "scales_second"}
"""Names under which kernels bind weight matrices."""


@dataclass(frozen=True, slots=True)
class KernelTime:
    """All dispatches of one kernel and grid in one step."""

    kernel: str
    grid: str
    calls: int
    microseconds: float  # of all calls
    share: float  # of the step's sum
    weight_gb_s: float | None  # weights read, over the time


@dataclass(frozen=True, slots=True)
class StepTimes:
    """One kind of step, in milliseconds."""

    what: str
    dispatches: int
    gpu_whole: Spread  # all dispatches in one pass
    gpu_sum: float  # each in a pass of its own
    weight_gb_s: float  # weights read, over gpu_whole
    wall: Spread  # decode: from one step's end to the next one's; prefill: until the first token
    cpu_fill: float  # the runner's submit without the replay: choosing the plan, filling its inputs
    cpu_replay: float  # recording; a thread beside it finishes and submits
    cpu_wait: float  # waiting for the oldest step, reading its tokens
    cpu_engine: float  # scheduling, building batches, committing
    kernels: tuple[KernelTime, ...]


@dataclass(slots=True)
class TimedReplayer:
    """Replays recordings under the clock, whole and then a dispatch at a time."""

    device: Device
    clock: GpuClock
    recordings: dict[int, Recording] = field(default_factory=dict)
    whole: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    each: dict[int, list[list[float]]] = field(default_factory=lambda: defaultdict(list))
    _outputs: deque[NDArray[np.uint8]] = field(default_factory=deque)

    def submit(self, recording: Recording, inputs: Tensor, values: Words) -> None:
        self.device.write(inputs, values)
        key = id(recording)
        self.recordings[key] = recording
        self.whole[key] += self.clock.passes([recording.steps])
        self.each[key].append(self.clock.passes([[step] for step in recording.steps]))
        self._outputs.append(self.device.read(recording.output).view(np.uint8))

    def collect(self) -> NDArray[np.uint8]:
        return self._outputs.popleft()

    def flush(self) -> None:
        """Nothing is held back."""

    def close(self) -> None: ...


class Watch:
    """Times a method of an object until `stop`."""

    def __init__(self, owner: Any, name: str) -> None:
        self._owner, self._name = owner, name
        self._seconds: list[float] = []
        inner: Callable[..., Any] = getattr(owner, name)

        def timed(*arguments: Any) -> Any:
            start = time.perf_counter()
            result = inner(*arguments)
            self._seconds.append(time.perf_counter() - start)
            return result

        setattr(owner, name, timed)

    def stop(self) -> float:
        """Milliseconds of a call, the median."""
        delattr(self._owner, self._name)
        return 1e3 * float(np.median(self._seconds))

    @property
    def calls(self) -> int:
        return len(self._seconds)


class Work:
    """Drives an engine over the runner, first untouched, then under the clock."""

    def __init__(self, runner: GpuRunner, clock: GpuClock, vocab_size: int, repeats: int) -> None:
        self._runner, self._clock = runner, clock
        self._vocab_size, self._repeats = vocab_size, repeats
        self._rng = np.random.default_rng()

    def prefill(self, tokens: int) -> StepTimes:
        """A prompt until its first token, and the plan that takes longest of its steps."""
        return self._measure(f"prefill {tokens} tokens", 1, tokens, 1, decode=False)

    def decode(self, streams: int, context: int, new_tokens: int) -> StepTimes:
        """A step of `streams` sequences that have `context` to `context + new_tokens` tokens."""
        what = f"decode {streams} streams, context {context}–{context + new_tokens}"
        return self._measure(what, streams, context, new_tokens, decode=True)

    def _measure(
        self, what: str, streams: int, prompt: int, new_tokens: int, decode: bool
    ) -> StepTimes:
        runner = self._runner
        replayer = runner._replayer
        self._run(streams, prompt, new_tokens, decode)  # makes the plans
        watches = [Watch(runner, "submit"), Watch(replayer, "submit"), Watch(runner, "collect")]
        repeats = 1 if decode else self._repeats
        walls = [w for _ in range(repeats) for w in self._run(streams, prompt, new_tokens, decode)]
        steps = 1 if decode else watches[0].calls / len(walls)  # steps that a wall time spans
        submit, replay, wait = (steps * watch.stop() for watch in watches)
        timed = TimedReplayer(runner.kernels.device, self._clock)
        runner._replayer = timed  # the one place where the runner hands a step to the device
        for _ in range(repeats):
            self._run(streams, prompt, new_tokens, decode)
        runner._replayer = replayer
        recording = _chosen(timed, decode)
        whole = Spread.of(1e3 * seconds for seconds in timed.whole[id(recording)])
        seconds = np.median(timed.each[id(recording)], axis=0)
        wall = Spread.of(1e3 * w for w in walls)
        weights = sum(_weight_bytes(dispatch) for dispatch in recording.dispatches)
        return StepTimes(
            what=what,
            dispatches=len(recording.dispatches),
            gpu_whole=whole,
            gpu_sum=1e3 * float(seconds.sum()),
            weight_gb_s=weights / whole.median / 1e6,
            wall=wall,
            cpu_fill=submit - replay,
            cpu_replay=replay,
            cpu_wait=wait,
            cpu_engine=max(0.0, wall.median - submit - wait),
            kernels=_by_kernel(recording.dispatches, seconds),
        )

    def _run(self, streams: int, prompt: int, new_tokens: int, decode: bool) -> list[float]:
        """Seconds of each decode step, or of the prompt until its first token."""
        engine = Engine(self._runner)
        params = SamplingParams(temperature=0, max_tokens=new_tokens, ignore_eos=True)
        prompts = self._rng.integers(0, self._vocab_size, (streams, prompt)).tolist()
        for index, tokens in enumerate(prompts):
            engine.add(GenerateRequest(str(index), tuple(tokens), params))
        waiting = {str(index) for index in range(streams)}
        start = time.perf_counter()
        walls: list[float] = []
        while engine.has_work:
            message = engine.step()
            now = time.perf_counter()
            if not waiting and decode:
                walls.append(now - start)
            elif waiting and not decode and message.updates:
                walls.append(now - start)
            waiting -= {update.request_id for update in message.updates}
            if decode:
                start = now
        return walls


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    longest = max(options.prompt + 2, options.context + options.new_tokens)
    try:
        model = open_model(options.model)
        vocab_size = model.spec.vocab_size
        model.close()
        runner = GpuRunner.load(
            WorkerOptions(
                model_path=str(options.model),
                device=options.device,
                context_length=longest,
                kv_memory=options.kv_memory,
                max_sequences=max(options.streams),
                max_batch_tokens=options.max_batch_tokens,
                cache_dir=common.cache_dir(),
            )
        )
        clock = GpuClock(runner.kernels.device)
    except EmberdError as error:
        print(f"breakdown: {error}", file=sys.stderr)
        return 1
    device = runner.kernels.device
    facts = common.conditions(
        device=device.name,
        driver=device.info.driver,
        repeats=options.repeats,
        commit=options.commit,
        **common.model_facts(options.model),
        max_batch_tokens=options.max_batch_tokens,
    )
    common.print_conditions(facts)
    limit = read_bandwidth(device, clock, options.repeats).median / 1e9
    print(f"read bandwidth {limit:,.4g} GB/s", flush=True)
    work = Work(runner, clock, vocab_size, options.repeats)
    steps = [work.prefill(options.prompt)]
    _print(steps[0], limit)
    for streams in options.streams:
        steps.append(work.decode(streams, options.context, options.new_tokens))
        _print(steps[-1], limit)
    common.finish("breakdown", facts, {"read_gb_s": limit, "steps": steps}, options.out)
    runner.close()
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = common.parser("GPU time of each kernel of a step, and the CPU's part", 5)
    parser.add_argument("model", type=Path, help="a GGUF file")
    parser.add_argument("--device", default="gpu", help="gpu, or a part of an adapter's name")
    parser.add_argument("--streams", type=common.numbers, default=(1, 32), help="as 1,8,32")
    parser.add_argument("--prompt", type=common.positive, default=512, help="tokens of prefill")
    parser.add_argument("--context", type=common.positive, default=128, help="tokens before decode")
    parser.add_argument("--new-tokens", type=common.positive, default=64, help="decode steps")
    parser.add_argument("--max-batch-tokens", type=common.positive, default=512)
    parser.add_argument("--kv-memory", type=int, help="bytes of KV cache")
    return parser


def _chosen(timed: TimedReplayer, decode: bool) -> Recording:
    """The plan to tell about: the decode plan seen most, or the prefill plan that takes longest."""
    found = [
        recording for recording in timed.recordings.values() if _is_prefill(recording) != decode
    ]
    if decode:
        return max(found, key=lambda recording: len(timed.each[id(recording)]))
    return max(found, key=lambda recording: sum(timed.each[id(recording)][-1]))


def _is_prefill(recording: Recording) -> bool:
    return any(d.kernel.key.name == "attention_prefill" for d in recording.dispatches)


def _by_kernel(dispatches: Sequence[Dispatch], seconds: Iterable[float]) -> tuple[KernelTime, ...]:
    """Dispatches of one kernel and grid together, the costliest first."""
    groups: dict[tuple[str, str], list[tuple[float, int]]] = defaultdict(list)
    for dispatch, taken in zip(dispatches, seconds, strict=True):
        grid = "×".join(map(str, dispatch.grid))
        groups[dispatch.kernel.label, grid].append((float(taken), _weight_bytes(dispatch)))
    total = sum(taken for members in groups.values() for taken, _ in members)
    found = []
    for (label, grid), members in groups.items():
        spent, nbytes = sum(t for t, _ in members), sum(n for _, n in members)
        rate = nbytes / spent / 1e9 if nbytes else None
        found.append(KernelTime(label, grid, len(members), 1e6 * spent, spent / total, rate))
    return tuple(sorted(found, key=lambda kernel: -kernel.microseconds))


def _weight_bytes(dispatch: Dispatch) -> int:
    """Bytes of the weight matrix that a product reads whole."""
    if dispatch.kernel.key.name not in {"matvec", "matmul"}:
        return 0
    pairs = zip(dispatch.kernel.bindings, dispatch.tensors, strict=True)
    return sum(tensor.nbytes for name, tensor in pairs if name in WEIGHT_BINDINGS)


def _print(step: StepTimes, limit: float) -> None:
    print(
        f"\n{step.what}: {step.dispatches} dispatches\n"
        f"  wall {step.wall} ms; CPU: fill {step.cpu_fill:.3f}, replay {step.cpu_replay:.3f}, "
        f"wait {step.cpu_wait:.3f}, engine {step.cpu_engine:.3f} ms\n"
        f"  GPU {step.gpu_whole} ms in one pass, {step.gpu_sum:.3f} ms as the sum of its kernels; "
        f"weights {step.weight_gb_s:,.4g} GB/s, {step.weight_gb_s / limit:.0%} of what a read reaches"
    )
    common.print_table(
        ("KERNEL", "GRID", "CALLS", "µs", "µs EACH", "SHARE", "WEIGHTS GB/s"),
        [
            (
                kernel.kernel,
                kernel.grid,
                kernel.calls,
                kernel.microseconds,
                kernel.microseconds / kernel.calls,
                f"{kernel.share:.1%}",
                kernel.weight_gb_s,
            )
            for kernel in step.kernels
        ],
    )
    sys.stdout.flush()


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    sys.exit(main())
