#!/usr/bin/env python3
"""Step time of data-parallel training on CPU ranks: PyTorch DistributedDataParallel over gloo beside Muster, in one run.

Model: nanoGPT's CPU setting (4 layers, 4 heads, 128 wide, context 64, vocabulary 65). Ranks of one thread each. The two
sides alternate; every round gives the median of its steps; the table shows the median over rounds and the ratio.

  bench ddp-cpu [--ranks 2] [--rounds 3] [--steps 120] [--sequences 6,12] [--muster PATH]
"""
import argparse
import json
import os
import pathlib
import socket
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
LAYERS, HEADS, WIDTH, CONTEXT, VOCAB = 4, 4, 128, 64, 65
WARM_UP = 20


def build_model(torch, layers=LAYERS, heads=HEADS, width=WIDTH, context=CONTEXT, vocab=VOCAB, dropout=0.0):
    """GPT-2 with the usual eager PyTorch modules, no biases, tied head."""
    nn, F = torch.nn, torch.nn.functional

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(width, bias=False), nn.LayerNorm(width, bias=False)
            self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
            self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)
            self.drop = nn.Dropout(dropout)

        def forward(self, x):
            b, t, c = x.shape
            q, k, v = (y.view(b, t, heads, c // heads).transpose(1, 2) for y in self.qkv(self.norm1(x)).split(c, dim=2))
            a = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=dropout if self.training else 0.0)
            x = x + self.drop(self.out(a.transpose(1, 2).contiguous().view(b, t, c)))
            return x + self.drop(self.down(F.gelu(self.up(self.norm2(x)))))

    class Gpt(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens, self.positions = nn.Embedding(vocab, width), nn.Embedding(context, width)
            self.drop = nn.Dropout(dropout)
            self.blocks = nn.ModuleList(Block() for _ in range(layers))
            self.norm, self.head = nn.LayerNorm(width, bias=False), nn.Linear(width, vocab, bias=False)
            self.head.weight = self.tokens.weight

        def forward(self, x, y):
            h = self.drop(self.tokens(x) + self.positions(torch.arange(x.shape[1], device=x.device)))
            for block in self.blocks:
                h = block(h)
            return F.cross_entropy(self.head(self.norm(h)).view(-1, vocab), y.view(-1))

    return Gpt()


def adamw(torch, model):
    decay = [p for p in model.parameters() if p.dim() >= 2]
    rest = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.99), fused=True)


def peer_rank(rank, ranks, port, sequences, steps, result):
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    torch.manual_seed(1337)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=ranks)
    model = torch.nn.parallel.DistributedDataParallel(build_model(torch))
    optimizer = adamw(torch, model)
    x = torch.randint(VOCAB, (sequences, CONTEXT))
    times = []
    for _ in range(steps):
        start = time.perf_counter()
        loss = model(x, x)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        loss.item()
        times.append(1e3 * (time.perf_counter() - start))
    if rank == 0:
        pathlib.Path(result).write_text(json.dumps(times[WARM_UP:]))
    dist.destroy_process_group()


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def run_peer(ranks, sequences, steps):
    with tempfile.TemporaryDirectory() as folder:
        result, port = f"{folder}/times.json", free_port()
        command = [sys.executable, __file__, "--peer"]
        env = dict(os.environ, OMP_NUM_THREADS="1", CUDA_VISIBLE_DEVICES="")
        ps = [subprocess.Popen(command + [str(r), str(ranks), str(port), str(sequences), str(steps), result], env=env) for r in range(ranks)]
        if any([p.wait(timeout=300) for p in ps]):
            sys.exit("bench ddp-cpu: the PyTorch side failed; is its full set installed (./scripts/setup --full)?")
        return statistics.median(json.loads(pathlib.Path(result).read_text()))


def run_muster(muster, ranks, sequences, steps):
    with tempfile.TemporaryDirectory() as folder:
        text = pathlib.Path(folder) / "text.txt"
        alphabet = "".join(chr(48 + i) for i in range(VOCAB))
        text.write_text("".join(alphabet[(i * i + i // 7) % VOCAB] for i in range(200_000)) + alphabet)
        command = [muster, "launch", str(ROOT / "scripts/configs/shakespeare-char-cpu.yaml"), "-n", str(ranks), "--data", str(text),
                   "--micro-batch-size", str(sequences), "--global-batch-size", str(sequences * ranks), "--train-iters", str(steps),
                   "--log-interval", "1", "--eval-interval", str(steps), "--eval-iters", "1", "--sample-tokens", "0", "--threads", "1",
                   "--device", "cpu", "--run-dir", f"{folder}/run"]
        done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, timeout=300)
        if done.returncode:
            sys.exit(f"bench ddp-cpu: muster failed: {done.stderr[-2000:]}")
        rows = [json.loads(line) for line in open(f"{folder}/run/metrics.jsonl")]
        return statistics.median([r["step_ms"] for r in rows if "loss" in r][WARM_UP:])


def main():
    if len(sys.argv) > 1 and sys.argv[1] == "--peer":
        rank, ranks, port, sequences, steps = map(int, sys.argv[2:7])
        return peer_rank(rank, ranks, port, sequences, steps, sys.argv[7])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--sequences", default="6,12")
    parser.add_argument("--muster", default=str(ROOT / "build/bin/muster"))
    a = parser.parse_args()
    print(f"{'ranks':>5} {'sequences/rank':>15} {'PyTorch ms':>11} {'Muster ms':>10} {'ratio':>6}   rounds (PyTorch | Muster)")
    for sequences in map(int, a.sequences.split(",")):
        peer, ours = [], []
        for _ in range(a.rounds):
            peer.append(run_peer(a.ranks, sequences, a.steps))
            ours.append(run_muster(a.muster, a.ranks, sequences, a.steps))
        p, m = statistics.median(peer), statistics.median(ours)
        rows = " ".join(f"{t:.1f}" for t in peer) + " | " + " ".join(f"{t:.1f}" for t in ours)
        print(f"{a.ranks:>5} {sequences:>15} {p:>11.2f} {m:>10.2f} {m / p:>6.2f}   {rows}", flush=True)


if __name__ == "__main__":
    main()
