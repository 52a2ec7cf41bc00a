#!/usr/bin/env python3
"""Step time on one GPU: PyTorch (eager, and torch.compile) beside Muster, in one run. nanoGPT's GPU setting for characters:
6 layers, 6 heads, 384 wide, context 256, batch 64, dropout 0.2, bfloat16.

  bench step-gpu [--steps 200] [--no-compile] [--muster PATH]
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

from bench_training import ROOT, VOCAB, adamw, build_model

BATCH, CONTEXT, WARM_UP = 64, 256, 40


def peer_ms(compiled, steps):
    import torch
    torch.manual_seed(1337)
    torch.backends.cuda.matmul.allow_tf32 = True
    model = build_model(torch, layers=6, heads=6, width=384, context=CONTEXT, dropout=0.2).cuda()
    optimizer = adamw(torch, model)
    forward = torch.compile(model) if compiled else model
    x = torch.randint(VOCAB, (BATCH, CONTEXT), device="cuda")
    times, start, end = [], torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    for step in range(WARM_UP + steps):
        if step % 10 == 0:
            start.record()
        with torch.autocast("cuda", torch.bfloat16):
            loss = forward(x, x)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 10 == 9:
            end.record()
            end.synchronize()
            if step >= WARM_UP:
                times.append(start.elapsed_time(end) / 10)
    return statistics.median(times)


def muster_ms(muster, steps):
    with tempfile.TemporaryDirectory() as folder:
        text = pathlib.Path(folder) / "text.txt"
        text.write_text("".join(chr(48 + (i * i + i // 7) % 65) for i in range(500_000)) + "".join(chr(48 + i) for i in range(65)))
        command = [muster, "launch", str(ROOT / "scripts/configs/shakespeare-char-gpu.yaml"), "-n", "1", "--data", str(text),
                   "--train-iters", str(WARM_UP + steps), "--log-interval", "10", "--eval-interval", "0", "--eval-iters", "1",
                   "--sample-tokens", "0", "--device", "cuda", "--run-dir", f"{folder}/run"]
        done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, timeout=300)
        if done.returncode:
            sys.exit(f"bench step-gpu: muster failed: {done.stderr[-2000:]}")
        rows = [json.loads(line) for line in open(f"{folder}/run/metrics.jsonl")]
        return statistics.median(r["step_ms"] for r in rows if "step_ms" in r and r["step"] > WARM_UP)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--muster", default=str(ROOT / "build/bin/muster"))
    a = parser.parse_args()
    import torch
    print(torch.cuda.get_device_name(), "torch", torch.__version__)
    ours = [muster_ms(a.muster, a.steps)]
    rows = [("eager", peer_ms(False, a.steps))]
    if not a.no_compile:
        rows.append(("torch.compile", peer_ms(True, a.steps)))
    ours.append(muster_ms(a.muster, a.steps))
    m = statistics.median(ours)
    print(f"{'PyTorch':>14} {'PyTorch ms':>11} {'Muster ms':>10} {'ratio':>6}   Muster before and after: {ours[0]:.2f} {ours[1]:.2f}")
    for name, ms in rows:
        print(f"{name:>14} {ms:>11.2f} {m:>10.2f} {m / ms:>6.2f}")


if __name__ == "__main__":
    main()
